"""A message in the broker's queues."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from holtmq.queueing import stored_properties
from holtmq.store.chunk import Chunk, LoggedMessage, Unwritten
from holtmq.store.records import StoredRow
from holtmq.wire.content import (
    CACHEABLE_BYTES,
    LIGHT_BYTES,
    PROPERTIES_AT,
    Content,
    Properties,
    make_content,
    raw_properties_of,
)
from holtmq.wire.tables import short_string

NO_NAMES = ("", "")
NO_START = b"\xff"
"""What no message has."""
PROPERTIES_KEPT = 1000
ORIGINS_KEPT = 1000


class Origin:
    """The exchange and routing key that a message was published with.

    `address` is their encoding at the end of a basic.deliver frame, the same in every delivery.
    """

    __slots__ = ("address", "exchange", "is_light", "routing_key")

    def __init__(self, exchange: str, routing_key: str, address: bytes | None = None) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = address or _known_short_string(exchange) + short_string(routing_key) + b"\xce"
        self.is_light = len(self.address) <= LIGHT_BYTES
        """Whether a queue need not count its memory."""

    @property
    def names(self) -> tuple[str, str]:
        return self.exchange, self.routing_key


_known_short_string = lru_cache(1000)(short_string)


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
        self.stored: Chunk | Unwritten | None = None
        """The chunk of the log that has the message, if it is stored."""
        self.is_restored = False
        """Whether it was read from the file, for one queue only."""

    @property
    def body(self) -> bytes:
        return self.content[-self.size - 1 : -1] if self.size else b""  # the end of the last frame, before its end mark

    def copy(self) -> QueuedMessage:
        """Return a copy that keeps its content when that of the original is released, and is stored by itself."""
        return QueuedMessage(self.id, self.origin, self.properties, self.content, self.size, self.copies)

    def with_properties(self, raw_properties: bytes) -> QueuedMessage:
        """Return a copy for delivery, with other properties."""
        content = make_content(raw_properties, self.body)
        return QueuedMessage(self.id, self.origin, Properties(raw_properties), content, self.size, self.copies)


class Restorer:
    """Turns stored messages into queued ones. Most of them share properties and origin with an earlier one."""

    def __init__(self, properties: dict[bytes, Properties]) -> None:
        self._properties = properties
        self._origins: dict[tuple[str, str], Origin] = {}

    def restore(self, logged: LoggedMessage) -> QueuedMessage:
        return self.restore_all((logged,))[0]

    def restore_all(self, logged: Iterable[LoggedMessage]) -> list[QueuedMessage]:
        """Restore messages of which most are like the one before. On the hot path of a backlog (benchmarks/broker.py)."""
        messages = []
        names, start = NO_NAMES, NO_START
        for message_id, its_names, content, size, _, _, chunk, _ in logged:
            if its_names is not names:
                names, origin = its_names, self._origins.get(its_names) or self.origin(its_names)
            if not content.startswith(start):
                raw = raw_properties_of(content)
                properties = self._properties.get(raw) or known_properties(raw, self._properties)
                start = content[: PROPERTIES_AT + len(raw)]
            message = QueuedMessage(message_id, origin, properties, content, size, 1)
            message.stored = chunk
            message.is_restored = True
            messages.append(message)
        return messages

    def restore_row(self, row: StoredRow) -> QueuedMessage:
        """Return a message that has a row of its own."""
        raw = stored_properties.raw_properties_of(row)
        origin = Origin(row.exchange, row.routing_key)
        properties = known_properties(raw, self._properties)
        return QueuedMessage(row.id, origin, properties, make_content(raw, row.body), len(row.body), 1)

    def origin(self, names: tuple[str, str]) -> Origin:
        """Return the origin with this exchange and routing key."""
        known = self._origins.get(names)
        if known is not None:
            return known
        if len(self._origins) >= ORIGINS_KEPT:
            self._origins.clear()
        origin = self._origins[names] = Origin(*names)
        return origin


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
