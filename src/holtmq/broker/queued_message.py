"""A message in the broker's queues."""

from __future__ import annotations

from holtmq.queueing.stored_properties import raw_properties_of
from holtmq.store.records import IN_MEMORY, SHARED, StoredRow
from holtmq.wire.content import CACHEABLE_BYTES, Content, Properties, make_content
from holtmq.wire.tables import short_string

PROPERTIES_KEPT = 1000


class Origin:
    """The exchange and routing key that a message was published with.

    `address` is their encoding at the end of a basic.deliver frame, the same in every delivery.
    """

    __slots__ = ("address", "exchange", "routing_key")

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = short_string(exchange) + short_string(routing_key) + b"\xce"


class QueuedMessage:
    """A message, shared by all queues that it is in. Its id is its position in the order of each of them."""

    __slots__ = ("content", "copies", "id", "is_restored", "origin", "properties", "size", "stored")

    def __init__(
        self, message_id: int, origin: Origin, properties: Properties, content: Content, size: int, copies: int
    ) -> None:
        self.id = message_id
        self.origin = origin
        self.properties = properties
        self.content = content
        """Empty if it was released because the file has it and a consumer holds the message."""
        self.size = size
        """Length of the body in bytes."""
        self.copies = copies
        """Number of queues that it was routed to."""
        self.stored = IN_MEMORY
        self.is_restored = False
        """Whether it was read from the file, for one queue only."""

    @property
    def body(self) -> bytes:
        return self.content[-self.size - 1 : -1] if self.size else b""  # the end of the last frame, before its end mark

    def copy(self) -> QueuedMessage:
        """Return a copy that keeps its content when that of the original is released."""
        return QueuedMessage(self.id, self.origin, self.properties, self.content, self.size, self.copies)

    def with_properties(self, raw_properties: bytes) -> QueuedMessage:
        """Return a copy for delivery, with other properties."""
        content = make_content(raw_properties, self.body)
        return QueuedMessage(self.id, self.origin, Properties(raw_properties), content, self.size, self.copies)


def restore(row: StoredRow, cache: dict[bytes, Properties]) -> QueuedMessage:
    raw = raw_properties_of(row)
    properties = known_properties(raw, cache)
    content = make_content(raw, row.body)
    message = QueuedMessage(row.id, Origin(row.exchange, row.routing_key), properties, content, len(row.body), 1)
    message.stored = SHARED
    message.is_restored = True
    return message


def known_properties(raw: bytes, cache: dict[bytes, Properties]) -> Properties:
    """Decode properties through a cache: most messages have the same ones as an earlier message."""
    properties = cache.get(raw)
    if properties is None:
        properties = Properties(raw)
        if len(raw) <= CACHEABLE_BYTES:
            if len(cache) >= PROPERTIES_KEPT:
                cache.clear()
            cache[raw] = properties
    return properties
