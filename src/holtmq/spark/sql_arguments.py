"""The arguments of the SQL functions as parts of a signature: value by value, or as Arrow columns. Runs on the executors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from holtmq.errors import InvalidValueError
from holtmq.spark.signature import TEXT_TYPES
from holtmq.spark.signature_value import Text
from holtmq.table import FieldValue
from holtmq.table_json import to_json

HEADERS_TYPES = "JSON text, a map with string keys or a struct"
PLAIN = (str, bool, int, float, bytes)
"""The types of header values that mean the same in Spark, Python and AMQP."""


def text_of(value: Any, what: str) -> Text:
    """Return a routing key or the name of an exchange. Raise InvalidValueError if the value has another type."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return _decoded(bytes(value))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidValueError(f"the {what} has the type {type(value).__name__}: expected {TEXT_TYPES}")


def _decoded(value: bytes) -> Text:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def text_column(column: pa.Array, what: str) -> pa.Array:
    """Return routing keys or names of exchanges as a string column, whose values need not be valid UTF-8."""
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        return column.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string(), safe=False)  # a safe cast fails if one value of the batch is not UTF-8
    raise InvalidValueError(f"the {what} has the type {kind}: expected {TEXT_TYPES}")


def headers_text(headers: Any) -> Text:
    """Return headers as JSON text in the notation of `table_json`. They are JSON text, a map or a struct."""
    if headers is None or isinstance(headers, str):
        return headers
    if isinstance(headers, bytes | bytearray):
        return _decoded(bytes(headers))
    if not isinstance(headers, Mapping | Row):
        raise InvalidValueError(f"headers must be {HEADERS_TYPES}, got {type(headers).__name__}")
    return json.dumps(to_json(_field_value(headers)))


def headers_column(column: pa.Array | None) -> pa.Array | None:
    """Return headers as a column of JSON text, or None if no message has any."""
    if column is None or pa.types.is_null(column.type):
        return None
    kind = column.type
    if pa.types.is_string(kind):
        return column
    if pa.types.is_large_string(kind):
        return column.cast(pa.string(), safe=False)
    is_struct = pa.types.is_struct(kind) and not _is_variant(kind)
    if not is_struct and not (pa.types.is_map(kind) and _has_text_keys(kind)):
        raise InvalidValueError(f"headers must be {HEADERS_TYPES}, got {'VARIANT' if _is_variant(kind) else kind}")
    return pa.array([headers_text(_as_mapping(value, kind)) for value in column.to_pylist()], pa.string())


def _has_text_keys(kind: pa.MapType) -> bool:
    return bool(pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type))


def _is_variant(kind: pa.DataType) -> bool:
    """Return whether a type is what Spark makes of VARIANT: a struct with a marked field."""
    return pa.types.is_struct(kind) and any(b"variant" in (field.metadata or {}) for field in kind)


def _as_mapping(value: Any, kind: pa.DataType) -> Any:
    """Return a value of Arrow with maps as dictionaries, and without the fields of structs that are null."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {name: _as_mapping(item, kind.item_type) for name, item in value}
    if pa.types.is_struct(kind):
        return {each.name: _as_mapping(value[each.name], each.type) for each in kind if value[each.name] is not None}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_as_mapping(item, kind.value_type) for item in value]
    return value


def _field_value(value: Any) -> FieldValue:
    if isinstance(value, Row):  # a struct has all its fields in each row, so null means that a message lacks the header
        return {name: _field_value(item) for name, item in value.asDict().items() if item is not None}
    if isinstance(value, Mapping):
        return {name: _field_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_field_value(item) for item in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if value is None or isinstance(value, PLAIN):
        return value
    raise InvalidValueError(
        f"headers contain a value of type {type(value).__name__}: expected text, numbers, booleans or binary. "
        'Write other values as JSON text, such as {"when": {"$timestamp": 1700000000}}'
    )
