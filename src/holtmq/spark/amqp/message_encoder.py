"""Rows as messages to publish.

Rows of the source have each text twice: in columns that are convenient to read, and as the bytes that were received
(`routing_key_raw`, `properties_raw`). What was not changed is sent as it was received. A column whose value differs from the
raw one has been changed, and wins.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from holtmq.client.publisher import Outgoing
from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.amqp.columns import DELIVERY_COLUMNS, PROPERTIES_RAW, RAW_COLUMNS, ROUTING_KEY_RAW
from holtmq.spark.amqp.encoded_properties import (
    TEXTS,
    UNSET,
    PropertyValues,
    encode_headers,
    encode_property,
    is_invalid,
    join_properties,
    mark_headers,
    replay_mark,
    split_properties,
)
from holtmq.spark.headers_json import read_headers
from holtmq.wire.content import NAMES, PERSISTENT

COLUMNS = frozenset({"exchange", "routing_key", "body", *NAMES, *DELIVERY_COLUMNS, *RAW_COLUMNS})
_DELIVERY_MODE, _HEADERS = NAMES.index("delivery_mode"), NAMES.index("headers")


class MessageEncoder:
    """Turns rows into messages to publish. Created on the driver, which checks the schema; used on the executors.

    A `mark` makes the messages those of a replay: they get a header with this value, and lose the user id, which a broker
    accepts only from that user.
    """

    def __init__(self, schema: StructType, exchange: str | None, *, persistent: bool, mark: str | None = None) -> None:
        schema = _with_our_names(schema)
        _require_columns(schema, exchange)
        self._names = schema.names
        self._exchange = exchange
        self._persistent = persistent
        self._mark = None if mark is None else replay_mark(mark)
        self._given = [name for name in NAMES if name in schema.names]
        # dropping a column removes the property; but who selects the raw column alone wants all properties
        self._removed = [name for name in NAMES if name not in schema.names] if self._given else []
        self._values = PropertyValues()

    def encode(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield one message per row. Raise InvalidValueError for a row that cannot be published."""
        given = zip(self._names, batch.columns, strict=True)
        columns = {name: column.to_pylist() for name, column in given if name not in DELIVERY_COLUMNS}
        unset = [None] * batch.num_rows
        exchanges = columns["exchange"] if self._exchange is None else [self._exchange] * batch.num_rows
        keys = _keys(columns.get("routing_key"), columns.get(ROUTING_KEY_RAW))
        if "timestamp" in columns:
            columns["timestamp"] = [_in_utc(time) for time in columns["timestamp"]]
        rows = zip(*(columns.get(name, unset) for name in NAMES), strict=True)
        raws = columns.get(PROPERTIES_RAW, unset)
        for exchange, key, body, raw, values in zip(exchanges, keys, columns["body"], raws, rows, strict=True):
            if exchange is None or key is None or body is None:
                missing = "exchange" if exchange is None else "routing_key" if key is None else "body"
                raise InvalidValueError(f"column {missing!r} is null in a row: expected a value in each row")
            try:
                properties = self._encode_properties(raw, values)
            except (HoltmqError, ValueError, TypeError, AttributeError, OverflowError) as error:
                raise InvalidValueError(f"a property of the message with key {key!r} cannot be encoded: {error}") from error
            yield Outgoing(exchange, key, properties, body.encode() if isinstance(body, str) else body)

    def _encode_properties(self, raw: bytes | None, values: tuple[Any, ...]) -> bytes:
        received = UNSET if raw is None else self._values[raw]
        is_changed = bool(self._given) and values != received
        needs_mode = self._persistent and received[_DELIVERY_MODE] is None
        if raw is not None and not (is_changed or needs_mode or self._removed or self._mark is not None):
            return raw
        fields = {} if raw is None else split_properties(raw)
        for name in self._removed:
            fields.pop(name, None)
        if is_changed:
            for name, value, before in zip(NAMES, values, received, strict=True):
                if value is None and before is not None:
                    fields.pop(name, None)
                elif value != before:
                    fields[name] = _encode_value(name, value, fields.get(name))
        if self._persistent:
            fields.setdefault("delivery_mode", bytes((PERSISTENT,)))
        if self._mark is not None:
            fields.pop("user_id", None)
            if not is_invalid((values if self._given else received)[_HEADERS]):
                fields["headers"] = mark_headers(fields.get("headers", bytes(4)), self._mark)
        return join_properties(fields)


