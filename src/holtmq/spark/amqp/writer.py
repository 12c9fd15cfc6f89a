"""The sink: rows are published with confirms. A task ends when the broker has confirmed all of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.client.publisher import Publisher, PublishError, ReceivedConfirms
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions, require_known
from holtmq.spark.amqp.message_encoder import MessageEncoder


@dataclass
class Receipt(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    published: ReceivedConfirms


class RowPublisher:
    """Publishes the rows of a task. Created on the driver, used on the executors."""

    def __init__(self, broker: BrokerOptions, options: PublishOptions, schema: StructType) -> None:
        self._broker = broker
        self._options = options
        self._encoder = MessageEncoder(schema, options.exchange, persistent=options.persistent, mark=options.mark)

    @classmethod
    def parse(cls, given: dict[str, str], schema: StructType) -> RowPublisher:
        """Create a publisher from the options of Spark."""
        require_known(given, BrokerOptions, PublishOptions)
        return cls(BrokerOptions.parse(given), PublishOptions.parse(given), schema)

    def send(self, batches: Iterator[pa.RecordBatch]) -> ReceivedConfirms:
        """Publish the rows of a task and wait for the confirms. Runs on the executors. `rate` applies to each task."""
        publisher = Publisher(
            lambda: self._broker.connect("holtmq.spark"),
            mandatory=self._options.mandatory,
            window=self._options.window,
            retries=self._options.retries,
            rate=self._options.rate,
        )
        try:
            for batch in batches:
                publisher.publish(self._encoder.encode(batch))
            publisher.flush()
        finally:
            publisher.close()
        return publisher.published

    def conclude(self, receipts: list[WriterCommitMessage | None]) -> None:
        """Raise PublishError if messages were returned, unless on_return is "count". Runs on the driver after all tasks."""
        published = [receipt.published for receipt in receipts if isinstance(receipt, Receipt)]
        returned = sum(task.returned for task in published)
        if returned and self._options.on_return == "fail":
            first = next(task.first_return for task in published if task.first_return)
            count = sum(task.confirmed for task in published)
            raise PublishError(
                f"{returned:,} of {count:,} messages reached no queue (the first: {first}). All others were published. "
                "Bind a queue, set mandatory to false, or set onReturn to count"
            )


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job. Spark calls `write` on the executors, once per task, and `commit` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._publisher = RowPublisher.parse(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publisher.conclude(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Spark calls `write` on the executors, and `commit` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._publisher = RowPublisher.parse(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publisher.conclude(messages)
