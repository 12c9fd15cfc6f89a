"""Damaged messages in the file: what is not delivered is set aside, where an operator finds it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holtmq.store.records import DeliveryState

log = logging.getLogger(__name__)

SET_ASIDE = f"""
UPDATE deliveries SET state = {DeliveryState.DAMAGED:d}, due_at = NULL, locked_at = NULL,
    settled_at = CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
WHERE message_id = ? AND queue_id = ?
"""


def set_aside(connection: sqlite3.Connection, message_id: int, queue_id: int) -> None:
    """Keep a damaged message from its consumers."""
    connection.execute(SET_ASIDE, (message_id, queue_id))


def report(message_id: int, queue: str, damage: str) -> None:
    """Log that a message is damaged."""
    log.error(
        "message %d of queue %r is damaged: %s; it is not delivered and stays in the file (holtmq queue list --state damaged)",
        message_id,
        queue,
        damage,
    )


def lenient_text(content: bytes) -> str:
    """Decode text that may be damaged. It is not as it was written then, so its checksum tells."""
    return content.decode(errors="replace")


@contextmanager
def reading_damaged_text(connection: sqlite3.Connection) -> Iterator[None]:
    """Let damaged text be read, instead of raising an error that would hide the messages around it."""
    connection.text_factory = lenient_text
    try:
        yield
    finally:
        connection.text_factory = str
