"""The content of a message: its properties (AMQP 0-9-1 §4.2.6) and its body, kept as encoded frames.

A broker reads few properties and changes even fewer. A `Content` is therefore the bytes of the header frame and of one body
frame of any length, so that content can be sent as it was received. `on_channel` adapts it to another channel or frame size.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, TypeAlias

from holtmq.errors import FrameError
from holtmq.table import FieldValue
from holtmq.wire.frames import BASIC, BODY, CONTENT_START, FRAME_START, HEADER, OVERHEAD
from holtmq.wire.tables import LAST_SECOND, decode_short_string, decode_table, encode_table, short_string

Content: TypeAlias = bytes
NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""The properties of class basic, in the order of their flags, highest bit first."""
PERSISTENT = 2
PROPERTIES_AT = CONTENT_START.size
"""Offset of the properties in a header frame. They start with the flags."""


class Properties:
    """The decoded properties of a message.

    The properties that routing and queues need are decoded at once. Headers are long and seldom needed, so they are decoded
    on first access.
    """

    def __init__(self, raw: bytes) -> None:
        if len(raw) < 2:
            raise FrameError(f"expected the flags of a message's properties, got {len(raw)} bytes")
        self.raw = raw
        self._headers_at: int | None = None
        self._values: dict[str, Any] = {}
        at = 2
        for name in present_properties(raw[:2]):
            at = self._read(name, at)
        if at != len(raw):
            raise FrameError(f"expected the properties to end after {at} bytes, got {len(raw)}")
        self.is_persistent: bool = self._values.get("delivery_mode") == PERSISTENT
        self.priority: int | None = self._values.get("priority")
        self.expiration: str | None = self._values.get("expiration")
        self.user_id: str | None = self._values.get("user_id")
        self.reply_to: str | None = self._values.get("reply_to")
        self.has_headers = self._headers_at is not None
        self.adds_keys = self.has_headers and (b"\x02CC" in raw or b"\x03BCC" in raw)
        """Whether the headers may contain further routing keys (CC, BCC)."""
        self.has_terms = bool(self.expiration is not None or self.priority)
        """Whether the message has a priority or an expiration."""
        self.is_plain = not (self.has_headers or self.has_terms or self.user_id or self.reply_to)
        """Whether no property affects routing, queueing or permissions."""

    @cached_property
    def headers(self) -> dict[str, FieldValue]:
        return {} if self._headers_at is None else decode_table(self.raw, self._headers_at)[0]

    def without_headers(self) -> dict[str, Any]:
        """Return all properties that are set, except headers, by name."""
        return dict(self._values)

    def to_dict(self) -> dict[str, Any]:
        """Return all properties that are set, by name."""
        present = self._values if self._headers_at is None else {**self._values, "headers": self.headers}
        return {name: present[name] for name in NAMES if name in present}

    def raw_headers(self) -> bytes:
        """Return the encoded table of the headers."""
        if self._headers_at is None:
            return bytes(4)
        return self.raw[self._headers_at : self._headers_end]

    def _read(self, name: str, at: int) -> int:
        raw = self.raw
        match name:
            case "headers":
                if at + 4 > len(raw):
                    raise FrameError("expected a table of headers, got the end of the properties")
                self._headers_at = at
                self._headers_end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
                if self._headers_end > len(raw):
                    raise FrameError(f"expected headers within {len(raw)} bytes, got a table up to byte {self._headers_end}")
                return self._headers_end
            case "delivery_mode" | "priority":
                if at >= len(raw):
                    raise FrameError(f"expected {name}, got the end of the properties")
                self._values[name] = raw[at]
                return at + 1
            case "timestamp":
                if at + 8 > len(raw):
                    raise FrameError("expected a timestamp, got the end of the properties")
                seconds = int.from_bytes(raw[at : at + 8], "big")
                self._values[name] = datetime.fromtimestamp(seconds, UTC) if seconds <= LAST_SECOND else seconds
                return at + 8
            case _:
                self._values[name], after = decode_short_string(raw, at)
                return after


@cache
def present_properties(flags: bytes) -> tuple[str, ...]:
    """Return the names of the properties that are set. Cached, because few combinations of flags occur."""
    number = int.from_bytes(flags, "big")
    if number & 3:
        raise FrameError(f"expected flags of the 14 properties of class basic, got {number:#06x}")
    return tuple(name for place, name in enumerate(NAMES) if number & 0x8000 >> place)


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Encode properties, given by name. `headers` may be a table or an encoded table."""
    flags, values = 0, []
    for name in NAMES:
        flags <<= 1
        value = properties.get(name)
        if value is None:
            continue
        flags |= 1
        match name:
            case "headers":
                values.append(value if isinstance(value, bytes) else encode_table(value))
            case "delivery_mode" | "priority":
                values.append(bytes((value,)))
            case "timestamp":
                seconds = int(value.timestamp()) if isinstance(value, datetime) else value
                values.append(seconds.to_bytes(8, "big"))
            case _:
                values.append(short_string(value))
    return (flags << 2).to_bytes(2, "big") + b"".join(values)


def make_content(raw_properties: bytes, body: bytes, channel: int = 1) -> Content:
    """Encode content from its parts."""
    header_size = CONTENT_START.size - FRAME_START.size + len(raw_properties)
    header = CONTENT_START.pack(HEADER, channel, header_size, BASIC, 0, len(body)) + raw_properties + b"\xce"
    if not body:
        return header
    return b"".join((header, FRAME_START.pack(BODY, channel, len(body)), body, b"\xce"))


def raw_properties_of(content: Content) -> bytes:
    """Return the encoded properties of content."""
    return content[PROPERTIES_AT : _body_at(content) - 1]


def body_of(content: Content) -> bytes:
    """Return the body of content."""
    return content[_body_at(content) + FRAME_START.size : -1]


def on_channel(content: Content, channel: int, frame_max: int) -> bytes:
    """Return the frames of content for a channel, with the body split into frames of at most `frame_max` bytes."""
    number, body_at = channel.to_bytes(2, "big"), _body_at(content)
    header = b"".join((b"\x02", number, content[3:body_at]))
    start, end = body_at + FRAME_START.size, len(content) - 1
    largest = frame_max - OVERHEAD
    if start >= end:
        return header
    if end - start <= largest:
        return b"".join((header, b"\x03", number, content[body_at + 3 :]))
    pieces = [header]
    for at in range(start, end, largest):
        piece = content[at : min(at + largest, end)]
        pieces += (FRAME_START.pack(BODY, channel, len(piece)), piece, b"\xce")
    return b"".join(pieces)


def _body_at(content: Content) -> int:
    """Return where the body frame starts, if there is one."""
    return int.from_bytes(content[3:7], "big") + OVERHEAD
