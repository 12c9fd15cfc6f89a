"""Reading values out of the arguments of a queue and out of its policy. A bad argument is an error of the declaration."""

from __future__ import annotations

from collections.abc import Mapping

from holtmq.errors import InvalidValueError
from holtmq.table import FieldValue, describe

LONGEST_MS = 2**32 - 1
LARGEST = 2**63 - 1
POLICY_NUMBERS = {
    "message-ttl": (0, LONGEST_MS),
    "expires": (1, LONGEST_MS),
    "max-length": (0, LARGEST),
    "max-length-bytes": (0, LARGEST),
    "delivery-limit": (0, LARGEST),
    "stream-max-segment-size-bytes": (0, LARGEST),
}
"""The numeric keys of a policy, with the range of each."""


def is_integer(value: object) -> bool:
    """Return whether a value is an integer, which a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def number(arguments: Mapping[str, FieldValue], name: str, *, least: int = 0, most: int = LONGEST_MS) -> int | None:
    """Return an argument that is an integer within a range, if it is there."""
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidValueError(f"invalid arg {name!r}: expected an integer from {least} to {most}, got {describe(value)}")
    return value


def text(arguments: Mapping[str, FieldValue], name: str) -> str | None:
    """Return an argument that is a string, if it is there."""
    value = arguments.get(name)
    if name in arguments and not isinstance(value, str):
        raise InvalidValueError(f"invalid arg {name!r}: expected a string, got {describe(value)}")
    return value if isinstance(value, str) else None


def flag(arguments: Mapping[str, FieldValue], name: str) -> bool:
    """Return an argument that is true or false; false if it is not there."""
    value = arguments.get(name, False)
    if not isinstance(value, bool):
        raise InvalidValueError(f"invalid arg {name!r}: expected true or false, got {describe(value)}")
    return value


def choice(arguments: Mapping[str, FieldValue], name: str, choices: tuple[str, ...]) -> str | None:
    """Return an argument that is one of some strings, if it is there."""
    value = text(arguments, name)
    if value is not None and value not in choices:
        raise InvalidValueError(f"invalid arg {name!r}: expected one of {', '.join(choices)}, got {describe(value)}")
    return value


def policy_text(definition: Mapping[str, FieldValue], name: str) -> str | None:
    """Return a text of a policy. Anything else, which only a definitions file can contain, has no effect."""
    value = definition.get(name)
    return value if isinstance(value, str) else None


def policy_number(definition: Mapping[str, FieldValue], name: str) -> int | None:
    """Return a number of a policy. An invalid one, which only a definitions file can contain, has no effect."""
    value, (least, most) = definition.get(name), POLICY_NUMBERS[name]
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def lower(own: int | None, given: int | None) -> int | None:
    """Return the lower one of two limits, as far as there are any."""
    return min((limit for limit in (own, given) if limit is not None), default=None)


def first(own: str | None, given: str | None) -> str | None:
    """Return the first of two texts that is there."""
    return own if own is not None else given
