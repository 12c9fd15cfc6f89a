"""Where a reader of a stream starts: the consumer argument `x-stream-offset`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from holtmq.errors import InvalidValueError
from holtmq.queueing.argument_values import LARGEST
from holtmq.queueing.stream_rules import AGE, parse_age
from holtmq.table import FieldValue, describe

OFFSET_ARGUMENT = "x-stream-offset"
EXPECTED = "first, last, next, an offset, a timestamp, or an interval such as 1h"


class Bounds(Protocol):
    """The first and the next offset of a stream."""

    @property
    def first_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...


class StreamStart(NamedTuple):
    """A place in a stream, before it is looked up. `value` is an offset, or a time in milliseconds since 1970."""

    kind: Literal["first", "last", "next", "offset", "time"]
    value: int = 0

    def offset(self, bounds: Bounds, find: Callable[[int], int]) -> int:
        """Return the offset of the first message to read. `find` returns that of the first message at or after a time."""
        match self.kind:
            case "first":
                return bounds.first_offset
            case "last":
                return max(bounds.first_offset, bounds.next_offset - 1)
            case "next":
                return bounds.next_offset
            case "time":
                return find(self.value)
            case _:
                return max(bounds.first_offset, self.value)


def parse_start(value: FieldValue, now_ms: int) -> StreamStart:
    """Return the start that an argument means; None means `next`."""
    match value:
        case None | "next":
            return StreamStart("next")
        case "first":
            return StreamStart("first")
        case "last":
            return StreamStart("last")
        case bool():
            pass
        case int() if 0 <= value <= LARGEST:
            return StreamStart("offset", value)
        case datetime():
            return StreamStart("time", int(value.timestamp() * 1000))
        case str() if AGE.fullmatch(value):
            return StreamStart("time", max(0, now_ms - parse_age(value, OFFSET_ARGUMENT)))
    raise InvalidValueError(f"invalid arg {OFFSET_ARGUMENT!r} for consumer: expected {EXPECTED}, got {describe(value)}")
