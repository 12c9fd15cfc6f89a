"""Converts AMQP values to JSON and back without loss.

A type that JSON lacks becomes an object with one key: `{"$bytes": base64}`, `{"$timestamp": seconds}`, `{"$decimal": text}`.
A table that looks like one of these is wrapped in `{"$table": …}`. All other values are written as RabbitMQ writes them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from holtmq.errors import DefinitionsError, InvalidValueError
from holtmq.table import FieldValue, Table, describe


def table_to_json(table: Mapping[str, FieldValue]) -> dict[str, Any]:
    """Return the JSON object for a table."""
    return {key: to_json(value) for key, value in table.items()}


def table_from_json(fields: Mapping[str, object], path: str) -> Table:
    """Return the table for a JSON object; errors name the `path` where it was found."""
    values = {key: from_json(value, f"{path}.{key}") for key, value in fields.items()}
    try:
        return Table.of(values)
    except InvalidValueError as error:
        raise DefinitionsError(path, str(error)) from error


def to_json(value: FieldValue) -> Any:
    """Return the JSON for a value."""
    match value:
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case datetime():
            return {"$timestamp": int(value.timestamp())}
        case Decimal():
            return {"$decimal": str(value)}
        case tuple() | list():
            return [to_json(item) for item in value]
        case Mapping():
            fields = table_to_json(value)
            return {"$table": fields} if _is_tagged(value) else fields
        case _:
            return value


def from_json(value: object, path: str) -> FieldValue:
    """Return the value for JSON; errors name the `path` where it was found."""
    if isinstance(value, list):
        return [from_json(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if not isinstance(value, Mapping):
        return value  # type: ignore[return-value]  # JSON has no other types
    if not _is_tagged(value):
        return {key: from_json(item, f"{path}.{key}") for key, item in value.items()}
    ((tag, content),) = value.items()
    try:
        return _TAGS[tag](content, path)
    except DefinitionsError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError, OSError, InvalidOperation) as error:
        raise DefinitionsError(f"{path}.{tag}", f"expected a value of that type, got {describe(content)}") from error


def _is_tagged(value: Mapping[str, object]) -> bool:
    return len(value) == 1 and next(iter(value)) in _TAGS


_TAGS: dict[str, Callable[[Any, str], FieldValue]] = {
    "$bytes": lambda text, _: base64.b64decode(text, validate=True),
    "$timestamp": lambda seconds, _: datetime.fromtimestamp(seconds, UTC),
    "$decimal": lambda text, _: Decimal(text),
    "$table": lambda fields, path: {key: from_json(item, f"{path}.{key}") for key, item in fields.items()},
}
