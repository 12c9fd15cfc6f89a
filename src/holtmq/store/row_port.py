"""The port of messages that have a row each, as a broker sees them: those that the embedded library has left, delayed ones, and
damaged ones. Every method works within the caller's transaction, whose connection it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from holtmq.store.records import StoredRow


class UnpackedMessage(NamedTuple):
    """A message of the log that gets a row."""

    id: int
    exchange: str
    routing_key: str
    key_id: int
    raw_properties: bytes
    body: bytes
    checksum: int


class UnpackedDelivery(NamedTuple):
    """Such a message in a queue."""

    message_id: int
    queue_id: int
    priority: int
    attempts: int
    expires_at: int | None


class RowPort(Protocol):
    def has_any(self, connection: Any) -> bool:
        """Return whether any message has a row."""

    def tidy_up(self, connection: Any) -> None:
        """Make all messages of existing queues ready that no consumer holds any more, and remove the others."""

    def last_id(self, connection: Any) -> int:
        """Return the highest id of a message so far."""

    def next_queue_id(self, connection: Any) -> int: ...
    def next_batch(self, connection: Any, after_id: int, limit: int, most_bytes: int) -> int | None:
        """Return up to which id ready messages are within the limits, or None if there are none after `after_id`."""

    def ready(self, connection: Any, after_id: int, up_to: int) -> list[tuple[int, StoredRow]]:
        """Return the ready messages between two ids, each with its queue, in the order of their ids."""

    def drop_ready(self, connection: Any, after_id: int, up_to: int) -> None:
        """Remove the rows of the ready messages between two ids."""

    def unpack(self, connection: Any, messages: Collection[UnpackedMessage], deliveries: Collection[UnpackedDelivery]) -> None:
        """Give messages of the log rows, as ready messages."""

    def unpacked(self, connection: Any) -> None:
        """Note that all messages of the log have rows now."""

    def due(self, connection: Any, after_ms: int, now_ms: int) -> Sequence[tuple[int, StoredRow]]:
        """Return the delayed messages that become available between two times, with the ids of their queues."""

    def next_due(self, connection: Any, after_ms: int) -> int | None:
        """Return when the next delayed message after this time becomes available."""

    def drop(self, connection: Any, message_id: int, queue_id: int) -> None:
        """Remove the row of a message in a queue."""

    def forget_some(self, connection: Any, queue_id: int) -> bool:
        """Remove some rows of a deleted queue. Return whether there were any."""

    def set_aside(self, connection: Any, message_id: int, queue_id: int) -> None:
        """Keep a damaged message from its consumers."""

    def keep_damaged(self, connection: Any, message_id: int, queue_id: int, exchange: str, key_id: int, content: bytes) -> None:
        """Store a damaged message of the log as a row, where an operator finds it. Its content is kept as it was read."""
