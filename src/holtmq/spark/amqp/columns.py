"""Messages as rows: the properties, the headers as JSON text (in the notation of `table_json`), the body, and the delivery."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holtmq.client.publisher import Outgoing
from holtmq.errors import FrameError, HoltmqError, InvalidValueError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.signature import read_headers
from holtmq.table_json import table_to_json
from holtmq.wire.content import NAMES, PERSISTENT, encode_properties, present_properties
from holtmq.wire.tables import LAST_SECOND, decode_table

_PLACES = {name: place for place, name in enumerate(NAMES)}
_TEXTS = frozenset(NAMES) - {"headers", "delivery_mode", "priority", "timestamp"}
DELIVERY_COLUMNS = ("source_queue", "redelivered", "received_at")
"""Columns of the source that describe the delivery. A sink ignores them."""
REPLAY_HEADER = "x-holtmq-replay"
PROPERTIES_KEPT = 10_000
INVALID_HEADERS = "$bytes"


def _type(name: str) -> DataType:
    match name:
        case "redelivered":
            return BooleanType()
        case "delivery_mode" | "priority":
            return IntegerType()
        case "timestamp" | "received_at":
            return TimestampType()
        case "body":
            return BinaryType()
        case _:
            return StringType()


_NAMES_IN_ORDER = ("source_queue", "exchange", "routing_key", "redelivered", "received_at", *NAMES, "body")
SCHEMA = StructType([StructField(name, _type(name)) for name in _NAMES_IN_ORDER])
_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    TimestampType: pa.timestamp("us", "UTC"),
    BinaryType: pa.binary(),
    StringType: pa.string(),
}
ARROW_SCHEMA = pa.schema([(field.name, _ARROW_TYPES[type(field.dataType)]) for field in SCHEMA])


class RowEncoder:
    """Turns deliveries into rows. Decoded properties are cached by their bytes. Runs on the driver and the executors."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def encode(self, deliveries: list[Delivery]) -> pa.RecordBatch:
        """Return one row per delivery."""
        count = len(deliveries)
        if not count:
            return pa.RecordBatch.from_pylist([], ARROW_SCHEMA)
        _, redelivered, exchanges, keys, raw_properties, bodies, _, _ = zip(*deliveries, strict=True)
        now = datetime.now(UTC)
        texts = {text: _text(text) for text in {*exchanges, *keys}}
        columns: list[Any] = [
            [self._queue] * count,
            map(texts.get, exchanges),
            map(texts.get, keys),
            redelivered,
            [now] * count,
        ]
        columns += zip(*(self._known.get(raw) or self._read(raw) for raw in raw_properties), strict=True)
        columns.append(bodies)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)

    def _read(self, raw: bytes) -> tuple[Any, ...]:
        """Return the values of all properties in order: the same as `Properties`, at a third of the cost.

        If each message has its own id, this is half of the source's cost in Python (benchmarks/pipeline.py).
        """
        values: list[Any] = [None] * len(NAMES)
        at = 2
        for name in present_properties(raw[:2]):
            place = _PLACES[name]
            if name in _TEXTS:
                end = at + 1 + raw[at]
                values[place] = raw[at + 1 : end].decode("utf-8", "replace")
                at = end
            elif name == "headers":
                values[place] = _headers_text(raw, at)
                at += 4 + int.from_bytes(raw[at : at + 4], "big")
            elif name == "timestamp":
                seconds = int.from_bytes(raw[at : at + 8], "big")
                # a Spark timestamp cannot represent years after 9999: the column is then null
                values[place] = datetime.fromtimestamp(seconds, UTC) if seconds <= LAST_SECOND else None
                at += 8
            else:
                values[place] = raw[at]
                at += 1
        read = tuple(values)
        if len(self._known) >= PROPERTIES_KEPT:
            self._known.clear()
        self._known[raw] = read
        return read


def _headers_text(raw: bytes, at: int) -> str:
    """Return a table as JSON. An invalid table, such as one whose names are not UTF-8, is returned as its bytes."""
    try:
        table, _ = decode_table(raw, at)
    except FrameError:
        end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
        return json.dumps([INVALID_HEADERS, base64.b64encode(raw[at:end]).decode()])
    return json.dumps(table_to_json(table), ensure_ascii=False)


