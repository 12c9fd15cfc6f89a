"""A message as a row: its properties, its headers as JSON text (in the notation of `table_json`), its body, its journey."""

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

from holtmq.client.blocking_connection import Delivery
from holtmq.client.publisher import Outgoing
from holtmq.errors import FrameError, HoltmqError, InvalidValueError
from holtmq.spark.routes import read_headers
from holtmq.table_json import table_to_json
from holtmq.wire.content import NAMES, PERSISTENT, encode_properties, present_properties
from holtmq.wire.tables import LAST_SECOND, decode_table

_PLACES = {name: place for place, name in enumerate(NAMES)}
_TEXTS = frozenset(NAMES) - {"headers", "delivery_mode", "priority", "timestamp"}
JOURNEY = ("source_queue", "redelivered", "received_at")
"""Columns of the source that a sink has no use for."""
REPLAY_HEADER = "x-holtmq-replay"
PROPERTIES_KEPT = 10_000
UNREADABLE = "$bytes"


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


_ORDER = ("source_queue", "exchange", "routing_key", "redelivered", "received_at", *NAMES, "body")
SCHEMA = StructType([StructField(name, _type(name)) for name in _ORDER])
_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    TimestampType: pa.timestamp("us", "UTC"),
    BinaryType: pa.binary(),
    StringType: pa.string(),
}
ARROW_SCHEMA = pa.schema([(field.name, _ARROW_TYPES[type(field.dataType)]) for field in SCHEMA])


class Rows:
    """Turns deliveries into rows. Properties that were seen before are not read again."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._known: dict[bytes, tuple[Any, ...]] = {}

    def of(self, deliveries: list[Delivery]) -> pa.RecordBatch:
        count = len(deliveries)
        if not count:
            return pa.RecordBatch.from_pylist([], ARROW_SCHEMA)
        _, redelivered, exchanges, keys, raw_properties, bodies = zip(*deliveries, strict=True)
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
        """The values of all properties in their order; the same as `Properties` gives, at a third of the cost.

        Where each message has an id of its own, this is half of what the source costs in Python (benchmarks/pipeline.py).
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
                # beyond the year 9999, which no timestamp of Spark's can say, it is left out
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
    """JSON of a table. Of one that can't be read, such as a name that is no UTF-8, its bytes: others pass it on as well."""
    try:
        table, _ = decode_table(raw, at)
    except FrameError:
        end = at + 4 + int.from_bytes(raw[at : at + 4], "big")
        return json.dumps([UNREADABLE, base64.b64encode(raw[at:end]).decode()])
    return json.dumps(table_to_json(table), ensure_ascii=False)


def _text(value: str) -> str:
    """Bytes that are no UTF-8 can't be a text of Spark's: they show as U+FFFD."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value


class Messages:
    """Turns rows into messages to publish."""

    def __init__(self, schema: StructType, exchange: str | None, *, persistent: bool, mark: str | None = None) -> None:
        self._exchange = exchange
        self._persistent = persistent
        self._mark = mark
        names = set(schema.names)
        known = {"exchange", "routing_key", "body", *NAMES, *JOURNEY}
        if "routing_key" not in names or "body" not in names:
            raise InvalidValueError(f"expected the columns routing_key and body, got {', '.join(schema.names)}")
        if exchange is None and "exchange" not in names:
            raise InvalidValueError("expected a column exchange, or the option exchange for all messages; got neither")
        unknown = sorted(names - known)
        if unknown:
            raise InvalidValueError(
                f"no property of a message is called {unknown[0]!r}: drop the column, or name it as one of {', '.join(NAMES)}"
            )
        for field in schema:
            _require_type(field)
        self._properties = [name for name in NAMES if name in names]

    def of(self, batch: pa.RecordBatch) -> Iterator[Outgoing]:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name not in JOURNEY}
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
            raise InvalidValueError(f"expected a {missing} in each row, got null")
        if properties.get("headers") is not None:
            properties["headers"] = _headers(properties["headers"])
        if self._mark is not None and not isinstance(properties.get("headers"), bytes):
            properties["headers"] = {**(properties.get("headers") or {}), REPLAY_HEADER: self._mark}
        if isinstance(time := properties.get("timestamp"), datetime) and time.tzinfo is None:
            properties["timestamp"] = time.replace(tzinfo=UTC)  # a timestamp without a zone must not get that of an executor
        if self._persistent and properties.get("delivery_mode") is None:
            properties["delivery_mode"] = PERSISTENT
        try:
            raw = encode_properties(properties)
        except (HoltmqError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise InvalidValueError(f"a message with key {key!r} has a property that can't be sent: {error}") from error
        return Outgoing(exchange, key, raw, body.encode() if isinstance(body, str) else body)


def _require_type(field: StructField) -> None:
    """What is a text in AMQP must be one in Spark: the number 7 may have been the key 007."""
    is_text = isinstance(field.dataType, StringType | NullType)
    if field.name in (*_TEXTS, "exchange", "routing_key") and not is_text:
        raise InvalidValueError(f"expected text in the column {field.name!r}, got {field.dataType.simpleString()}")
    if field.name == "headers" and not (is_text or isinstance(field.dataType, MapType | StructType)):
        expected = "JSON text, a map or a struct"
        raise InvalidValueError(f"expected headers as {expected}, got {field.dataType.simpleString()}: to_json may help")


def _headers(value: object) -> Mapping[str, Any] | bytes:
    match value:
        case str() if value.startswith(f'["{UNREADABLE}"'):
            return base64.b64decode(json.loads(value)[1])
        case str():
            return read_headers(value)
        case list():  # Arrow's form of a map
            return dict(value)
        case Mapping():
            return {name: item for name, item in value.items() if item is not None}
        case _:
            raise InvalidValueError(f"expected headers as JSON text, a map or a struct, got {type(value).__name__}")
