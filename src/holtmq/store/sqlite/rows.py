"""Messages with rows of their own in a SQLite file, as a broker sees them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence
from importlib.resources import files

from holtmq.store.records import ID_CLOCK_BITS, DeliveryState, StoredRow
from holtmq.store.row_port import RowPort, UnpackedDelivery, UnpackedMessage
from holtmq.store.sqlite.damaged_text import reading_damaged_text
from holtmq.store.sqlite.database import statements
from holtmq.store.sqlite.message_store import CHANGE_ORDER, FREE_MESSAGE, SqliteMessageStore

REMOVED_ROWS = 50
"""Number of rows of a deleted queue that are removed in one step. SQLite visits every page of a body."""
TIDY_UP = tuple(statements(files("holtmq.store.sqlite").joinpath("recovery.sql").read_text()))
LAST_ID = "SELECT max((SELECT coalesce(max(id), 0) FROM messages), indexed_to) FROM state"
NEXT_QUEUE_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'queues'), 0) + 1"
NEXT_READY = """
SELECT message_id, length(body) FROM deliveries LEFT JOIN messages ON messages.id = message_id
WHERE state = 0 AND message_id > ? ORDER BY message_id
"""
COLUMNS = """
SELECT deliveries.queue_id, message_id, exchange, key, deliveries.priority, deliveries.expires_at, deliveries.attempts, headers,
       properties, raw_properties, body, checksum
FROM deliveries LEFT JOIN messages ON messages.id = message_id LEFT JOIN routing_keys ON routing_keys.id = messages.key_id
"""
READY = f"{COLUMNS} WHERE state = 0 AND message_id > ? AND message_id <= ? ORDER BY message_id"
DUE = f"{COLUMNS} WHERE state = 5 AND deliveries.due_at > ? AND deliveries.due_at <= ?"
DROP_READY = "DELETE FROM deliveries WHERE state = 0 AND message_id > ? AND message_id <= ?"
FREE_RANGE = """
DELETE FROM messages WHERE id > ? AND id <= ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE message_id = messages.id)
"""
UNPACK_MESSAGE = """
INSERT OR IGNORE INTO messages (id, exchange, key_id, priority, created_at, raw_properties, body, checksum)
VALUES (?, ?, ?, 0, ?, ?, ?, ?)
"""
UNPACK_DELIVERY = """
INSERT OR IGNORE INTO deliveries (message_id, queue_id, state, priority, key_id, attempts, expires_at)
VALUES (?, ?, 0, ?, ?, ?, ?)
"""
FORGET_ROWS = tuple(
    f"""
    DELETE FROM deliveries WHERE queue_id = ?1 AND message_id IN (
        SELECT message_id FROM deliveries WHERE queue_id = ?1 AND {condition} LIMIT {REMOVED_ROWS}
    )
    RETURNING message_id
    """
    for condition in ("state = 0", "due_at IS NOT NULL", "settled_at IS NOT NULL")  # each has its index
)
SET_ASIDE = f"""
UPDATE deliveries SET state = {DeliveryState.DAMAGED:d}, due_at = NULL, locked_at = NULL, settled_at = ?
WHERE message_id = ? AND queue_id = ?
"""
KEEP_MESSAGE = """
INSERT OR IGNORE INTO messages (id, exchange, key_id, priority, created_at, body) VALUES (?, ?, ?, 0, ?, ?)
"""
KEEP_DELIVERY = f"""
INSERT OR IGNORE INTO deliveries (message_id, queue_id, state, priority, key_id, attempts)
VALUES (?, ?, {DeliveryState.DAMAGED:d}, 0, ?, 0)
"""


class SqliteRows(RowPort):
    def __init__(self, messages: SqliteMessageStore) -> None:
        self._messages = messages

    def has_any(self, connection: sqlite3.Connection) -> bool:
        return connection.execute("SELECT 1 FROM messages LIMIT 1").fetchone() is not None

    def tidy_up(self, connection: sqlite3.Connection) -> None:
        self._messages.index_arrivals(connection)
        for statement in TIDY_UP:
            connection.execute(statement)

    def last_id(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute(LAST_ID).fetchone()[0])

    def next_queue_id(self, connection: sqlite3.Connection) -> int:
        return int(connection.execute(NEXT_QUEUE_ID).fetchone()[0])

    def next_batch(self, connection: sqlite3.Connection, after_id: int, limit: int, most_bytes: int) -> int | None:
        last, size = None, 0
        for number, (message_id, length) in enumerate(connection.execute(NEXT_READY, (after_id,))):
            if message_id != last and (number >= limit or size >= most_bytes):
                break
            last, size = message_id, size + (length or 0)
        return last

    def ready(self, connection: sqlite3.Connection, after_id: int, up_to: int) -> list[tuple[int, StoredRow]]:
        with reading_damaged_text(connection):
            rows = connection.execute(READY, (after_id, up_to)).fetchall()
        return [(queue_id, StoredRow(*values)) for queue_id, *values in rows]

    def drop_ready(self, connection: sqlite3.Connection, after_id: int, up_to: int) -> None:
        connection.execute(DROP_READY, (after_id, up_to))
        connection.execute(FREE_RANGE, (after_id, up_to))

    def unpack(
        self,
        connection: sqlite3.Connection,
        messages: Collection[UnpackedMessage],
        deliveries: Collection[UnpackedDelivery],
    ) -> None:
        keys = {message.id: message.key_id for message in messages}
        connection.executemany(UNPACK_MESSAGE, [
            (message.id, message.exchange, message.key_id, message.id >> ID_CLOCK_BITS, message.raw_properties, message.body,
             message.checksum)
            for message in messages
        ])  # fmt: skip
        connection.executemany(UNPACK_DELIVERY, [
            (each.message_id, each.queue_id, each.priority, keys[each.message_id], each.attempts, each.expires_at)
            for each in deliveries
        ])  # fmt: skip

    def unpacked(self, connection: sqlite3.Connection) -> None:
        connection.execute(CHANGE_ORDER)

    def due(self, connection: sqlite3.Connection, after_ms: int, now_ms: int) -> Sequence[tuple[int, StoredRow]]:
        return [(queue_id, StoredRow(*values)) for queue_id, *values in connection.execute(DUE, (after_ms, now_ms))]

    def next_due(self, connection: sqlite3.Connection, after_ms: int) -> int | None:
        query = "SELECT min(due_at) FROM deliveries WHERE state = 5 AND due_at > ?"
        return connection.execute(query, (after_ms,)).fetchone()[0]  # type: ignore[no-any-return]

    def drop(self, connection: sqlite3.Connection, message_id: int, queue_id: int) -> None:
        self._messages.remove(connection, queue_id, message_id)

    def forget_some(self, connection: sqlite3.Connection, queue_id: int) -> bool:
        for statement in FORGET_ROWS:
            if removed := connection.execute(statement, (queue_id,)).fetchall():
                connection.executemany(FREE_MESSAGE, [(message_id, message_id) for (message_id,) in removed])
                return True
        return False

    def set_aside(self, connection: sqlite3.Connection, message_id: int, queue_id: int) -> None:
        connection.execute(SET_ASIDE, (int(time.time() * 1000), message_id, queue_id))

    def keep_damaged(
        self, connection: sqlite3.Connection, message_id: int, queue_id: int, exchange: str, key_id: int, content: bytes
    ) -> None:
        connection.execute(KEEP_MESSAGE, (message_id, exchange, key_id, message_id >> ID_CLOCK_BITS, content))
        connection.execute(KEEP_DELIVERY, (message_id, queue_id, key_id))
        self.set_aside(connection, message_id, queue_id)