def _text(value: str) -> str:
    """Replace bytes that are not UTF-8 by U+FFFD. A Spark string cannot contain them."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value


class MessageEncoder:
    """Turns rows into messages to publish. Created on the driver, which checks the schema; used on the executors."""

    def __init__(self, schema: StructType, exchange: str | None, *, persistent: bool, mark: str | None = None) -> None:
        self._exchange = exchange
        self._persistent = persistent
        self._mark = mark
        names = set(schema.names)
        known = {"exchange", "routing_key", "body", *NAMES, *DELIVERY_COLUMNS}
        if "routing_key" not in names or "body" not in names:
            raise InvalidValueError(
                f"messages to publish need the columns routing_key and body, found the columns {', '.join(schema.names)}"
            )
        if exchange is None and "exchange" not in names:
            raise InvalidValueError(
                "no exchange to publish to: expected a column exchange, or the option exchange for all messages"
            )
        unknown = sorted(names - known)
        if unknown:
            raise InvalidValueError(
                f"column {unknown[0]!r} is not a property of a message: drop it, or rename it to one of {', '.join(NAMES)}"
            )
        for field in schema:
            _require_type(field)
        self._properties = [name for name in NAMES if name in names]

    def encode(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        """Yield one message per row. Raise InvalidValueError for a row that cannot be published."""
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in DELIVERY_COLUMNS}
        exchanges = columns.get("exchange") if self._exchange is None else [self._exchange] * batch.num_rows
        properties = [columns[name] for name in self._properties]
        assert exchanges is not None
        for number, (exchange, key, body) in enumerate(zip(exchanges, columns["routing_key"], columns["body"], strict=True)):
            yield self._message(
                exchange, key, body, {name: column[number] for name, column in zip(self._properties, properties, strict=True)}
            )

    def _message(self, exchange: str | None, key: str | None, body: bytes | str | None, properties: dict[str, Any]) -> Outgoing:
        if exchange is None or key is None or body is None:
            missing = "exchange" if exchange is None else "routing_key" if key is None else "body"
            raise InvalidValueError(f"column {missing!r} is null in a row: expected a value in each row")
        if properties.get("headers") is not None:
            properties["headers"] = _headers(properties["headers"])
        if self._mark is not None and not isinstance(properties.get("headers"), bytes):
            properties["headers"] = {**(properties.get("headers") or {}), REPLAY_HEADER: self._mark}
        if isinstance(time := properties.get("timestamp"), datetime) and time.tzinfo is None:
            properties["timestamp"] = time.replace(tzinfo=UTC)  # not the time zone of the executor
        if self._persistent and properties.get("delivery_mode") is None:
            properties["delivery_mode"] = PERSISTENT
        try:
            raw = encode_properties(properties)
        except (HoltmqError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidValueError(f"a property of the message with key {key!r} cannot be encoded: {error}") from error
        return Outgoing(exchange, key, raw, body.encode() if isinstance(body, str) else body)


def _require_type(field: StructField) -> None:
    """Raise InvalidValueError if a column has the wrong type. Numbers are not converted to text: 7 may have been "007"."""
    is_text = isinstance(field.dataType, StringType | NullType)
    if field.name in (*_TEXTS, "exchange", "routing_key") and not is_text:
        raise InvalidValueError(
            f"column {field.name!r} must be a string, got type {field.dataType.simpleString()}: cast it first"
        )
    if field.name == "headers" and not (is_text or isinstance(field.dataType, MapType | StructType)):
        expected = "JSON text, a map or a struct"
        raise InvalidValueError(
            f"column 'headers' must be {expected}, got type {field.dataType.simpleString()}: convert it with to_json"
        )


def _headers(value: object) -> Mapping[str, Any] | bytes:
    match value:
        case str() if value.startswith(f'["{INVALID_HEADERS}"'):
            return base64.b64decode(json.loads(value)[1])
        case str():
            return read_headers(value)
        case list():  # a map, as Arrow represents it
            return dict(value)
        case Mapping():
            return {name: item for name, item in value.items() if item is not None}
        case _:
            raise InvalidValueError(f"headers must be JSON text, a map or a struct, got {type(value).__name__}")
