"""Reports of damaged messages: what is not delivered is set aside, where an operator finds it."""

from __future__ import annotations

import logging

from holtmq.store.sql.sql_database import Connection

log = logging.getLogger(__name__)


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
