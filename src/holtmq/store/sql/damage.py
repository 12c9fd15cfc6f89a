"""Damaged messages in the file: what is not delivered is set aside, where an operator finds it."""

from __future__ import annotations

import logging

from holtmq.store.records import ID_CLOCK_BITS, DeliveryState
from holtmq.store.sql.database import Connection

log = logging.getLogger(__name__)

SET_ASIDE = f"""
UPDATE deliveries SET state = {DeliveryState.DAMAGED:d}, due_at = NULL, locked_at = NULL,
    settled_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE message_id = ? AND queue_id = ?
"""

KEEP_MESSAGE = """
INSERT OR IGNORE INTO messages (id, exchange, key_id, priority, created_at, body) VALUES (?, ?, ?, 0, ?, ?)
"""
KEEP_DELIVERY = f"""
INSERT OR IGNORE INTO deliveries (message_id, queue_id, state, priority, key_id, attempts)
VALUES (?, ?, {DeliveryState.DAMAGED:d}, 0, ?, 0)
"""


def set_aside(connection: Connection, message_id: int, queue_id: int) -> None:
    """Keep a damaged message from its consumers."""
    connection.execute(SET_ASIDE, (message_id, queue_id))


def keep_damaged_message(
    connection: Connection, message_id: int, queue_id: int, exchange: str, key_id: int, body: bytes
) -> None:
    """Store a damaged message of the log as a row, where an operator finds it. Its content is kept as it was read."""
    connection.execute(KEEP_MESSAGE, (message_id, exchange, key_id, message_id >> ID_CLOCK_BITS, body))
    connection.execute(KEEP_DELIVERY, (message_id, queue_id, key_id))
    set_aside(connection, message_id, queue_id)


def name_of_queue(connection: Connection, queue_id: int) -> str:
    found = connection.execute("SELECT name FROM queues WHERE id = ?", (queue_id,)).fetchone()
    return found[0] if found else f"#{queue_id}"


def report(message_id: int, queue: str, damage: str) -> None:
    """Log that a message is damaged."""
    log.error(
        "message %d of queue %r is damaged: %s; it is not delivered and stays in the file (holtmq queue list --state damaged)",
        message_id,
        queue,
        damage,
    )


def report_chunk(number: int, queue: str, damage: str) -> None:
    """Log that a chunk of the log is damaged."""
    log.error(
        "%d messages of queue %r are in a damaged chunk: %s; they are not delivered and stay in the file as one message "
        "(holtmq queue list --state damaged)",
        number,
        queue,
        damage,
    )


def report_stream(first_offset: int, number: int, stream: str, damage: str) -> None:
    """Log that messages of a stream are damaged. They stay where they are, so that the offsets of the others do, too."""
    log.error(
        "%d messages of stream %r from offset %d on are damaged: %s; they are not delivered and stay in the file",
        number,
        stream,
        first_offset,
        damage,
    )
