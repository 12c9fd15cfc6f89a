"""The criteria that the arguments of a headers binding define for the headers of a message."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime

from holtmq.errors import InvalidValueError
from holtmq.table import FieldValue, canonical, describe

X_MATCH = "x-match"
X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")


class _Present:
    """The criterion for a null value: the header must be present, with any value."""

    def __repr__(self) -> str:
        return "PRESENT"

    def __reduce__(self) -> str:
        return "PRESENT"


PRESENT = _Present()


@dataclass(frozen=True, slots=True)
class Criteria:
    """The comparable value that each header must have, or PRESENT, and whether any one of them is enough."""

    is_any: bool
    tests: dict[str, Hashable]

    @classmethod
    def of(cls, arguments: Mapping[str, FieldValue]) -> Criteria:
        """Return the criteria of the arguments of a binding; raise InvalidValueError if x-match is invalid."""
        mode = require_x_match(arguments)
        with_x = has_x_criteria(arguments)
        tests = {
            name: PRESENT if value is None else comparable(value)
            for name, value in arguments.items()
            if name != X_MATCH and (with_x or not name.startswith("x-"))
        }
        return cls(mode.startswith("any"), tests)


def comparable(value: FieldValue) -> Hashable:
    """Return a hashable form of a header value; two forms are equal if a headers exchange treats the values as equal.

    As in RabbitMQ, some types compare as equal at the outermost level: a timestamp equals its seconds, bytes equal the same
    text, an empty table equals an empty array. An integer never equals a float, as in RabbitMQ 3.13.
    """
    kind = type(value)
    if kind is str or kind is int:
        return value  # type: ignore[return-value]  # mypy does not narrow by `kind is`; this line is on the hot path
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "surrogateescape")
    try:
        return canonical(value or []) if isinstance(value, Mapping) else canonical(value)
    except RecursionError as error:
        raise InvalidValueError(f"the value of a header is nested too deeply: {describe(value)}") from error


def has_x_criteria(arguments: Mapping[str, FieldValue]) -> bool:
    """Return whether `x-` arguments other than x-match are criteria (`all-with-x`, `any-with-x`) and not settings."""
    return arguments.get(X_MATCH) in ("all-with-x", "any-with-x")


def require_x_match(arguments: Mapping[str, FieldValue]) -> str:
    """Return the value of x-match; raise InvalidValueError if it is invalid."""
    mode = arguments.get(X_MATCH, "all")
    if not isinstance(mode, str) or mode not in X_MATCH_VALUES:
        raise InvalidValueError(f"argument 'x-match' must be one of {', '.join(X_MATCH_VALUES)}, got {describe(mode)}")
    return mode
