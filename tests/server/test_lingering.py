"""Batches that wait for acknowledgements before they are written, to a file and to a database, on a clock of the test."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from holtmq.clock import SteadyClock
from holtmq.server.back_pressure import BackPressure
from holtmq.server.commits import SHORT_LINGER_S, Commits
from holtmq.server.disk_space import DiskSpace
from holtmq.server.turns import Turns
from holtmq.store.sql.batch_journal import BatchJournal
from tests.broker.conftest import Bench
from tests.deadline import PATIENCE_S
from tests.places import database_at, journal_on


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose timers follow the test."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now


class Served(Bench):
    """A broker in turns, with a publisher in confirm mode and a consumer of a durable queue."""

    def __init__(self, place: str, loop: Loop) -> None:
        super().__init__(place)
        self.loop = loop
        self.publisher, self.consumer = self.client(), self.client()
        self.publisher.declare("q", durable=True)
        self.publisher.channel.select_confirms()
        self.turns = Turns(self.broker, SteadyClock(), lambda _: self.commits.start())
        self.commits = Commits(
            self.broker,
            self.journal,
            self.turns,
            BackPressure(self.broker, self.journal, ()),
            DiskSpace(place, None, 0),
            lambda _: None,
        )

    def _open(self, path: str | Path) -> BatchJournal:
        return journal_on(database_at(path, durability="full", owner="a test"))

    async def publish(self) -> None:
        """Publish a persistent message in a turn of its own."""
        self.turns.begin()
        self.publisher.publish("", "q", delivery_mode=2)
        await self.end_turn()

    async def ack(self) -> None:
        """Acknowledge the last delivery in a turn of its own."""
        self.turns.begin()
        self.consumer.channel.ack(self.consumer.deliveries[-1][0], multiple=False)
        await self.end_turn()

    async def end_turn(self) -> None:
        while self.turns.is_open:
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        await asyncio.sleep(0)

    async def reach(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until something is so, which another thread may have to bring about."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0)

    def has_confirmed(self, number: int) -> bool:
        """Whether this number of messages is confirmed, and no more."""
        return (self.publisher.confirms[-1][0] if self.publisher.confirms else 0) == number


@pytest.fixture
def run(durable_place: str) -> Iterator[Callable[[Callable[[Served], Awaitable[None]]], None]]:
    """Run a scenario on a broker whose declarations are on disk."""
    loop = Loop()

    async def scenario(steps: Callable[[Served], Awaitable[None]]) -> None:
        served = Served(durable_place, loop)
        served.commits.start()
        await served.commits.written()
        await steps(served)
        await served.commits.finish()
        served.journal.close()

    yield lambda steps: loop.run_until_complete(scenario(steps))
    loop.close()


Run = Callable[[Callable[[Served], Awaitable[None]]], None]


def test_a_message_that_is_acknowledged_at_once_is_confirmed_and_never_written(run: Run) -> None:
    async def steps(served: Served) -> None:
        served.consumer.consume("q")
        batch = served.journal.batch
        for number in range(1, 11):
            await served.publish()
            assert served.has_confirmed(number - 1)
            await served.ack()
            assert served.has_confirmed(number)
        assert served.journal.batch == batch

    run(steps)


def test_a_message_that_nobody_acknowledges_is_written_after_a_moment(run: Run) -> None:
    async def steps(served: Served) -> None:
        batch = served.journal.batch
        await served.publish()
        assert served.journal.batch == batch
        await served.pass_time(SHORT_LINGER_S)
        await served.reach(partial(served.has_confirmed, 1))

    run(steps)


def test_after_waiting_in_vain_more_and_more_batches_are_written_at_once(run: Run) -> None:
    async def steps(served: Served) -> None:
        waited = []
        for number in range(1, 15):
            batch = served.journal.batch
            await served.publish()
            waited.append(served.journal.batch == batch)
            await served.pass_time(SHORT_LINGER_S)
            await served.reach(partial(served.has_confirmed, number))
        assert [number for number, has_waited in enumerate(waited) if has_waited] == [0, 2, 6]

    run(steps)


def test_a_batch_that_somebody_waits_for_is_written_at_once(run: Run) -> None:
    async def steps(served: Served) -> None:
        batch = served.journal.batch
        await served.publish()
        assert served.journal.batch == batch
        served.turns.begin()
        await served.commits.written()
        assert served.has_confirmed(1)

    run(steps)


def test_acknowledgements_of_messages_in_the_file_are_written_at_once(run: Run) -> None:
    async def steps(served: Served) -> None:
        await served.publish()
        await served.pass_time(SHORT_LINGER_S)
        await served.reach(partial(served.has_confirmed, 1))
        served.turns.begin()
        served.consumer.consume("q")
        await served.end_turn()
        await served.reach(lambda: len(served.consumer.deliveries) == 1 and not served.journal.is_writing)
        batch = served.journal.batch
        await served.ack()
        assert served.journal.batch == batch + 1

    run(steps)
