"""Reading the store in a thread, so that the event loop waits neither for a disk nor for a database."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holtmq.broker.containment import InternalErrors
from holtmq.broker.store_reads import StoreReads
from holtmq.errors import StoreClosedError, StoreDefectError, StoreError
from holtmq.server.turns import Turns
from holtmq.server.worker_thread import WorkerThread
from holtmq.store.sql.batch_journal import BatchJournal

T = TypeVar("T")
SEVERAL = 2
SWITCH_S = 0.0001
"""How soon the event loop lets go of Python's lock while several reads wait. By itself it does so after 5 ms, in which the
thread could have read several chunks (benchmarks/streams.py, ten readers)."""


class ReadsInThread(StoreReads):
    """Does one read at a time, in the order in which they were asked for."""

    def __init__(self, journal: BatchJournal, errors: InternalErrors, turns: Turns) -> None:
        self._journal = journal
        self._errors = errors
        self._turns = turns
        self._thread = WorkerThread("holtmq-reader")
        self._is_stopped = False
        self._outstanding = 0
        self._usual_switch_s = sys.getswitchinterval()

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        """Read, and pass on the result in a later turn, or the error that prevents it."""
        if not self._is_stopped:
            self._journal.hold()
            self._outstanding += 1
            if self._outstanding == SEVERAL:
                sys.setswitchinterval(SWITCH_S)
            self._thread.do(partial(self._read, read), partial(self._answer, then), partial(self._fail, then))

    def _read(self, read: Callable[[], T]) -> T:
        if self._is_stopped:
            raise StoreClosedError("the broker was stopped before this was read")
        return read()

    def _fail(self, then: Callable[[T | StoreError], None], error: Exception) -> None:
        """Pass an error on. The queue reports it and tries again."""
        self._answer(then, error if isinstance(error, StoreError) else StoreDefectError(f"cannot read {error!r}"))

    def _answer(self, then: Callable[[T | StoreError], None], answer: T | StoreError) -> None:
        if self._is_stopped:
            return
        self._outstanding -= 1
        if self._outstanding < SEVERAL:
            sys.setswitchinterval(self._usual_switch_s)
        self._turns.begin()
        with self._errors.contain("reading the store", "a queue"):
            then(answer)
        self._journal.release()

    def stop(self) -> None:
        """Read nothing more. Return when the thread has ended."""
        self._is_stopped = True
        sys.setswitchinterval(self._usual_switch_s)
        self._thread.stop()
