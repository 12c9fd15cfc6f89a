"""A batch is written in steps, and is on disk as a whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.errors import StoreError, StoreFullError
from holtmq.steps import Steps, complete
from holtmq.store.sql import chunk_log
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sql.chunk_log import DELETED_AT_ONCE
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.topology import Binding, Exchange, Queue, Removal
from holtmq.wire.content import Properties, encode_properties, make_content
from tests.places import database_at, journal_on, look_for_one

RAW = encode_properties({"delivery_mode": 2})
SEGMENT, SEGMENTS = 10, 150
COUNT = SEGMENT * SEGMENTS


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_log, "SEGMENT_MESSAGES", SEGMENT)


@pytest.fixture
def journal(durable_place: str) -> Iterator[BatchJournal]:
    journal = journal_on(database_at(durable_place))
    journal.recover()
    yield journal
    journal.close()


def add(journal: BatchJournal, queue_id: int, ids: range, body: bytes = b"m") -> list[QueuedMessage]:
    messages = [
        QueuedMessage(number, Origin("", "k"), Properties(RAW), make_content(RAW, body), len(body), 1) for number in ids
    ]
    for message in messages:
        journal.add(message, queue_id, 0, None)
    return messages


def write(journal: BatchJournal) -> Steps[None]:
    journal.gather()
    assert journal.begin()
    return journal.write()


def commit(journal: BatchJournal) -> None:
    complete(write(journal))
    journal.commit()


def count(place: str, table: str) -> int:
    return int(look_for_one(place, f"SELECT count(*) FROM {table}"))


def stored(place: str) -> int:
    """Return the number of messages in the log."""
    return int(look_for_one(place, "SELECT coalesce(sum(number), 0) FROM log_slices"))


@pytest.mark.parametrize("is_deleted", [False, True])
def test_each_queue_is_a_step_even_if_it_is_empty(journal: BatchJournal, is_deleted: bool) -> None:  # noqa: FBT001
    queue_ids = [journal.add_queue(Queue(f"q{number}")) for number in range(100)]
    commit(journal)
    for queue_id in queue_ids:
        journal.purge(queue_id, ())
        if is_deleted:
            journal.forget_queue(queue_id)
    assert len(list(write(journal))) >= 100


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_queue_is_emptied_in_steps_and_as_a_whole(journal: BatchJournal, durable_place: str, is_deleted: bool) -> None:  # noqa: FBT001
    queue_id = journal.add_queue(Queue("q"))
    messages = add(journal, queue_id, range(1, COUNT + 1))
    commit(journal)
    if is_deleted:
        journal.forget_queue(queue_id)
    else:
        journal.purge(queue_id, messages[5:6])
    steps = write(journal)
    seen = [count(durable_place, "log_chunks") for _ in steps]
    assert len(seen) >= SEGMENTS // DELETED_AT_ONCE
    assert set(seen) == {SEGMENTS}
    journal.commit()
    assert count(durable_place, "log_chunks") == count(durable_place, "log_slices") == (0 if is_deleted else 1)
    assert stored(durable_place) == (0 if is_deleted else 1)


def test_the_bindings_of_an_exchange_are_removed_with_it_in_steps(
    journal: BatchJournal, durable_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.store.sql.declarations.ROWS", 10)
    journal.add_exchange(Exchange("x"))
    journal.add_exchange(Exchange("y"))
    for number in range(25):
        journal.add_binding(Binding("x", "q", str(number)))
    journal.add_binding(Binding("y", "q"))
    commit(journal)
    journal.remove_parts(Removal(exchanges=[Exchange("x")]))
    assert sum(1 for _ in write(journal)) > 3
    journal.commit()
    assert (count(durable_place, "exchanges"), count(durable_place, "bindings")) == (1, 1)


def test_a_large_transaction_is_written_in_steps(journal: BatchJournal, durable_place: str) -> None:
    add(journal, journal.add_queue(Queue("q")), range(1, COUNT + 1))
    assert sum(1 for _ in write(journal)) >= SEGMENTS
    assert stored(durable_place) == 0
    journal.commit()
    assert stored(durable_place) == COUNT


def test_large_bodies_are_written_a_few_at_a_time(journal: BatchJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_log, "SEGMENT_BYTES", 100)
    add(journal, journal.add_queue(Queue("q")), range(1, 11), body=bytes(50))
    assert sum(1 for _ in write(journal)) >= 5


def test_what_arrives_between_two_steps_is_in_the_next_batch(journal: BatchJournal, durable_place: str) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, 11))
    first = journal.batch
    steps = write(journal)
    next(steps)
    add(journal, queue_id, range(11, 21))
    complete(steps)
    assert journal.commit() == first
    assert stored(durable_place) == 10
    commit(journal)
    assert stored(durable_place) == 20


def test_a_batch_that_fails_in_the_middle_is_written_again(
    journal: BatchJournal, durable_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, COUNT))
    steps = write(journal)
    next(steps)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_log, "ADD_CHUNK", "INSERT INTO nowhere VALUES (1)")
        with pytest.raises(StoreError):
            complete(steps)
    assert count(durable_place, "queues") == 0
    commit(journal)
    assert (count(durable_place, "queues"), stored(durable_place)) == (1, COUNT - 1)


def test_a_batch_whose_steps_are_dropped_is_written_again(journal: BatchJournal, durable_place: str) -> None:
    add(journal, journal.add_queue(Queue("q")), range(1, COUNT))
    steps = write(journal)
    next(steps)
    steps.close()
    commit(journal)
    assert (count(durable_place, "queues"), stored(durable_place)) == (1, COUNT - 1)


def test_a_batch_that_was_written_and_not_committed_is_written_once(journal: BatchJournal, durable_place: str) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, 4))
    complete(write(journal))  # whoever commits it fails before the call
    journal.add_exchange(Exchange("e"))
    add(journal, queue_id, range(4, 6))
    journal.gather()
    complete(journal.write())
    journal.commit()
    assert count(durable_place, "queues") == 1
    assert [message.id for message in journal.read(queue_id, 0, 0, 100, 10**6).messages] == [1, 2, 3, 4, 5]


def test_a_full_disk_is_reported_as_such_whatever_was_being_written(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "b.db", durability="off")
    journal = journal_on(database)
    journal.recover()
    connection = database.connection
    connection.execute("PRAGMA max_page_count = 1")  # that is, as many as there are
    for number in range(1000):
        journal.add_queue(Queue(f"q{number}"))
    with pytest.raises(StoreFullError):
        commit(journal)
    connection.execute("PRAGMA max_page_count = 1000000")
    journal.add_queue(Queue("last"))
    commit(journal)
    assert count(str(tmp_path / "b.db"), "queues") == 1001
    journal.close()
