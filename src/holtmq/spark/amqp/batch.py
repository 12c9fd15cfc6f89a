"""Reading a queue once: drain it, or browse without removing anything. Bounded by what was there when the job was planned."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection, Delivery
from holtmq.spark.amqp.columns import Rows
from holtmq.spark.amqp.options import READING, Options
from holtmq.wire import methods as wire

MOST_PREFETCH = 65_535
SHARE = 50_000
"""The most messages that one task drains: none is acknowledged until it is done, so prefetch must allow them all."""
BATCH_ROWS = 5_000
BATCH_BYTES = 64 * 1024 * 1024
IDLE_S = 0.2


class Share(InputPartition):
    """How many messages a task may take."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__(number)
        self.count = count


class QueueReader(DataSourceReader):
    """`partitions` runs on the driver, once; `read` on the executors, once for each."""

    def __init__(self, options: dict[str, str]) -> None:
        chosen = Options(options, READING)
        self._broker = chosen.broker()
        self._queue = chosen.text("queue")
        self._is_browsing = chosen.one_of("mode", "browse", "drain") == "browse"
        self._limit = chosen.number("limit", 0)
        self._tasks = chosen.number("partitions", 2, least=1)

    def partitions(self) -> list[Share]:
        """A share for each task. When browsing there is one task: what others give back, a second one would see again."""
        with self._broker.connect("holtmq.spark") as connection:
            count = ready_messages(connection, self._queue)
        count = min(count, self._limit) if self._limit else count
        if self._is_browsing:
            return [Share(0, count)]
        tasks = max(1, min(self._tasks, count), -(-count // SHARE))
        return [Share(n, count // tasks + (n < count % tasks)) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        if not partition.count:
            return
        with self._broker.connect("holtmq.spark") as connection:
            if partition.count <= MOST_PREFETCH:
                connection.call(wire.BasicQos(0, partition.count, False), wire.BasicQosOk)
            connection.call(wire.BasicConsume(0, self._queue, "holtmq"), wire.BasicConsumeOk)
            last = 0
            rows = Rows(self._queue)
            for deliveries in self._take(connection, partition.count):
                last = deliveries[-1].tag
                yield rows.of(deliveries)
            if last and not self._is_browsing:
                connection.send(CHANNEL, wire.BasicAck(last, True))

    def _take(self, connection: BlockingConnection, count: int) -> Iterator[list[Delivery]]:
        """Deliveries until there are as many as this, or the queue has no more."""
        left = count
        while left:
            self._wait_for(connection, min(left, BATCH_ROWS))
            deliveries, connection.deliveries = connection.deliveries[:left], []
            if not deliveries:
                return
            left -= len(deliveries)
            yield deliveries

    def _wait_for(self, connection: BlockingConnection, wanted: int) -> None:
        size = counted = 0
        while len(connection.deliveries) < wanted and size < BATCH_BYTES:
            size += sum(len(delivery.body) for delivery in connection.deliveries[counted:])
            counted = len(connection.deliveries)
            if not connection.receive(IDLE_S) and (connection.deliveries or not ready_messages(connection, self._queue)):
                return


def ready_messages(connection: BlockingConnection, queue: str) -> int:
    """How many messages a queue has for consumers; an error where there is no such queue."""
    return connection.call(wire.QueueDeclare(0, queue, passive=True), wire.QueueDeclareOk).message_count
