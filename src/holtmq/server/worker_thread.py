"""A thread that does one thing after another for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
V = TypeVar("V")
Work: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None], Callable[[Exception], None]]


class WorkerThread:
    """Does work in the order in which it was handed over, and passes each result on to the event loop.

    An executor would do the same, with two futures for each piece of work. For a commit per message, these take as much
    processor time as the commit itself (benchmarks/broker.py, "at most 1 unconfirmed, no consumer").
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T], then: Callable[[T], None], failed: Callable[[Exception], None]) -> None:
        """Do some work. Afterwards, on the event loop, call `then` with its result, or `failed` with what it raised."""
        self._work.put((work, then, failed))

    async def done(self, work: Callable[[], T]) -> T:
        """Do some work, wait for it, and return its result."""
        future: asyncio.Future[T] = self._loop.create_future()
        self.do(work, partial(_settle, future, future.set_result), partial(_settle, future, future.set_exception))
        return await future

    def stop(self) -> None:
        """Return when all work has been done."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            work, then, failed = job
            try:
                done = partial(then, work())
            except Exception as error:  # noqa: BLE001  # passed on
                done = partial(failed, error)
            with suppress(RuntimeError):  # the loop was closed: nobody waits for the result
                self._loop.call_soon_threadsafe(done)
            del job, work, then, failed, done  # while it waits, the thread holds nothing


def _settle(future: asyncio.Future[T], settle: Callable[[V], None], result: V) -> None:
    if not future.done():  # nobody has cancelled it
        settle(result)
