"""The messages of a stream queue as rows: those of a queue, and the offset. Runs on the executors."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from holtmq.client.delivered_offset import OffsetTaker
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.columns import OFFSET, SCHEMA, RowEncoder

STREAM_SCHEMA = StructType([*SCHEMA, StructField(OFFSET, LongType())])


class EncodedOffsets(NamedTuple):
    """What deliveries have become."""

    rows: pa.RecordBatch
    damaged: list[int]
    """Offsets of messages that the broker could not read."""
    next_offset: int
    """The offset after the last delivery."""


class OffsetRowEncoder:
    """Turns the deliveries of a stream into rows. The same deliveries become the same rows whenever they are read.

    All rows have the same time of receipt, that of the plan.
    """

    def __init__(self, queue: str, received_at: datetime) -> None:
        self._received_at = received_at
        self._rows = RowEncoder(queue)
        self._offsets = OffsetTaker(queue)

    def encode(self, deliveries: list[Delivery], start: int, end: int) -> EncodedOffsets:
        """Return the rows with offsets from `start` up to `end`."""
        kept: list[Delivery] = []
        offsets: list[int] = []
        properties: list[bytes] = []
        damaged: list[int] = []
        offset = start - 1
        for delivery in deliveries:
            offset, raw = self._offsets.take(delivery.raw_properties)
            if not start <= offset < end:
                continue
            if delivery.redelivered:  # no message of a stream is, but the report of a damaged one
                damaged.append(offset)
                continue
            kept.append(delivery)
            offsets.append(offset)
            properties.append(raw)
        rows = self._rows.encode(kept, properties, self._received_at)
        rows = rows.append_column(OFFSET, pa.array(offsets, pa.int64()))
        return EncodedOffsets(rows, damaged, max(start, offset + 1))
