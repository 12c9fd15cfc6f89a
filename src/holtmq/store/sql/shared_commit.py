"""Small transactions of several threads, committed together.

One thread leads: it runs what all of them ask for, in one transaction, and waits for the disk. Threads that come meanwhile
wait, and one of them leads the next transaction. So eight threads need one commit and one sync for eight messages, and each
thread is woken once (benchmarks/embedded.py).
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from holtmq.errors import HoltmqError, StoreError

T = TypeVar("T")
LONGEST_GATHERING_S = 0.002


class Commit(Protocol):
    """Runs a function in a transaction, or without one if it executes a single statement."""

    def __call__(self, run: Callable[[Any], None], /, *, is_single: bool) -> None: ...


class SharedCommits:
    """Runs the work of several threads in shared transactions."""

    def __init__(self, commit: Commit) -> None:
        self._commit = commit
        self._guard = threading.Lock()
        self._waiting: list[_Request] = []
        self._is_led = False
        self._expected, self._last_took_s = 1, 0.0
        self._is_gathering = False
        self._is_complete = threading.Event()

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the next transaction."""
        return len(self._waiting)

    def run(self, work: Callable[[Any], T], *, is_single: bool = False) -> T:
        """Run work in a transaction, and return its result when the transaction is complete.

        If `work` raises an error of ours, it has changed nothing. Any other error rolls back the transaction, and is raised
        for all who take part in it. Work that `is_single` executes one statement.
        """
        mine = _Request(work, is_single=is_single)
        with self._guard:
            self._waiting.append(mine)
            leads, self._is_led = not self._is_led, True
            if self._is_gathering and len(self._waiting) >= self._expected:
                self._is_complete.set()
        interrupt = None if leads else mine.wait()
        if not mine.is_done:
            self._lead()
        if interrupt is not None:
            raise interrupt
        if mine.error is not None:
            raise mine.error
        return mine.result  # type: ignore[no-any-return]

    def _lead(self) -> None:
        started, group = time.perf_counter(), []
        try:
            self._gather()
            started, group = time.perf_counter(), self._take_waiting()
            self._commit(partial(_run_all, group), is_single=len(group) == 1 and group[0].is_single)
        except Exception as error:  # noqa: BLE001  # raised by each of the threads
            for request in group:
                request.fail(error)
        except BaseException as error:
            group = group or self._take_waiting()
            for request in group:
                request.fail(StoreError(f"interrupted by {type(error).__name__}; whether the change was made is unknown"))
            raise
        finally:
            with self._guard:
                self._expected, self._last_took_s = len(group), time.perf_counter() - started
                successor = self._waiting[0] if self._waiting else None
                self._is_led = successor is not None
            for request in group:
                request.is_done = True
                request.wake()
            if successor is not None:
                successor.wake()

    def _take_waiting(self) -> list[_Request]:
        with self._guard:
            taken, self._waiting = self._waiting, []
            return taken

    def _gather(self) -> None:
        """Wait for as many threads as took part in the last transaction, for no longer than that transaction took.

        They have just been woken. Without them, transactions of one thread and of all the others would alternate.
        """
        with self._guard:
            if len(self._waiting) >= self._expected:
                return
            self._is_complete.clear()
            self._is_gathering = True
        self._is_complete.wait(min(self._last_took_s, LONGEST_GATHERING_S))
        self._is_gathering = False


class _Request:
    """What a thread asks for, and what became of it."""

    __slots__ = ("_turn", "_work", "error", "is_done", "is_single", "result")

    def __init__(self, work: Callable[[Any], Any], *, is_single: bool) -> None:
        self._work = work
        self.is_single = is_single
        self._turn = threading.Lock()
        self._turn.acquire()
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self, connection: Any) -> None:
        self.error = None  # that of an attempt whose transaction was lost
        try:
            self.result = self._work(connection)
        except HoltmqError as error:
            self.error = error

    def fail(self, error: Exception) -> None:
        """Fail with an error of the whole transaction. Each thread raises a copy, which has a traceback of its own."""
        self.error = copy.copy(error)
        self.error.__cause__ = error

    def wait(self) -> BaseException | None:
        """Wait until the request is done or leads. Return what interrupted the wait: the others rely on its end."""
        interrupt: BaseException | None = None
        while True:
            try:
                self._turn.acquire()
            except BaseException as error:  # noqa: BLE001  # raised by the caller
                interrupt = error
            else:
                return interrupt

    def wake(self) -> None:
        self._turn.release()


def _run_all(group: list[_Request], connection: Any) -> None:
    for request in group:
        request.run(connection)
