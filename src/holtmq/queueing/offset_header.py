"""The `x-stream-offset` header, by which a stream tells a consumer the offset of each message."""

from __future__ import annotations

from functools import lru_cache

from holtmq.errors import FrameError
from holtmq.queueing.stream_filter import filter_value
from holtmq.wire.content import CACHEABLE_BYTES, Properties, encode_properties
from holtmq.wire.tables import join_table, split_table

OFFSET_HEADER = "x-stream-offset"
OFFSET_BYTES = 8
ROOM = b"l" + bytes(OFFSET_BYTES)
"""A 64-bit integer, as RabbitMQ sends it."""


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

    def encoded(self, offset: int) -> bytes:
        """Return the encoded properties with the header; without it if the headers of the message cannot be decoded."""
        if self._after is None:
            return self._before
        return self._before + offset.to_bytes(OFFSET_BYTES, "big") + self._after


def offset_header(raw: bytes) -> OffsetHeader:
    """Return the divided properties, from a cache if they are small: most messages share them."""
    return _known(raw) if len(raw) <= CACHEABLE_BYTES else OffsetHeader(raw)


@lru_cache(1000)
def _known(raw: bytes) -> OffsetHeader:
    return OffsetHeader(raw)
