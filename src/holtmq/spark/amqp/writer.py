"""Publishing rows, with confirms: a task is done when the broker has taken all of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.client.publisher import RETRIES, WINDOW, Publisher, PublishError, ReceivedConfirms
from holtmq.spark.amqp.columns import Messages
from holtmq.spark.amqp.options import WRITING, Options

MARK = "mark"
"""The option whose value goes into a header of each message."""


@dataclass
class Receipt(WriterCommitMessage):
    """What a task has to say to the driver."""

    published: ReceivedConfirms


class Sending:
    """How rows become messages of a broker. Made on the driver, used on the executors."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        chosen = Options(options, WRITING)
        self._broker = chosen.broker()
        self._messages = Messages(
            schema, chosen.optional("exchange"), persistent=chosen.is_on("persistent", default=True), mark=chosen.optional(MARK)
        )
        self._mandatory = chosen.is_on("mandatory", default=True)
        self._fails_on_return = chosen.one_of("onReturn", "fail", "count") == "fail"
        self._window = chosen.number("window", WINDOW, least=1)
        self._retries = chosen.number("retries", RETRIES)
        self._rate = chosen.number("rate", 0)

    def send(self, batches: Iterator[pa.RecordBatch]) -> ReceivedConfirms:
        """Publish a task's rows and wait for the confirms. `rate` is a task's own: messages a second."""
        publisher = Publisher(
            lambda: self._broker.connect("holtmq.spark"),
            mandatory=self._mandatory,
            window=self._window,
            retries=self._retries,
            rate=self._rate,
        )
        try:
            for batch in batches:
                publisher.publish(self._messages.of(batch))
            publisher.flush()
        finally:
            publisher.close()
        return publisher.published

    def conclude(self, receipts: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done: messages that reached no queue are an error, unless it was said otherwise."""
        published = [receipt.published for receipt in receipts if isinstance(receipt, Receipt)]
        returned = sum(task.returned for task in published)
        if returned and self._fails_on_return:
            first = next(task.first_return for task in published if task.first_return)
            count = sum(task.confirmed for task in published)
            raise PublishError(
                f"{returned:,} of {count:,} messages reached no queue (the first: {first}); all others are published. "
                "Bind a queue, or set mandatory to false, or onReturn to count"
            )


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._sending = Sending(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._sending.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sending.conclude(messages)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._sending = Sending(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._sending.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._sending.conclude(messages)
