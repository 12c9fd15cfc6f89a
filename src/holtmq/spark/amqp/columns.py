"""Messages as rows: the properties, the headers as JSON text (in the notation of `table_json`), the body, the delivery, and the
routing key and the properties as the bytes that were received.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.encoded_properties import PropertyValues
from holtmq.spark.amqp.property_columns import property_columns
from holtmq.wire.content import NAMES

OFFSET = "offset"
"""Column of the source for stream queues."""
DELIVERY_COLUMNS = ("source_queue", "redelivered", "received_at", OFFSET)
"""Columns of the source that describe the delivery. A sink ignores them."""
RAW_COLUMNS = ROUTING_KEY_RAW, PROPERTIES_RAW = ("routing_key_raw", "properties_raw")
"""Columns of the source that contain bytes as they were received."""


def _type(name: str) -> DataType:
    match name:
        case "redelivered":
            return BooleanType()
        case "delivery_mode" | "priority":
            return IntegerType()
        case "timestamp" | "received_at":
            return TimestampType()
        case "body" | "routing_key_raw" | "properties_raw":
            return BinaryType()
        case _:
            return StringType()


_NAMES_IN_ORDER = ("source_queue", "exchange", "routing_key", "redelivered", "received_at", *NAMES, "body", *RAW_COLUMNS)
SCHEMA = StructType([StructField(name, _type(name)) for name in _NAMES_IN_ORDER])
_ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(),
    IntegerType: pa.int32(),
    TimestampType: pa.timestamp("us", "UTC"),
    BinaryType: pa.binary(),
    StringType: pa.string(),
}
ARROW_SCHEMA = pa.schema([(field.name, _ARROW_TYPES[type(field.dataType)]) for field in SCHEMA])
PROPERTY_TYPES = [ARROW_SCHEMA.field(name).type for name in NAMES]


class RowEncoder:
    """Turns deliveries into rows. Decoded properties are cached by their bytes. Runs on the driver and the executors."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._values = PropertyValues()

    def encode(
        self, deliveries: list[Delivery], raws: list[bytes] | None = None, received_at: datetime | None = None
    ) -> pa.RecordBatch:
        """Return one row per delivery. Its properties and the time of receipt are as given, or its own and now."""
        count = len(deliveries)
        if not count:
            return pa.RecordBatch.from_pylist([], ARROW_SCHEMA)
        exchanges, keys = _column(deliveries, 2), _column(deliveries, 3)
        raws = _column(deliveries, 4) if raws is None else raws
        raw_texts = {text: text.encode("utf-8", "surrogateescape") for text in {*exchanges, *keys}}
        # a Spark string cannot contain bytes that are not UTF-8: they are replaced by U+FFFD
        texts = {text: raw.decode("utf-8", "replace") for text, raw in raw_texts.items()}
        columns: list[Any] = [
            pa.repeat(self._queue, count),
            [texts[exchange] for exchange in exchanges],
            [texts[key] for key in keys],
            _column(deliveries, 1),
            pa.repeat(pa.scalar(received_at or datetime.now(UTC), ARROW_SCHEMA.field("received_at").type), count),
            *property_columns(raws, PROPERTY_TYPES, self._values),
            _column(deliveries, 5),
            [raw_texts[key] for key in keys],
            raws,
        ]
        arrays = [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, ARROW_SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _column(rows: Sequence[tuple[Any, ...]], place: int) -> list[Any]:
    """Return one value of each row. Transposing thousands of rows with `zip` would take five times as long."""
    return [row[place] for row in rows]


def with_all_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add columns that rows of an earlier version do not have. They are null."""
    if batch.schema.names == ARROW_SCHEMA.names:
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names}
    unset = [columns.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(unset, schema=ARROW_SCHEMA)
