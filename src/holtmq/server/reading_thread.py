"""Reading the store in a thread, so that the event loop waits neither for a disk nor for a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from holtmq.broker.containment import InternalErrors
from holtmq.broker.store_reads import StoreReads
from holtmq.errors import StoreDefectError, StoreError
from holtmq.server.turns import Turns
from holtmq.store.sql.batch_journal import BatchJournal

T = TypeVar("T")


class ReadsInThread(StoreReads):
    """Does one read at a time, in the order in which they were asked for."""

    def __init__(self, journal: BatchJournal, errors: InternalErrors, turns: Turns) -> None:
        self._journal = journal
        self._errors = errors
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "holtmq-reader")
        self._is_stopped = False

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        """Read, and pass on the result in a later turn, or the error that prevents it."""
        if not self._is_stopped:
            self._journal.hold()
            job = self._loop.run_in_executor(self._thread, read)
            job.add_done_callback(partial(self._answer, then))

    def _answer(self, then: Callable[[T | StoreError], None], job: asyncio.Future[T]) -> None:
        if self._is_stopped:  # the job may have been cancelled
            return
        answer: T | StoreError
        try:
            answer = job.result()
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001  # the queue reports it and tries again
            answer = StoreDefectError(f"cannot read {error!r}")
        self._turns.begin()
        with self._errors.contain("reading the store", "a queue"):
            then(answer)
        self._journal.release()

    def stop(self) -> None:
        """Read nothing more. Return when the thread has ended."""
        self._is_stopped = True
        self._thread.shutdown(cancel_futures=True)
