"""Which messages of a stream a consumer wants, by the value that their publisher has given them (RabbitMQ 3.13, "Filtering").

RabbitMQ filters whole chunks, and leaves the rest to its clients. This filter is exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holtmq.errors import FrameError, InvalidValueError
from holtmq.queueing.argument_values import flag
from holtmq.table import FieldValue, describe
from holtmq.wire.content import Properties

FILTER_ARGUMENT, MATCH_UNFILTERED = "x-stream-filter", "x-stream-match-unfiltered"
VALUE_HEADER = "x-stream-filter-value"


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The values that a consumer wants, and whether it wants messages without a value as well."""

    values: frozenset[str]
    matches_unfiltered: bool = False

    @classmethod
    def of(cls, arguments: Mapping[str, FieldValue]) -> StreamFilter | None:
        """Return the filter that a consumer's arguments ask for, if any."""
        matches_unfiltered = flag(arguments, MATCH_UNFILTERED)
        wanted = arguments.get(FILTER_ARGUMENT)
        if wanted is None and FILTER_ARGUMENT not in arguments:
            return None
        values = [value for value in (wanted if isinstance(wanted, list | tuple) else [wanted]) if isinstance(value, str)]
        if not values or (isinstance(wanted, list | tuple) and len(values) < len(wanted)):
            raise InvalidValueError(
                f"invalid arg {FILTER_ARGUMENT!r} for consumer: expected a string or an array of strings, "
                f"got {describe(wanted)}"
            )
        return cls(frozenset(values), matches_unfiltered)

    def admits(self, value: str | None) -> bool:
        return self.matches_unfiltered if value is None else value in self.values


def filter_value(properties: Properties) -> str | None:
    """Return the filter value of a message, if it has one."""
    if VALUE_HEADER.encode() not in properties.raw:
        return None
    try:
        value = properties.headers.get(VALUE_HEADER)
    except FrameError:
        return None
    return value if isinstance(value, str) else None
