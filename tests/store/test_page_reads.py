"""A page that is read in another thread is as good as one that is read at once, whatever is committed meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.steps import complete
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.file_store import file_journal
from holtmq.topology import Queue
from holtmq.wire.content import Properties, encode_properties, make_content

RAW = encode_properties({"delivery_mode": 2})


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[BatchJournal]:
    with closing(file_journal(SqliteDatabase(tmp_path / "a.db", durability="off"))) as journal:
        journal.recover()
        yield journal


def commit(journal: BatchJournal) -> None:
    journal.gather()
    assert journal.begin()
    complete(journal.write())
    journal.commit()


def stored(journal: BatchJournal, queue_id: int, number: int) -> list[QueuedMessage]:
    """Store messages in one chunk of a queue."""
    contents = [make_content(RAW, b"%d" % place) for place in range(1, number + 1)]
    messages = [
        QueuedMessage(place, Origin("", "k"), Properties(RAW), content, 1, 1) for place, content in enumerate(contents, 1)
    ]
    for message in messages:
        journal.add(message, queue_id, 0, None)
    commit(journal)
    return messages


def gone(path: Path) -> tuple[int, int]:
    """Return what the file says of the only chunk: the number of messages, and the bits of those that have left."""
    with closing(sqlite3.connect(path)) as connection:
        number, bits = connection.execute("SELECT number, gone FROM log_slices").fetchone()
    return number, int.from_bytes(bits or b"", "little")


def test_acknowledgements_that_are_committed_while_a_page_is_read_are_kept(journal: BatchJournal, tmp_path: Path) -> None:
    queue_id = journal.add_queue(Queue("q"))
    messages = stored(journal, queue_id, 6)
    request = journal.request_page(queue_id, 0, 3, 100, 100)
    journal.hold()
    page = journal.fetch(request)  # it has the chunk as it is now
    while messages:
        acknowledged = messages.pop(0)
        if acknowledged.id <= 3:
            journal.remove(acknowledged, queue_id)
    del acknowledged
    commit(journal)  # nobody else knows the chunk any more
    reading = journal.attach(page)
    journal.release()
    assert [message.id for message in reading.messages] == [4, 5, 6]
    assert gone(tmp_path / "a.db") == (3, 0b000111)
    first = reading.messages[0]
    late = QueuedMessage(first.id, Origin("", "k"), Properties(RAW), first.content, 1, 1)
    late.stored = first.chunk
    journal.remove(late, queue_id)
    commit(journal)
    assert gone(tmp_path / "a.db") == (2, 0b001111)


def test_a_page_shows_what_is_committed_only(journal: BatchJournal) -> None:
    queue_id = journal.add_queue(Queue("q"))
    stored(journal, queue_id, 2)
    journal.add(QueuedMessage(3, Origin("", "k"), Properties(RAW), make_content(RAW, b"3"), 1, 1), queue_id, 0, None)
    journal.gather()
    assert journal.begin()
    complete(journal.write())
    journal.hold()
    page = journal.fetch(journal.request_page(queue_id, 0, 0, 100, 100))
    journal.commit()
    assert [message.id for message in journal.attach(page).messages] == [1, 2]
    journal.release()
