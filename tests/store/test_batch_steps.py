"""A batch is written in steps, and is on disk as a whole or not at all."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.errors import StoreError
from holtmq.steps import Steps, complete
from holtmq.store.sqlite import batch_journal, journal_batch
from holtmq.store.sqlite.batch_journal import FREED, ROWS, SqliteJournal, runs
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.topology import Binding, Exchange, Queue, Removal
from holtmq.wire.content import Properties, encode_properties, make_content

RAW = encode_properties({"delivery_mode": 2})
COUNT = 3 * FREED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "b.db"


@pytest.fixture
def journal(path: Path) -> Iterator[SqliteJournal]:
    journal = SqliteJournal(SqliteDatabase(path, durability="off"))
    journal.recover()
    yield journal
    journal.close()


def add(journal: SqliteJournal, queue_id: int, ids: range, *, is_paged: bool, body: bytes = b"m") -> None:
    for number in ids:
        message = QueuedMessage(number, Origin("", "k"), Properties(RAW), make_content(RAW, body), len(body), 1)
        journal.add(message, queue_id, 0, None, is_paged=is_paged)


def write(journal: SqliteJournal) -> Steps[None]:
    journal.gather()
    assert journal.begin()
    return journal.write()


def commit(journal: SqliteJournal) -> None:
    complete(write(journal))
    journal.commit()


def count(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    try:
        (number,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    finally:
        connection.close()
    return int(number)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_queue_is_emptied_in_steps_and_as_a_whole(journal: SqliteJournal, path: Path, is_deleted: bool) -> None:  # noqa: FBT001
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, COUNT + 1), is_paged=True)
    commit(journal)
    if is_deleted:
        journal.forget_queue(queue_id)
    else:
        journal.purge(queue_id, {5})
    steps = write(journal)
    seen = [count(path, "messages") for _ in steps]
    assert len(seen) >= COUNT // FREED
    assert set(seen) == {COUNT}
    journal.commit()
    assert count(path, "messages") == count(path, "deliveries") == (0 if is_deleted else 1)


def test_the_bindings_of_an_exchange_are_removed_with_it_in_steps(
    journal: SqliteJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.store.sqlite.declarations.ROWS", 10)
    journal.add_exchange(Exchange("x"))
    journal.add_exchange(Exchange("y"))
    for number in range(25):
        journal.add_binding(Binding("x", "q", str(number)))
    journal.add_binding(Binding("y", "q"))
    commit(journal)
    journal.remove_parts(Removal(exchanges=[Exchange("x")]))
    assert sum(1 for _ in write(journal)) > 3
    journal.commit()
    assert (count(path, "exchanges"), count(path, "bindings")) == (1, 1)


def test_a_large_transaction_is_written_in_steps(journal: SqliteJournal, path: Path) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, 2 * ROWS + 1), is_paged=False)
    add(journal, queue_id, range(3 * ROWS, 5 * ROWS), is_paged=True)
    assert sum(1 for _ in write(journal)) >= 4
    assert count(path, "messages") == 0
    journal.commit()
    assert count(path, "messages") == 4 * ROWS


def test_large_bodies_are_written_a_few_at_a_time(journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_batch, "STEP_BYTES", 100)
    add(journal, journal.add_queue(Queue("q")), range(1, 11), is_paged=False, body=bytes(50))
    assert sum(1 for _ in write(journal)) >= 5


def test_what_arrives_between_two_steps_is_in_the_next_batch(journal: SqliteJournal, path: Path) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, 11), is_paged=False)
    first = journal.batch
    steps = write(journal)
    next(steps)
    add(journal, queue_id, range(11, 21), is_paged=False)
    complete(steps)
    assert journal.commit() == first
    assert count(path, "messages") == 10
    commit(journal)
    assert count(path, "messages") == 20


def test_a_batch_that_fails_in_the_middle_is_written_again(
    journal: SqliteJournal, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_id = journal.add_queue(Queue("q"))
    add(journal, queue_id, range(1, 2 * ROWS), is_paged=False)
    steps = write(journal)
    next(steps)
    with monkeypatch.context() as patch:
        patch.setattr(batch_journal, "ADD_PLAIN_MESSAGE", "INSERT INTO nowhere VALUES (1)")
        with pytest.raises(StoreError):
            complete(steps)
    assert count(path, "queues") == 0
    commit(journal)
    assert (count(path, "queues"), count(path, "messages")) == (1, 2 * ROWS - 1)


def test_a_batch_whose_steps_are_dropped_is_written_again(journal: SqliteJournal, path: Path) -> None:
    add(journal, journal.add_queue(Queue("q")), range(1, 2 * ROWS), is_paged=False)
    steps = write(journal)
    next(steps)
    steps.close()
    commit(journal)
    assert (count(path, "queues"), count(path, "messages")) == (1, 2 * ROWS - 1)


def test_runs_are_cut_into_steps() -> None:
    numbers = [*range(10, 10 + 2 * FREED + 3), 900_000]
    found = runs(numbers)
    assert found[0] == (10, 9 + FREED)
    assert [number for first, last in found for number in range(first, last + 1)] == numbers
    assert max(last - first + 1 for first, last in found) == FREED
