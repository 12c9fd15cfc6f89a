"""A thread that works for the event loop."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from holtmq.server.worker_thread import WorkerThread
from tests.deadline import PATIENCE_S

ERROR = ValueError("no such page")


def fail() -> None:
    raise ERROR


def test_results_and_exceptions_reach_the_event_loop_in_order() -> None:
    arrived: list[tuple[object, str]] = []

    def note(result: object) -> None:
        arrived.append((result, threading.current_thread().name))

    async def main() -> None:
        worker, here = WorkerThread("worker"), threading.current_thread().name
        worker.do(lambda: threading.current_thread().name, note, note)
        worker.do(fail, note, note)
        await worker.done(lambda: None)
        worker.stop()
        assert arrived == [("worker", here), (ERROR, here)]

    asyncio.run(main())


def test_work_that_is_waited_for_returns_its_result_or_raises() -> None:
    async def main() -> None:
        worker = WorkerThread("worker")
        assert await worker.done(lambda: 42) == 42
        with pytest.raises(ValueError, match="no such page"):
            await worker.done(fail)
        worker.stop()

    asyncio.run(main())


def test_a_thread_that_is_stopped_does_first_what_was_handed_over() -> None:
    done: list[int] = []

    async def main() -> None:
        worker, gate = WorkerThread("worker"), threading.Event()
        worker.do(partial(gate.wait, PATIENCE_S), print, print)
        for number in range(3):
            worker.do(partial(done.append, number), print, print)
        gate.set()
        worker.stop()

    asyncio.run(main())
    assert done == [0, 1, 2]


def test_a_result_that_comes_after_the_loop_was_closed_is_dropped() -> None:
    gate = threading.Event()

    async def main() -> WorkerThread:
        worker = WorkerThread("worker")
        worker.do(partial(gate.wait, PATIENCE_S), print, print)
        return worker

    worker = asyncio.run(main())
    gate.set()
    worker.stop()
