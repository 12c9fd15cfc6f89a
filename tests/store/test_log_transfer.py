"""A file of an older version is converted when a broker or the embedded library opens it, whatever interrupts them."""

from __future__ import annotations

import logging
from contextlib import closing
from pathlib import Path

import pytest

import holtmq
from holtmq.store.checksum import checksum
from holtmq.store.records import ID_CLOCK_BITS
from holtmq.store.sql import log_transfer
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sqlite.database import STEPS, SqliteDatabase
from holtmq.store.sqlite.file_store import file_journal
from holtmq.wire.content import body_of, encode_properties

VERSION_6 = STEPS[:6]
START = 1_700_000_000_000 << ID_CLOCK_BITS
RAW = encode_properties({"delivery_mode": 2})
ADD_MESSAGE = """
INSERT INTO messages (id, queue_id, exchange, key_id, priority, created_at, raw_properties, body, is_transient, checksum)
VALUES (?, ?, 'x', 1, 0, 0, ?, ?, ?, ?)
"""
ADD_DELIVERY = "INSERT INTO deliveries VALUES (?, ?, ?, 0, 1, ?, NULL, NULL, NULL, NULL)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file as a broker of version 6 left it when it was killed."""
    path = tmp_path / "old.db"
    database = SqliteDatabase(path, steps=VERSION_6)
    with database.transaction() as connection:
        for name in ("q", "r"):
            connection.execute(
                "INSERT INTO queues (vhost, name, durable, auto_delete, exclusive, arguments) VALUES ('/', ?, 1, 0, 0, '{}')",
                (name,),
            )
        connection.execute("INSERT INTO routing_keys VALUES (1, 'a.b')")
        for number in range(30):  # one queue each
            add(database, number, queue_id=1)
        for number in range(30, 60):  # both queues; some have been requeued
            add(database, number, queue_id=None)
            connection.execute(ADD_DELIVERY, (START + number, 1, 0, number % 3))
            connection.execute(ADD_DELIVERY, (START + number, 2, 0, 0))
        add(database, 60, queue_id=None, is_transient=1)
        connection.execute(ADD_DELIVERY, (START + 60, 2, 0, 0))
        connection.execute("INSERT INTO delivery_marks VALUES (1, 0, ?)", (START + 5,))
    database.close()
    return path


def add(database: SqliteDatabase, number: int, queue_id: int | None, is_transient: int | None = None) -> None:
    body = b"body %d" % number
    row = (START + number, queue_id, RAW, body, is_transient, checksum("x", "a.b", RAW, body))
    database.connection.execute(ADD_MESSAGE, row)


def bodies(journal: BatchJournal, queue_id: int) -> list[bytes]:
    return [body_of(message.content) for message in journal.read(queue_id, 0, 0, 1000, 10**6).messages]


EXPECTED = {1: [b"body %d" % number for number in range(60)], 2: [b"body %d" % number for number in range(30, 60)]}


def test_a_broker_moves_the_messages_of_an_older_file_into_its_log(path: Path) -> None:
    with closing(file_journal(SqliteDatabase(path))) as journal:
        recovered = journal.recover()
        assert [recovered.queues["/", name].counts for name in ("q", "r")] == [{0: 60}, {0: 30}]
        assert recovered.queues["/", "q"].delivered_to == {0: START + 5}
        assert recovered.last_id >= START + 59
        assert {queue_id: bodies(journal, queue_id) for queue_id in EXPECTED} == EXPECTED
        messages = journal.read(1, 0, START + 29, 1000, 10**6).messages
        assert [message.attempts for message in messages] == [number % 3 for number in range(30, 60)]
        assert messages[0].origin == ("x", "a.b")


def test_the_library_opens_an_older_file(path: Path) -> None:
    with holtmq.open(path) as mq:
        assert [message.body for message in mq.queue("q").pop_many(100)] == EXPECTED[1]


@pytest.mark.parametrize("batches", range(1, 12, 2))
def test_a_move_that_is_interrupted_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    monkeypatch.setattr(log_transfer, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(log_transfer, "CHUNKS_AT_ONCE", 1)
    pack, left = log_transfer._pack_some, batches  # noqa: SLF001

    def interrupted(*arguments: object) -> object:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        return pack(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(log_transfer, "_pack_some", interrupted)
        with closing(file_journal(SqliteDatabase(path))) as journal, pytest.raises(KeyboardInterrupt):
            journal.recover()
    if batches % 4 == 1:
        with closing(file_journal(SqliteDatabase(path))) as journal:
            journal.recover()
            assert {queue_id: bodies(journal, queue_id) for queue_id in EXPECTED} == EXPECTED
    with holtmq.open(path) as mq:
        for queue_id, name in ((1, "q"), (2, "r")):
            assert [message.body for message in mq.queue(name).pop_many(100)] == EXPECTED[queue_id]


def test_a_long_move_reports_its_progress(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(log_transfer, "PROGRESS_S", 0.0)
    monkeypatch.setattr(log_transfer, "ROWS_AT_ONCE", 30)
    with caplog.at_level(logging.INFO), closing(file_journal(SqliteDatabase(path))) as journal:
        journal.recover()
    shown = [record.message for record in caplog.records]
    assert shown[0] == f"{path}: 30 messages moved into the broker's log"
    assert shown[-1] == f"{path}: 60 messages moved into the broker's log"
    caplog.clear()
    with caplog.at_level(logging.INFO), holtmq.open(path):
        assert caplog.records[-1].message == f"{path}: 60 messages taken from the broker's log"
