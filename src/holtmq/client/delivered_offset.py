"""The header `x-stream-offset`, which a broker adds to the messages of a stream queue that it delivers."""

from __future__ import annotations

from holtmq.errors import HoltmqError
from holtmq.table import FieldValue
from holtmq.wire.content import present_properties
from holtmq.wire.tables import decode_value, long_string, raw_fields, short_string

OFFSET_HEADER = "x-stream-offset"
HEADERS_FLAG = 0x2000
OFFSET_NAME = OFFSET_HEADER.encode()
_NAME = short_string(OFFSET_HEADER)
_LONG = _NAME + b"l"
FIELD_BYTES = len(_LONG) + 8
NO_PROPERTIES = b"\xff\xff"
"""Not the start of any properties: there are only 14 of them."""


class NotAStreamError(HoltmqError):
    """A queue that should be a stream does not deliver its messages as one."""

    def __init__(self, queue: str) -> None:
        super().__init__(
            f"queue {queue!r} is not a stream queue, so that its messages have no offsets: read it without startingOffsets, or "
            "name a queue that was declared with x-queue-type=stream"
        )


class OffsetTaker:
    """Takes the offsets off the messages of a stream.

    This runs once per message. Most messages start as the one before, up to the offset, and are cut at the same place.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._before = NO_PROPERTIES
        self._published = b""
        """The properties up to the header, as they were published."""

    def take(self, raw_properties: bytes) -> tuple[int, bytes]:
        """Return the offset of a delivery, and its properties as they were published. Raise NotAStreamError without one."""
        if not raw_properties.startswith(self._before):
            found = _find(raw_properties)
            if found is None:
                taken = take_offset(raw_properties)
                if taken is None:
                    raise NotAStreamError(self._queue)
                return taken
            self._before, self._published = found
        at = len(self._before)
        return int.from_bytes(raw_properties[at : at + 8], "big"), self._published + raw_properties[at + 8 :]


def _find(raw_properties: bytes) -> tuple[bytes, bytes] | None:
    """Return the bytes before the value of the header, and what they were when published. Return None if it is uncertain.

    If the name occurs once, within the headers, it is that of the header.
    """
    at = raw_properties.find(_NAME)
    table_at = _headers_at(raw_properties)
    if table_at is None or not raw_properties.startswith(_LONG, at) or raw_properties.find(_NAME, at + 1) >= 0:
        return None
    size = int.from_bytes(raw_properties[table_at : table_at + 4], "big")
    if at < table_at or at + FIELD_BYTES > table_at + 4 + size:  # the text of another property
        return None
    if size == FIELD_BYTES:
        published = _without_headers(raw_properties[:table_at])
    else:
        table = (size - FIELD_BYTES).to_bytes(4, "big") + raw_properties[table_at + 4 : at]
        published = raw_properties[:table_at] + table
    return raw_properties[: at + len(_LONG)], published


def take_offset(raw_properties: bytes) -> tuple[int, bytes] | None:
    """Return the offset of a delivery, and its properties as they were published. Return None if it has no offset."""
    table_at = _headers_at(raw_properties)
    if table_at is None:
        return None
    offset: FieldValue = None
    others, end = [], table_at + 4
    for name, start, value_at, end in raw_fields(raw_properties, table_at):
        if name == OFFSET_NAME:
            offset, _ = decode_value(raw_properties, value_at)
        else:
            others.append(raw_properties[start:end])
    if not isinstance(offset, int):
        return None
    if not others:
        return offset, _without_headers(raw_properties[:table_at]) + raw_properties[end:]
    return offset, raw_properties[:table_at] + long_string(b"".join(others)) + raw_properties[end:]


def _without_headers(before: bytes) -> bytes:
    """Return what precedes the headers, of a message that was published without any."""
    flags = int.from_bytes(before[:2], "big") & ~HEADERS_FLAG
    return flags.to_bytes(2, "big") + before[2:]


def _headers_at(raw_properties: bytes) -> int | None:
    """Return where the headers start. Only two short strings can precede them (AMQP 0-9-1 §1.8, class basic)."""
    at = 2
    for name in present_properties(raw_properties[:2]):
        if name == "headers":
            return at
        if name not in ("content_type", "content_encoding"):
            return None
        at += 1 + raw_properties[at]
    return None
