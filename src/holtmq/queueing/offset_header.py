"""The `x-stream-offset` header, by which a stream tells a consumer the offset of each message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from holtmq.errors import FrameError
from holtmq.queueing.stream_filter import filter_value
from holtmq.wire.content import CACHEABLE_BYTES, Content, Properties, encode_properties
from holtmq.wire.frames import BASIC, BODY, CONTENT_START, FRAME_START, HEADER
from holtmq.wire.tables import join_table, split_table

OFFSET_HEADER = "x-stream-offset"
OFFSET_BYTES = 8
ROOM = b"l" + bytes(OFFSET_BYTES)
"""A 64-bit integer, as RabbitMQ sends it."""
HEADER_FIELDS = CONTENT_START.size - FRAME_START.size


class OffsetHeader:
    """Properties that many messages share, divided where the offset of each goes."""

    __slots__ = ("_after", "_before", "filter_value", "properties")

    def __init__(self, raw: bytes) -> None:
        self.properties = Properties(raw)
        self.filter_value = filter_value(self.properties)
        try:
            fields = split_table(self.properties.raw_headers())
        except FrameError:
            self._before, self._after = raw, None
            return
        fields.pop(OFFSET_HEADER, None)
        table = join_table({**fields, OFFSET_HEADER: ROOM})
        others = self.properties.without_headers()
        encoded = encode_properties({**others, "headers": table})
        before = {name: value for name, value in others.items() if name in ("content_type", "content_encoding")}
        end = len(encode_properties(before)) + len(table)
        self._before, self._after = encoded[: end - OFFSET_BYTES], encoded[end:]

    def frames(self, size: int, channel: int) -> OffsetFrames:
        """Return what is the same in the content of all messages of one size, but for their offsets and bodies.

        If the headers of the message cannot be decoded, the offset is left out.
        """
        length = len(self._before) if self._after is None else len(self._before) + OFFSET_BYTES + len(self._after)
        start = CONTENT_START.pack(HEADER, channel, HEADER_FIELDS + length, BASIC, 0, size) + self._before
        end = b"\xce" + FRAME_START.pack(BODY, channel, size) if size else b"\xce"
        return OffsetFrames(start, None if self._after is None else self._after + end, end, b"\xce" if size else b"")


class OffsetFrames(NamedTuple):
    """The content of a message around its offset and its body."""

    start: bytes
    after_offset: bytes | None
    without_offset: bytes
    end: bytes

    def contents(self, first_offset: int, bodies: Sequence[bytes]) -> list[Content]:
        """Return the content of messages of this size with consecutive offsets."""
        start, middle, _, end = self
        if middle is None:
            return [self.content(offset, body) for offset, body in enumerate(bodies, first_offset)]
        pack = Struct(f">{len(start)}sQ{len(middle)}s{len(bodies[0])}s{len(end)}s").pack
        return [pack(start, offset, middle, body, end) for offset, body in enumerate(bodies, first_offset)]

    def content(self, offset: int, body: bytes) -> Content:
        start, middle, without, end = self
        if middle is None:
            return start + without + body + end
        return b"".join((start, offset.to_bytes(OFFSET_BYTES, "big"), middle, body, end))


def offset_header(raw: bytes) -> OffsetHeader:
    """Return the divided properties, from a cache if they are small: most messages share them."""
    return _known(raw) if len(raw) <= CACHEABLE_BYTES else OffsetHeader(raw)


@lru_cache(1000)
def _known(raw: bytes) -> OffsetHeader:
    return OffsetHeader(raw)
