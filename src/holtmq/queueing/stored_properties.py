"""The AMQP properties of a stored message, whether the broker wrote it (as AMQP bytes) or the embedded library (as JSON)."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Protocol

from holtmq.table_json import table_from_json
from holtmq.wire.content import encode_properties


class StoredProperties(Protocol):
    """The columns of a stored message that hold its properties."""

    @property
    def priority(self) -> int: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def properties(self) -> str | None: ...
    @property
    def raw_properties(self) -> bytes | None: ...


def raw_properties_of(stored: StoredProperties) -> bytes:
    """Return the properties as AMQP encodes them. Every message of the embedded library is persistent."""
    if stored.raw_properties is not None:
        return stored.raw_properties
    if not stored.headers:
        return _encode(stored.priority, stored.properties)
    properties = json.loads(stored.properties) if stored.properties else {}
    headers = table_from_json(json.loads(stored.headers), "file")
    return encode_properties({"priority": stored.priority or None, **properties, "headers": headers, "delivery_mode": 2})


@lru_cache(1000)
def _encode(priority: int, properties: str | None) -> bytes:
    """Encode properties without headers. Most messages have the same ones."""
    present = json.loads(properties) if properties else {}
    return encode_properties({"priority": priority or None, **present, "delivery_mode": 2})
