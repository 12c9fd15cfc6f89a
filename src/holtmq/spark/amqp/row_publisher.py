"""RowPublisher: publishes the rows of a task with confirms, for the sink and for publish()."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from holtmq.client.publisher import Outgoing, Publisher, PublishError, ReceivedConfirms
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions, require_known
from holtmq.spark.amqp.message_encoder import MessageEncoder
from holtmq.spark.amqp.message_numbers import MessageNumbers, unnumbered


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
        number = self._numbering()
        try:
            for batch in batches:
                publisher.publish(number(self._encoder.encode(batch)))
            publisher.flush()
        finally:
            publisher.close()
        return publisher.published

    def _numbering(self) -> Callable[[Iterator[Outgoing]], Iterator[Outgoing]]:
        """Return what is done with the headers that number messages for a stream: set, removed, or left as they are."""
        if self._options.publisher is not None:
            return MessageNumbers.of_task(self._options.publisher).number
        return iter if self._options.keep_numbers else unnumbered

    def conclude(self, tasks: Iterable[ReceivedConfirms]) -> None:
        """Raise PublishError if messages were returned, unless on_return is "count". Runs on the driver after all tasks."""
        published = list(tasks)
        returned = sum(task.returned for task in published)
        if returned and self._options.on_return == "fail":
            first = next(task.first_return for task in published if task.first_return)
            count = sum(task.confirmed for task in published)
            raise PublishError(
                f"{returned:,} of {count:,} messages reached no queue (the first: {first}). All others were published. "
                "Bind a queue, set mandatory to false, or set onReturn to count"
            )
