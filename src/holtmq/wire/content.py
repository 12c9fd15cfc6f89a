"""The content of a message: its properties (AMQP 0-9-1 §4.2.6) and its body, kept as encoded frames.

A broker reads few properties and changes even fewer. A `Content` is therefore the bytes of the header frame and of one body
frame of any length, so that content can be sent as it was received. `on_channel` adapts it to another channel or frame size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache, lru_cache
from typing import Any, TypeAlias

from holtmq.errors import FrameError
from holtmq.table import FieldValue
from holtmq.wire.frames import BASIC, BODY, CONTENT_START, FRAME_START, HEADER, OVERHEAD
from holtmq.wire.tables import LAST_SECOND, decode_short_string, decode_table, encode_table, short_string

Content: TypeAlias = bytes
Buffer: TypeAlias = bytes | memoryview
NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
"""The properties of class basic, in the order of their flags, highest bit first."""
PASSED_OVER = frozenset(("content_type", "content_encoding", "correlation_id", "message_id", "type", "app_id", "cluster_id"))
"""Properties without effect on routing and queues. They are short strings, of which any bytes are valid."""
PERSISTENT = 2
PROPERTIES_AT = CONTENT_START.size
"""Offset of the properties in a header frame. They start with the flags."""
ESCAPED = "surrogateescape"
"""A property need not be UTF-8, as in RabbitMQ: what it is for is between publisher and consumer. Wrong bytes are escaped."""
OVERHEAD_WITHOUT_PROPERTIES = CONTENT_START.size + FRAME_START.size + 2
"""What content with a body has beyond properties and body: the rest of two frames."""
LIGHT_BYTES = 64
CONTENT_END = b"\xce"
CACHEABLE_BYTES = 512
"""Properties up to this size are kept in caches, decoded. Decoded headers take many times their size."""


class Properties:
    """The properties of a message, checked and kept as their bytes.

    Only those that routing and queues need are kept decoded, because a queue holds many messages.
    """

    __slots__ = (
        "_headers_at", "_headers_end", "adds_keys", "expiration", "has_headers", "has_terms", "is_light", "is_persistent",
        "is_plain", "priority", "raw", "reply_to", "user_id",
    )  # fmt: skip

    def __init__(self, raw: bytes) -> None:
        if len(raw) < 2:
            raise FrameError(f"expected the flags of a message's properties, got {len(raw)} bytes")
        self.raw = raw
        self._headers_at: int | None = None
        self._headers_end = 0
        self.is_persistent = False
        self.priority: int | None = None
        self.expiration: str | None = None
        self.user_id: str | None = None
        self.reply_to: str | None = None
        try:
            at = self._read_terms(raw)
        except IndexError:  # raised where a length is past the end
            at = 0
        if at != len(raw):
            self.without_headers()  # which says what is wrong
        self.has_headers = self._headers_at is not None
        self.adds_keys = self.has_headers and b"CC" in raw and (b"\x02CC" in raw or b"\x03BCC" in raw)
        """Whether the headers may contain further routing keys (CC, BCC)."""
        self.has_terms = bool(self.expiration is not None or self.priority)
        """Whether the message has a priority or an expiration."""
        self.is_light = not self.has_terms and len(raw) <= LIGHT_BYTES
        """Whether a queue has nothing to note about the message: neither terms, nor the memory that large properties take."""
        self.is_plain = not (self.has_headers or self.has_terms or self.user_id or self.reply_to)
        """Whether no property affects routing, queueing or permissions."""

    def _read_terms(self, raw: bytes) -> int:
        """Decode what routing and queues need, and return where the properties end.

        Every message with an id of its own passes here, hence a way of its own (benchmarks/broker.py). What is not needed is
        passed over.
        """
        at = 2
        for name in present_properties(raw[:2]):
            if name in PASSED_OVER:
                at += 1 + raw[at]
            elif name == "delivery_mode":
                self.is_persistent = raw[at] == PERSISTENT
                at += 1
            elif name == "headers":
                self._headers_at = at
                at = self._headers_end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
            elif name == "timestamp":
                at += 8
            elif name == "priority":
                self.priority = raw[at]
                at += 1
            else:
                value, at = decode_short_string(raw, at, ESCAPED)
                setattr(self, name, value)
        return at

    @property
    def headers(self) -> dict[str, FieldValue]:
        """The decoded headers, which the caller must not change."""
        if self._headers_at is None:
            return {}
        if len(self.raw) <= CACHEABLE_BYTES:
            return _decoded_headers(self.raw, self._headers_at)
        return decode_table(self.raw, self._headers_at)[0]

    def without_headers(self) -> dict[str, Any]:
        """Decode all properties that are set, except headers, and return them by name."""
        values: dict[str, Any] = {}
        at = 2
        for name in present_properties(self.raw[:2]):
            at = self._read(name, at, values)
        if at != len(self.raw):
            raise FrameError(f"expected the properties to end after {at} bytes, got {len(self.raw)}")
        return values

    def to_dict(self) -> dict[str, Any]:
        """Return all properties that are set, by name."""
        present = self.without_headers()
        if self._headers_at is not None:
            present["headers"] = self.headers
        return {name: present[name] for name in NAMES if name in present}

    def raw_headers(self) -> bytes:
        """Return the encoded table of the headers."""
        if self._headers_at is None:
            return bytes(4)
        return self.raw[self._headers_at : self._headers_end]

    def _read(self, name: str, at: int, values: dict[str, Any]) -> int:
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
                values[name] = raw[at]
                return at + 1
            case "timestamp":
                if at + 8 > len(raw):
                    raise FrameError("expected a timestamp, got the end of the properties")
                seconds = int.from_bytes(raw[at : at + 8], "big")
                values[name] = datetime.fromtimestamp(seconds, UTC) if seconds <= LAST_SECOND else seconds
                return at + 8
            case _:
                values[name], after = decode_short_string(raw, at, ESCAPED)
                return after


@lru_cache(1000)
def _decoded_headers(raw: bytes, at: int) -> dict[str, FieldValue]:
    return decode_table(raw, at)[0]


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
                values.append(short_string(value, ESCAPED))
    return (flags << 2).to_bytes(2, "big") + b"".join(values)


def make_content(raw_properties: bytes, body: bytes, channel: int = 1) -> Content:
    """Encode content from its properties and body."""
    return join_content(raw_properties, (body,), len(body), channel)


def join_content(raw_properties: bytes, pieces: Iterable[bytes], size: int, channel: int = 1) -> Content:
    """Encode content from its properties and the pieces of its body, copying the body once."""
    start = content_start(raw_properties, size, channel)
    return b"".join((start, *pieces, CONTENT_END)) if size else start


def content_start(raw_properties: bytes, size: int, channel: int = 1) -> bytes:
    """Encode what comes before a body of this size. `CONTENT_END` follows the body, if there is one."""
    header_size = CONTENT_START.size - FRAME_START.size + len(raw_properties)
    header = CONTENT_START.pack(HEADER, channel, header_size, BASIC, 0, size) + raw_properties + b"\xce"
    return header + FRAME_START.pack(BODY, channel, size) if size else header


def raw_properties_of(content: Content) -> bytes:
    """Return the encoded properties of content."""
    return content[PROPERTIES_AT : int.from_bytes(content[3:7], "big") + FRAME_START.size]


def sizes_of(raw_properties: bytes, contents: Iterable[Content]) -> list[int]:
    """Return the lengths of the bodies of contents that have these properties."""
    overhead = OVERHEAD_WITHOUT_PROPERTIES + len(raw_properties)
    return [max(0, len(content) - overhead) for content in contents]


def body_of(content: Content) -> bytes:
    """Return the body of content."""
    return content[_body_at(content) + FRAME_START.size : -1]


def on_channel(content: Content, channel: int, frame_max: int) -> bytes:
    """Return the frames of content for a channel, with the body split into frames of at most `frame_max` bytes."""
    return b"".join(frames_on_channel(content, channel, frame_max))


def frames_on_channel(content: Content, channel: int, frame_max: int) -> list[Buffer]:
    """Return the pieces of `on_channel`. A body that takes several frames is not copied: its pieces are memory views."""
    number, body_at = channel.to_bytes(2, "big"), _body_at(content)
    pieces: list[Buffer] = [b"\x02", number, content[3:body_at]]
    start, end = body_at + FRAME_START.size, len(content) - 1
    largest = frame_max - OVERHEAD
    if start >= end:
        return pieces
    if end - start <= largest:
        return [*pieces, b"\x03", number, content[body_at + 3 :]]
    view = memoryview(content)
    for at in range(start, end, largest):
        piece = view[at : min(at + largest, end)]
        pieces += (FRAME_START.pack(BODY, channel, len(piece)), piece, b"\xce")
    return pieces


def _body_at(content: Content) -> int:
    """Return where the body frame starts, if there is one."""
    return int.from_bytes(content[3:7], "big") + OVERHEAD
