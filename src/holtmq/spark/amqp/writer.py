"""The sink: rows are published with confirms. A task ends when the broker has confirmed all of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.client.publisher import ReceivedConfirms
from holtmq.spark.amqp.row_publisher import RowPublisher


@dataclass
class Receipt(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    published: ReceivedConfirms


def _published(receipts: list[WriterCommitMessage | None]) -> list[ReceivedConfirms]:
    return [receipt.published for receipt in receipts if isinstance(receipt, Receipt)]


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job. Spark calls `write` on the executors, once per task, and `commit` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._publisher = RowPublisher.parse(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publisher.conclude(_published(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Spark calls `write` on the executors, and `commit` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._publisher = RowPublisher.parse(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publisher.conclude(_published(messages))
