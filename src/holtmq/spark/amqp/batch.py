"""The batch reader: drain a queue, or browse it without removing anything.

A job reads no more messages than the queue had when the job was planned.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.amqp_options import MAX_PREFETCH, BrokerOptions, ReadOptions, require_known
from holtmq.spark.amqp.columns import RowEncoder
from holtmq.wire import methods as wire

SHARE = 50_000
"""Maximum number of messages per task. A task acknowledges only at its end, so the prefetch count must cover them all."""
BATCH_ROWS = 5_000
BATCH_BYTES = 64 * 1024 * 1024
IDLE_S = 0.2


class Share(InputPartition):
    """The number of messages that a task may read."""

    def __init__(self, number: int, count: int) -> None:
        super().__init__(number)
        self.count = count


class QueueReader(DataSourceReader):
    """Reads a queue. Spark calls `partitions` on the driver, once, and `read` on the executors, once per partition."""

    def __init__(self, options: dict[str, str]) -> None:
        require_known(options, BrokerOptions, ReadOptions)
        self._broker = BrokerOptions.parse(options)
        self._options = ReadOptions.parse(options)

    def partitions(self) -> list[Share]:
        """Divide the messages among tasks. Browsing uses one task: a second one would see what the first one requeued."""
        with self._broker.connect("holtmq.spark") as connection:
            count = ready_messages(connection, self._options.queue)
        count = min(count, self._options.limit) if self._options.limit else count
        if self._options.mode == "browse":
            return [Share(0, count)]
        tasks = max(1, min(self._options.partitions, count), -(-count // SHARE))
        return [Share(n, count // tasks + (n < count % tasks)) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a share, and acknowledge them at the end if the mode is "drain"."""
        assert isinstance(partition, Share)
        if not partition.count:
            return
        with self._broker.connect("holtmq.spark") as connection:
            if partition.count <= MAX_PREFETCH:
                connection.call(wire.BasicQos(0, partition.count, False), wire.BasicQosOk)
            connection.call(wire.BasicConsume(0, self._options.queue, "holtmq"), wire.BasicConsumeOk)
            last = 0
            encoder = RowEncoder(self._options.queue)
            for deliveries in self._take(connection, partition.count):
                last = deliveries[-1].tag
                yield encoder.encode(deliveries)
            if last and self._options.mode == "drain":
                connection.send(CHANNEL, wire.BasicAck(last, True))

    def _take(self, connection: BlockingConnection, count: int) -> Iterator[list[Delivery]]:
        """Yield deliveries until there are `count` of them or the queue is empty."""
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
            if connection.receive(IDLE_S):
                continue
            if connection.deliveries or not ready_messages(connection, self._options.queue):
                return


def ready_messages(connection: BlockingConnection, queue: str) -> int:
    """Return the number of ready messages in a queue. Raise RefusedError if the queue does not exist."""
    return connection.call(wire.QueueDeclare(0, queue, passive=True), wire.QueueDeclareOk).message_count
