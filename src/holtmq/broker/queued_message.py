"""A message on its way through the broker."""

from __future__ import annotations

import json

from holtmq.store.records import IN_MEMORY, SHARED, StoredRow
from holtmq.table_json import table_from_json
from holtmq.wire.content import Content, Properties, encode_properties, make_content
from holtmq.wire.tables import short_string

PROPERTIES_KEPT = 1000


class Origin:
    """Where a message was published: the exchange and the routing key, and how the wire spells the end of a method with
    both, which is the same in every delivery."""

    __slots__ = ("address", "exchange", "routing_key")

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key
        self.address = short_string(exchange) + short_string(routing_key) + b"\xce"


class QueuedMessage:
    """A message, once, however many queues it is in; its id is its place in the order of each of them."""

    __slots__ = ("content", "copies", "id", "is_restored", "origin", "properties", "size", "stored")

    def __init__(
        self, message_id: int, origin: Origin, properties: Properties, content: Content, size: int, copies: int
    ) -> None:
        self.id = message_id
        self.origin = origin
        self.properties = properties
        self.content = content
        """Empty where it was let go of, because the file has it and a consumer holds the message."""
        self.size = size
        """The length of the body."""
        self.copies = copies
        """How many queues it was routed to."""
        self.stored = IN_MEMORY
        self.is_restored = False
        """Whether it was read from the file, for one queue alone."""

    @property
    def body(self) -> bytes:
        return self.content[-self.size - 1 : -1] if self.size else b""  # it is the last in its frames, before the end mark


def restore(row: StoredRow, cache: dict[bytes, Properties]) -> QueuedMessage:
    raw = row.raw_properties if row.raw_properties is not None else _properties_from_json(row)
    properties = known_properties(raw, cache)
    content = make_content(raw, row.body)
    message = QueuedMessage(row.id, Origin(row.exchange, row.routing_key), properties, content, len(row.body), 1)
    message.stored = SHARED
    message.is_restored = True
    return message


def known_properties(raw: bytes, cache: dict[bytes, Properties]) -> Properties:
    """Decode properties; most messages have the same as some before."""
    properties = cache.get(raw)
    if properties is None:
        if len(cache) >= PROPERTIES_KEPT:
            cache.clear()
        properties = cache[raw] = Properties(raw)
    return properties


def _properties_from_json(row: StoredRow) -> bytes:
    properties = json.loads(row.properties) if row.properties else {}
    headers = table_from_json(json.loads(row.headers), "file") if row.headers else None
    own = {"headers": headers, "delivery_mode": 2, "priority": row.priority or None}
    return encode_properties({**properties, **own})
