"""The checksum of a stored message (CRC-32). It covers what a consumer receives: exchange, routing key, properties and body.

Storage can return other bytes than were written, without an error. A checksum is stored with each message and verified
whenever the message is read. A message that is damaged is not delivered; it stays in the file for inspection.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol
from zlib import crc32

ORIGINS_KEPT = 10_000


class ChecksummedMessage(Protocol):
    """The columns of a stored message that its checksum covers, and the checksum itself."""

    @property
    def exchange(self) -> str: ...
    @property
    def routing_key(self) -> str | None: ...
    @property
    def headers(self) -> str | None: ...
    @property
    def properties(self) -> str | None: ...
    @property
    def raw_properties(self) -> bytes | None: ...
    @property
    def body(self) -> bytes | None: ...
    @property
    def checksum(self) -> int | None: ...


@lru_cache(ORIGINS_KEPT)
def origin_checksum(exchange: str, routing_key: str) -> int:
    """Return the checksum of exchange and routing key, where that of a message starts. Most messages share them."""
    return crc32(f"{exchange}\0{routing_key}\0".encode())


def checksum(exchange: str, routing_key: str, properties: bytes, body: bytes) -> int:
    """Return the checksum of a message. Its properties are AMQP's encoding of them, or JSON."""
    return crc32(body, crc32(properties, origin_checksum(exchange, routing_key)))


def json_checksum(exchange: str, routing_key: str, headers: str | None, properties: str | None, body: bytes) -> int:
    """Return the checksum of a message whose headers and other properties are stored as JSON."""
    start = origin_checksum(exchange, routing_key)
    if headers or properties:
        start = crc32(((headers or "") + (properties or "")).encode(), start)
    return crc32(body, start)


def damage_of(stored: ChecksummedMessage) -> str | None:
    """Return what is wrong with a stored message, or None if it is as it was written or has no checksum."""
    if stored.routing_key is None or stored.body is None:
        return "it has no routing key or no body any more"
    if stored.checksum is None:
        return None
    exchange, key, raw = stored.exchange, stored.routing_key, stored.raw_properties
    try:
        if raw is None:
            found = json_checksum(exchange, key, stored.headers, stored.properties, stored.body)
        else:
            found = checksum(exchange, key, raw, stored.body)
    except TypeError as error:  # damage can change the type of a value
        return str(error)
    return None if found == stored.checksum else f"its checksum is {found}, expected {stored.checksum}"
