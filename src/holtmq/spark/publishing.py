"""Publishing a DataFrame with its outcome told: what `format("amqp")` does, for those who want to know the counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from holtmq.client.publisher import ReceivedConfirms
from holtmq.spark.amqp.writer import Sending

OUTCOME = "confirmed long, returned long, retried long, first_return string"


def publish(messages: DataFrame, **options: Any) -> ReceivedConfirms:
    """Publish all rows, with the options of the sink; what became of them. A task that fails is run, and published, again."""
    sending = Sending({name: str(value) for name, value in options.items()}, messages.schema)
    schema = pa.schema(
        [("confirmed", pa.int64()), ("returned", pa.int64()), ("retried", pa.int64()), ("first_return", pa.string())]
    )

    def send(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([asdict(sending.send(batches))], schema)

    total = ReceivedConfirms()
    for row in messages.mapInArrow(send, OUTCOME).collect():
        total.confirmed += row["confirmed"]
        total.returned += row["returned"]
        total.retried += row["retried"]
        total.first_return = total.first_return or row["first_return"]
    return total
