"""The `x-stream-offset` header, by which a stream tells a consumer the offset of each message."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from holtmq.errors import FrameError
from holtmq.queueing.stream_filter import filter_value
from holtmq.wire.content import CACHEABLE_BYTES, Content, Properties, encode_properties
from holtmq.wire.frames import BASIC, BODY, CONTENT_START, FRAME_START, HEADER
from holtmq.wire.tables import drop_field, short_string

OFFSET_HEADER = "x-stream-offset"
OFFSET_BYTES = 8
FIELD = short_string(OFFSET_HEADER) + b"l"
"""The field of the headers, up to its value: a 64-bit integer, as RabbitMQ sends it."""
BEFORE_HEADERS, HAS_HEADERS = (0x8000, 0x4000), 0x2000
"""Flags of properties: content type and content encoding, which come before the headers, and the headers."""
HEADER_FIELDS = CONTENT_START.size - FRAME_START.size


class OffsetHeader:
    """Properties that many messages share, divided where the offset of each goes. They are not decoded for this."""

    __slots__ = ("_after", "_before", "_filter_values", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._filter_values: tuple[str | None, ...] = ()
        if OFFSET_HEADER.encode() in raw:
            raw = _without_offset(raw)
        flags, at = int.from_bytes(raw[:2], "big"), 2
        for flag in BEFORE_HEADERS:
            if flags & flag:
                at += 1 + raw[at]
        table, end = b"", at
        if flags & HAS_HEADERS:
            end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
            table = raw[at + 4 : end]
        length = len(table) + len(FIELD) + OFFSET_BYTES
        start = (flags | HAS_HEADERS).to_bytes(2, "big") + raw[2:at]
        self._before, self._after = start + length.to_bytes(4, "big") + table + FIELD, raw[end:]

    @property
    def filter_value(self) -> str | None:
        """The filter value of the messages. Few consumers ask for it, but those do for every message."""
        if not self._filter_values:
            self._filter_values = (filter_value(Properties(self._raw)),)
        return self._filter_values[0]

    def frames(self, size: int, channel: int) -> OffsetFrames:
        """Return what is the same in the content of all messages of one size, but for their offsets and bodies."""
        length = HEADER_FIELDS + len(self._before) + OFFSET_BYTES + len(self._after)
        start = CONTENT_START.pack(HEADER, channel, length, BASIC, 0, size) + self._before
        if not size:
            return OffsetFrames(start, self._after + b"\xce", b"")
        return OffsetFrames(start, self._after + b"\xce" + FRAME_START.pack(BODY, channel, size), b"\xce")


def _without_offset(raw: bytes) -> bytes:
    """Return properties without the offset that a message had in another stream."""
    properties = Properties(raw)
    try:
        headers = drop_field(properties.raw_headers(), OFFSET_HEADER)
    except FrameError:  # it is somewhere in headers that nobody can read
        return raw
    return encode_properties({**properties.without_headers(), "headers": headers})


class OffsetFrames(NamedTuple):
    """The content of a message before its offset, between offset and body, and after its body."""

    start: bytes
    middle: bytes
    end: bytes

    def content(self, offset: int, body: bytes) -> Content:
        start, middle, end = self
        return b"".join((start, offset.to_bytes(OFFSET_BYTES, "big"), middle, body, end))


def offset_header(raw: bytes) -> OffsetHeader:
    """Return the divided properties, from a cache if they are small: most messages share them."""
    return _known(raw) if len(raw) <= CACHEABLE_BYTES else OffsetHeader(raw)


@lru_cache(1000)
def _known(raw: bytes) -> OffsetHeader:
    return OffsetHeader(raw)