def _keys(texts: Sequence[str | None] | None, raws: Sequence[bytes | None] | None) -> Sequence[str | None]:
    """Return the routing keys, in which bytes that are not UTF-8 are escaped as surrogates."""
    if raws is None:
        assert texts is not None, "the schema was checked"
        return texts
    if texts is None:
        return [None if raw is None else raw.decode("utf-8", "surrogateescape") for raw in raws]
    return [
        text if raw is None or raw.decode("utf-8", "replace") != text else raw.decode("utf-8", "surrogateescape")
        for text, raw in zip(texts, raws, strict=True)
    ]


def _in_utc(time: datetime | None) -> datetime | None:
    """Return the time in UTC, which is also the zone of a time without one. The executor's own zone must not matter."""
    if time is None:
        return None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _encode_value(name: str, value: Any, received: bytes | None) -> bytes:
    if name != "headers":
        return encode_property(name, value)
    headers = _headers(value)
    return headers if isinstance(headers, bytes) else encode_headers(headers, received)


def _headers(value: object) -> Mapping[str, Any] | bytes:
    match value:
        case str() if is_invalid(value):
            return base64.b64decode(json.loads(value)[1])
        case str():
            return read_headers(value)
        case list():  # a map, as Arrow represents it
            return dict(value)
        case Mapping():
            return {name: item for name, item in value.items() if item is not None}
        case _:
            raise InvalidValueError(f"headers must be JSON text, a map or a struct, got {type(value).__name__}")


def require_message_columns(names: Sequence[str]) -> None:
    """Raise InvalidValueError if there are no columns with the key and the body of a message."""
    if "body" not in names or {*names}.isdisjoint(("routing_key", ROUTING_KEY_RAW)):
        raise InvalidValueError(
            f"messages to publish need the columns routing_key and body, found the columns {', '.join(names)}"
        )


def _with_our_names(schema: StructType) -> StructType:
    """Return the schema with the names of a message's columns in lower case. By default, Spark ignores the case of names.

    The processes of a sink do not know the setting. Names that differ only in their case stay as they are.
    """
    counts = Counter(name.lower() for name in schema.names)
    return StructType(
        [
            StructField(field.name.lower(), field.dataType)
            if field.name.lower() in COLUMNS and counts[field.name.lower()] == 1
            else field
            for field in schema
        ]
    )


def _require_columns(schema: StructType, exchange: str | None) -> None:
    require_message_columns(schema.names)
    names = set(schema.names)
    if exchange is None and "exchange" not in names:
        raise InvalidValueError(
            "no exchange to publish to: expected a column exchange, or the option exchange for all messages"
        )
    unknown = sorted(names - COLUMNS)
    if unknown:
        raise InvalidValueError(
            f"column {unknown[0]!r} is not a property of a message: drop it, or rename it to one of {', '.join(NAMES)}"
        )
    for field in schema:
        _require_type(field)


def _require_type(field: StructField) -> None:
    """Raise InvalidValueError if a column has the wrong type. Numbers are not converted to text: 7 may have been "007"."""
    is_text = isinstance(field.dataType, StringType | NullType)
    found = f"got type {field.dataType.simpleString()}"
    if field.name in (*TEXTS, "exchange", "routing_key") and not is_text:
        raise InvalidValueError(f"column {field.name!r} must be a string, {found}: cast it first")
    if field.name == "body" and not isinstance(field.dataType, StringType | BinaryType | NullType):
        raise InvalidValueError(f"column 'body' must be binary or a string, {found}: cast it, or convert it with to_json")
    if field.name == "headers" and not (is_text or isinstance(field.dataType, MapType | StructType)):
        raise InvalidValueError(f"column 'headers' must be JSON text, a map or a struct, {found}: convert it with to_json")
    if isinstance(field.dataType, MapType) and not isinstance(field.dataType.keyType, StringType):
        raise InvalidValueError(f"column 'headers' must be a map with string keys, {found}: cast them first")
    if field.name in ("priority", "delivery_mode") and not isinstance(field.dataType, IntegralType | NullType):
        raise InvalidValueError(f"column {field.name!r} must be a whole number, {found}: cast it to int")
    if field.name == "timestamp" and not isinstance(field.dataType, TimestampType | TimestampNTZType | NullType):
        raise InvalidValueError(f"column 'timestamp' must be a timestamp, {found}: cast it first")
    if field.name in RAW_COLUMNS and not isinstance(field.dataType, BinaryType | NullType):
        raise InvalidValueError(
            f"column {field.name!r} must be binary, {found}: read the messages with read_archive, or drop the column"
        )
