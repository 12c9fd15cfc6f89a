"""AMQP field tables as immutable values: the arguments of exchanges, queues and bindings, and the headers of messages.

AMQP types map to Python types (§4.2.5.5 of the specification, as RabbitMQ uses it): void is None, integers of any width are
int, a long string is str, a byte array is bytes, a timestamp is an aware datetime, an array is a list, a table is a dict; bool,
float and Decimal are themselves. Values are compared by type and value, regardless of the width of integers: 1 is not equal
to 1.0, True or "1".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from math import isfinite
from typing import Any, TypeAlias

from holtmq.errors import InvalidValueError

FieldValue: TypeAlias = (
    bool
    | int
    | float
    | str
    | bytes
    | Decimal
    | datetime
    | list["FieldValue"]
    | tuple["FieldValue", ...]
    | Mapping[str, "FieldValue"]
    | None
)
SHORT_STRING_BYTES = 255
"""The maximum length of a name or routing key: the length of a short string is one octet (§4.2.5.3)."""


class Table(Mapping[str, FieldValue]):
    """An immutable field table. It is equal to any mapping with the same keys and equal values, in any order."""

    __slots__ = ("_canonical", "_fields")

    def __init__(self, fields: Mapping[str, FieldValue] | None = None) -> None:
        self._fields: dict[str, FieldValue] = {key: _freeze(key, value) for key, value in (fields or {}).items()}
        self._canonical: Hashable | None = None

    @classmethod
    def of(cls, fields: Mapping[str, FieldValue] | None) -> Table:
        """Return a table with these fields; a table is returned as it is."""
        if isinstance(fields, Table):
            return fields
        if not fields:
            return EMPTY_TABLE if fields is None or isinstance(fields, Mapping) else _refuse_table(fields)
        return cls(fields) if isinstance(fields, Mapping) else _refuse_table(fields)

    @property
    def canonical(self) -> Hashable:
        """A hashable form, which is equal only for equal tables."""
        if self._canonical is None:
            self._canonical = ("table", frozenset((key, canonical(value)) for key, value in self._fields.items()))
        return self._canonical

    def __getitem__(self, key: str) -> FieldValue:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return self.canonical == Table.of(other).canonical
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical)

    def __repr__(self) -> str:
        return f"Table({to_plain(self)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        # cloudpickle, which Spark uses, cannot rebuild a class method by its name
        return _rebuild, (self._fields,)


def _rebuild(fields: dict[str, FieldValue]) -> Table:
    return Table.of(fields)


def canonical(value: FieldValue) -> Hashable:
    """Return a hashable form of a field value; two forms are equal if AMQP treats the values as equal."""
    kind = type(value)
    if kind is str or kind is int or value is None or kind is bytes:
        return value  # type: ignore[return-value]  # mypy does not narrow by `kind is`; this line is on the hot path
    if kind is bool or kind is float:
        return kind, value
    match value:
        case Table():
            return value.canonical
        case Mapping():
            return "table", frozenset((key, canonical(item)) for key, item in value.items())
        case list() | tuple():
            return "array", tuple(map(canonical, value))
        case datetime():
            return "timestamp", int(_aware(value).timestamp())
        case Decimal():
            return "decimal", value
        case str() | int() | bytes():
            return value
        case float():
            return float, value
        case _:
            raise _unsupported("a header", value)


def to_plain(value: FieldValue) -> Any:
    """Return the value with plain, mutable dicts and lists."""
    match value:
        case tuple() | list():
            return [to_plain(item) for item in value]
        case Mapping():
            return {key: to_plain(item) for key, item in value.items()}
        case _:
            return value


def require_short_string(value: object, what: str) -> None:
    """Raise InvalidValueError if AMQP's short string cannot hold the value, which the error calls `what`."""
    if type(value) is str and len(value) <= SHORT_STRING_BYTES and value.isascii():
        return
    if not isinstance(value, str):
        raise InvalidValueError(f"{what} must be a string, got {describe(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise InvalidValueError(f"{what} must be text that UTF-8 can encode, got {value[:40]!r}") from error
    if size > SHORT_STRING_BYTES:
        raise InvalidValueError(
            f"{what} must be at most {SHORT_STRING_BYTES} bytes in UTF-8, got {size} bytes: {value[:20]!r}…"
        )


def describe(value: object) -> str:
    """Return a value for an error message: its AMQP type and its contents, shortened to fit on a line."""
    match value:
        case None:
            return "null"
        case bool():
            return f"boolean {str(value).lower()}"
        case int():
            return f"integer {value}"
        case float() | Decimal():
            return f"number {value}"
        case str():
            return f"string {_shorten(repr(value))}"
        case bytes() | bytearray():
            return f"bytes {_shorten(repr(bytes(value)))}"
        case list() | tuple():
            return f"array of {len(value)}"
        case Mapping():
            return f"table of {len(value)}"
        case datetime():
            return f"timestamp {value.isoformat()}"
        case _:
            return f"{type(value).__name__} {_shorten(repr(value))}"


def _freeze(key: object, value: object) -> FieldValue:
    require_short_string(key, "the key of a table")
    return _freeze_value(value, str(key))


def _freeze_value(value: object, key: str) -> FieldValue:
    match value:
        case float() | Decimal() if not isfinite(value):
            raise InvalidValueError(f"the value of {key!r} must be a finite number, got {describe(value)}")
        case int() if not -(2**63) <= value < 2**63:
            raise InvalidValueError(f"the value of {key!r} must be an integer of at most 64 bits, got {value}")
        case None | bool() | int() | float() | str() | bytes() | Decimal():
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case datetime():
            return _aware(value).astimezone(UTC).replace(microsecond=0)
        case list() | tuple():
            return tuple(_freeze_value(item, key) for item in value)
        case Mapping():
            return Table.of(value)
        case _:
            raise _unsupported(repr(key), value)


def _unsupported(what: str, value: object) -> InvalidValueError:
    return InvalidValueError(
        f"the value of {what} must have a type that AMQP supports (null, boolean, integer, number, string, bytes, decimal, "
        f"timestamp, array, table), got {describe(value)}"
    )


def _aware(value: datetime) -> datetime:
    """Return a datetime with a time zone; without one, it is taken to be UTC, as in AMQP."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "…"


def _refuse_table(fields: object) -> Table:
    raise InvalidValueError(f"arguments and headers must be a table (a mapping), got {describe(fields)}")


EMPTY_TABLE = Table()
