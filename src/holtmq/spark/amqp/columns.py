"""Messages as rows: the properties, the headers as JSON text (in the notation of `table_json`), the body, the delivery, and the
routing key and the properties as the bytes that were received.
"""

from __future__ import annotations

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
from holtmq.wire.content import NAMES

DELIVERY_COLUMNS = ("source_queue", "redelivered", "received_at")
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


class RowEncoder:
    """Turns deliveries into rows. Decoded properties are cached by their bytes. Runs on the driver and the executors."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._values = PropertyValues()

    def encode(self, deliveries: list[Delivery]) -> pa.RecordBatch:
        """Return one row per delivery."""
        count = len(deliveries)
        if not count:
            return pa.RecordBatch.from_pylist([], ARROW_SCHEMA)
        _, redelivered, exchanges, keys, raw_properties, bodies, _, _ = zip(*deliveries, strict=True)
        now = datetime.now(UTC)
        raw_texts = {text: text.encode("utf-8", "surrogateescape") for text in {*exchanges, *keys}}
        # a Spark string cannot contain bytes that are not UTF-8: they are replaced by U+FFFD
        texts = {text: raw.decode("utf-8", "replace") for text, raw in raw_texts.items()}
        columns: list[Any] = [
            [self._queue] * count,
            map(texts.get, exchanges),
            map(texts.get, keys),
            redelivered,
            [now] * count,
        ]
        columns += zip(*map(self._values.__getitem__, raw_properties), strict=True)
        columns += (bodies, map(raw_texts.get, keys), raw_properties)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def with_all_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Add columns that rows of an earlier version do not have. They are null."""
    if batch.schema.names == ARROW_SCHEMA.names:
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names}
    unset = [columns.get(field.name, pa.nulls(batch.num_rows, field.type)) for field in ARROW_SCHEMA]
    return pa.RecordBatch.from_arrays(unset, schema=ARROW_SCHEMA)
