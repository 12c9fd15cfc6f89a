"""What the arguments of a headers binding ask of a message's headers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime

from holtmq.errors import InvalidValueError
from holtmq.table import FieldValue, canonical, describe

X_MATCH = "x-match"
X_MATCH_VALUES = ("all", "any", "all-with-x", "any-with-x")


class _Present:
    """The criterion of a void value: the header is there, whatever it holds."""

    def __repr__(self) -> str:
        return "PRESENT"

    def __reduce__(self) -> str:
        return "PRESENT"


PRESENT = _Present()


@dataclass(frozen=True, slots=True)
class Criteria:
    """Headers by name with the value each must have, in comparable form, or PRESENT; and whether one of them suffices."""

    is_any: bool
    tests: dict[str, Hashable]

    @classmethod
    def of(cls, arguments: Mapping[str, FieldValue]) -> Criteria:
        mode = require_x_match(arguments)
        with_x = has_x_criteria(arguments)
        tests = {
            name: PRESENT if value is None else comparable(value)
            for name, value in arguments.items()
            if name != X_MATCH and (with_x or not name.startswith("x-"))
        }
        return cls(mode.startswith("any"), tests)


def comparable(value: FieldValue) -> Hashable:
    """A hashable stand-in for a header's value: equal just where a headers exchange calls two values equal.

    As RabbitMQ does, this looks through the outermost type where two types have one form: a timestamp is its seconds,
    bytes are the text that they spell, an empty table is an empty array. An integer is no float, as in RabbitMQ 3.13.
    """
    kind = type(value)
    if kind is str or kind is int:
        return value  # type: ignore[return-value]  # mypy does not narrow by `kind is`; this line is on the hot path
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "surrogateescape")
    return canonical(value or []) if isinstance(value, Mapping) else canonical(value)


def has_x_criteria(arguments: Mapping[str, FieldValue]) -> bool:
    """Under `all-with-x` and `any-with-x` every `x-` argument but x-match itself is a criterion, and none is a setting."""
    return arguments.get(X_MATCH) in ("all-with-x", "any-with-x")


def require_x_match(arguments: Mapping[str, FieldValue]) -> str:
    mode = arguments.get(X_MATCH, "all")
    if not isinstance(mode, str) or mode not in X_MATCH_VALUES:
        raise InvalidValueError(f"argument 'x-match' must be one of {', '.join(X_MATCH_VALUES)}, got {describe(mode)}")
    return mode
