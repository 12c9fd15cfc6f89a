"""The broker's log: what is written, removed, requeued and purged in any order is what the store has afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

import holtmq
from holtmq.broker.queued_message import Origin, QueuedMessage, Restorer
from holtmq.steps import complete
from holtmq.store.chunk import LoggedMessage
from holtmq.store.records import Recovered
from holtmq.store.sql import chunk_log, log_transfer
from holtmq.store.sql.chunk_log import CHUNK_BYTES, ChunkLog
from holtmq.topology import Queue
from holtmq.wire.content import Properties, body_of, encode_properties, make_content
from tests.peers.peer import POSTGRES
from tests.places import database_at, journal_on, look_for_one, rows_of

START = 1_700_000_000_000 << 20
RAW = encode_properties({"delivery_mode": 2})
PRIORITIES = (0, 1)
LATER = 4_000_000_000_000


class Expected(NamedTuple):
    body: bytes
    key: str
    expires_at: int | None
    attempts: int


def read_all(run: Run, queue_id: int, priority: int) -> list[LoggedMessage]:
    """Read a lane from its start, in as many readings as it takes."""
    with closing(run.database.reader()) as reader:
        log, after_id = ChunkLog(run.database, reader, rows_of(run.database)), 0
        messages: list[LoggedMessage] = []
        while True:
            reading = log.read(queue_id, priority, after_id, 3, 100)
            if reading.end_id == after_id:
                return messages
            messages += reading.messages
            after_id = reading.end_id


class Run:
    """Random changes, applied to a journal and to a model of it."""

    def __init__(self, place: str, chance: random.Random) -> None:
        self.place = place
        self.chance = chance
        self.open()
        self.queues = [self.journal.add_queue(Queue(f"q{number}", arguments={"x-max-priority": 1})) for number in range(3)]
        self.model: dict[tuple[int, int], dict[int, Expected]] = {
            (queue_id, priority): {} for queue_id in self.queues for priority in PRIORITIES
        }
        self.held: dict[tuple[int, int], QueuedMessage] = {}
        """Messages in memory, by queue and id."""
        self.next_id = START
        self.unused: list[int] = []

    def open(self) -> Recovered:
        self.database = database_at(self.place)
        self.journal = journal_on(self.database)
        return self.journal.recover()

    def step(self) -> None:
        change = self.chance.choice([self.publish] * 6 + [self.settle] * 6 + [self.requeue, self.purge, self.take_in])
        change()

    def publish(self) -> None:
        """Add messages, usually in the order of their ids. Those that are paged out are older than others before them."""
        messages = []
        for _ in range(self.chance.randrange(1, 12)):
            if self.chance.random() < 0.2:
                self.next_id += 5
                self.unused.append(self.next_id - 1)
            self.next_id += 1
            queues = self.chance.sample(self.queues, self.chance.choice([1, 1, 2, 3]))
            messages.append((self.message(self.next_id, len(queues)), queues))
        if self.chance.random() < 0.2:
            self.chance.shuffle(messages)
        for message, queues in messages:
            for queue_id in queues:
                self.add(message, queue_id, self.chance.choice(PRIORITIES))

    def message(self, message_id: int, copies: int) -> QueuedMessage:
        body, key = b"%d" % message_id * self.chance.randrange(3), self.chance.choice(["k", "a.b"])
        return QueuedMessage(message_id, Origin("", key), Properties(RAW), make_content(RAW, body), len(body), copies)

    def add(self, message: QueuedMessage, queue_id: int, priority: int) -> None:
        expires_at = self.chance.choice([None, None, LATER + message.id % 100])
        self.journal.add(message, queue_id, priority, expires_at)
        self.model[queue_id, priority][message.id] = Expected(message.body, message.origin.routing_key, expires_at, 0)
        self.held[queue_id, message.id] = message

    def take_in(self) -> None:
        if self.unused:
            message_id, queue_id = self.unused.pop(self.chance.randrange(len(self.unused))), self.chance.choice(self.queues)
            message = self.message(message_id, 1)
            self.journal.take_in(message, queue_id, None)
            self.model[queue_id, 0][message_id] = Expected(message.body, message.origin.routing_key, None, 0)
            self.held[queue_id, message_id] = message

    def lane_of(self, queue_id: int, message_id: int) -> dict[int, Expected]:
        return next(self.model[queue_id, priority] for priority in PRIORITIES if message_id in self.model[queue_id, priority])

    def settle(self) -> None:
        places = sorted(self.held)
        start = self.chance.randrange(len(places) + 1)
        for queue_id, message_id in places[start : start + self.chance.randrange(30)]:
            self.journal.remove(self.held.pop((queue_id, message_id)), queue_id)
            del self.lane_of(queue_id, message_id)[message_id]

    def requeue(self) -> None:
        if self.held:
            queue_id, message_id = self.chance.choice(sorted(self.held))
            lane = self.lane_of(queue_id, message_id)
            lane[message_id] = lane[message_id]._replace(attempts=lane[message_id].attempts + 1)
            self.journal.returned(self.held[queue_id, message_id], queue_id, lane[message_id].attempts)

    def purge(self) -> None:
        queue_id = self.chance.choice(self.queues)
        mine = [message for (queue, _), message in sorted(self.held.items()) if queue == queue_id]
        kept = self.chance.sample(mine, min(len(mine), self.chance.randrange(4)))
        self.journal.purge(queue_id, kept)
        ids = {message.id for message in kept}
        for priority in PRIORITIES:
            lane = self.model[queue_id, priority]
            self.model[queue_id, priority] = {message_id: lane[message_id] for message_id in lane if message_id in ids}
        for message in mine:
            if message.id not in ids:
                del self.held[queue_id, message.id]
                self.journal.remove(message, queue_id)

    def write(self) -> None:
        """Write a batch, with changes in between, and commit it or fail."""
        self.journal.gather()
        assert self.journal.begin()
        steps = self.journal.write()
        for _ in steps:
            if self.chance.random() < 0.3:
                self.step()
            if self.chance.random() < 0.05:
                steps.close()
                return
        self.journal.commit()

    def commit(self) -> None:
        """Write everything."""
        while self.journal.has_changes or self.journal.is_writing:
            self.journal.gather()
            assert self.journal.begin()
            complete(self.journal.write())
            self.journal.commit()

    def check(self) -> None:
        for (queue_id, priority), lane in self.model.items():
            found = read_all(self, queue_id, priority)
            assert [message.id for message in found] == sorted(lane)
            for message in found:
                assert message.damage is None
                expected = lane[message.id]
                known = Expected(body_of(message.content), message.origin[1], message.expires_at, message.attempts)
                assert known == expected
        orphans = "SELECT count(*) FROM log_chunks WHERE id NOT IN (SELECT chunk_id FROM log_slices)"
        assert look_for_one(self.place, orphans) == 0

    def restart(self) -> None:
        """Start again from the store, with some of the messages read into memory."""
        self.journal.close()
        recovered = self.open()
        for number, queue_id in enumerate(self.queues):
            state = recovered.queues["/", f"q{number}"]
            lanes = {priority: self.model[queue_id, priority] for priority in PRIORITIES}
            assert state.counts == {priority: len(lane) for priority, lane in lanes.items() if lane}
            assert state.size == sum(len(message.body) for lane in lanes.values() for message in lane.values())
        self.read_again()

    def read_again(self) -> None:
        """Forget all messages in memory, and read the first ones of each queue."""
        self.held, restorer = {}, Restorer({})
        for queue_id, priority in self.model:
            for message in self.journal.read(queue_id, priority, 0, self.chance.randrange(1, 50), 10_000).messages:
                self.held[queue_id, message.id] = restorer.restore(message)

    def close(self) -> None:
        self.journal.close()


ON_POSTGRES = pytest.mark.peer(POSTGRES)
by_seed = pytest.mark.parametrize(
    ("durable_place", "run"),
    [("file", seed) for seed in range(15)] + [pytest.param("postgres", seed, marks=ON_POSTGRES) for seed in range(3)],
    indirect=True,
)


@pytest.fixture
def run(request: pytest.FixtureRequest, durable_place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    for name, value in {"SEGMENT_MESSAGES": 7, "SETTLED_S": 0.0, "LEAST_COMPACTED_BYTES": 0, "DELETED_AT_ONCE": 3}.items():
        monkeypatch.setattr(chunk_log, name, value)
    run = Run(durable_place, random.Random(request.param))
    yield run
    run.close()


@by_seed
def test_the_store_has_what_random_changes_leave(run: Run) -> None:
    for _ in range(12):
        for _ in range(run.chance.randrange(1, 15)):
            run.step()
        run.write()
        if run.chance.random() < 0.4:
            run.commit()
            run.check()
            run.chance.choice([run.restart, run.read_again, run.step])()
    run.commit()
    run.check()
    run.restart()


@by_seed
def test_a_store_that_changes_hands_keeps_its_messages(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_transfer, "CHUNKS_AT_ONCE", 2)
    monkeypatch.setattr(log_transfer, "ROWS_AT_ONCE", 11)
    for _ in range(3):
        for _ in range(15):
            run.step()
        run.commit()
        run.journal.close()
        with holtmq.open(run.place, durability="off") as mq:
            for number, queue_id in enumerate(run.queues):
                lanes = [run.model[queue_id, priority] for priority in reversed(PRIORITIES)]
                listed = {message.id: message for message in mq.queue(f"q{number}").list_messages("ready", limit=10_000)}
                assert listed.keys() == {message_id for lane in lanes for message_id in lane}
                for message_id, expected in ((key, value) for lane in lanes for key, value in lane.items()):
                    message = listed[message_id]
                    assert (message.body, message.routing_key, message.attempts) == (
                        expected.body,
                        expected.key,
                        expected.attempts,
                    )
        run.open()
        run.check()
        run.read_again()


def test_a_chunk_of_which_little_is_left_is_rewritten(durable_place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_log, "SETTLED_S", 0.0)
    run = Run(durable_place, random.Random(1))
    with closing(run):
        messages = [run.message(START + number, 2) for number in range(1000)]
        for message in messages:
            message.content = make_content(RAW, bytes(100))
            message.size = 100
            for queue_id in run.queues[:2]:
                run.journal.add(message, queue_id, 0, None)
        run.commit()
        for number, message in enumerate(messages):
            if number % 10:
                for queue_id in run.queues[:2]:
                    run.journal.remove(message, queue_id)
        run.commit()
        run.add(run.message(START + 1000, 1), run.queues[2], 0)
        run.commit()  # a batch compacts what earlier ones have left
        size = look_for_one(run.place, "SELECT sum(length(content)) FROM log_chunks")
        assert size < 100 * 200
        for queue_id in run.queues[:2]:
            assert [message.id for message in read_all(run, queue_id, 0)] == [START + 10 * number for number in range(100)]
        for message in messages[::10]:
            run.journal.remove(message, run.queues[0])
        run.commit()
        assert read_all(run, run.queues[0], 0) == []
        assert len(read_all(run, run.queues[1], 0)) == 100


def test_chunks_with_messages_in_memory_are_counted(durable_place: str) -> None:
    run = Run(durable_place, random.Random(1))
    with closing(run):
        for number in range(10):
            run.add(run.message(START + number, 1), run.queues[0], 0)
            run.commit()
        assert run.journal.memory == 10 * CHUNK_BYTES
        run.held.clear()
        assert run.journal.memory == 0
        run.read_again()
        assert run.journal.memory > 0
