"""The batch reader: browse queues without removing anything.

A job reads no more messages than a queue had when the job was planned. It acknowledges none: Spark may read a plan twice, run
two attempts of a task, or stop after a few rows, and does not say when the rows are stored. `holtmq.spark.drain` removes
messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holtmq.client.blocking_connection import BlockingConnection
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.amqp_options import MAX_PREFETCH, BrokerOptions
from holtmq.spark.amqp.backlog import SILENCE_S, SilentQueueError
from holtmq.spark.amqp.columns import RowEncoder
from holtmq.spark.amqp.reading import QUEUES
from holtmq.spark.amqp.subscription import Subscription, ready_messages
from holtmq.spark.amqp.task_output import without_traceback
from holtmq.spark.job_announcement import announce_read
from holtmq.wire import methods as wire

BATCH_ROWS = 5_000
BATCH_BYTES = 64 * 1024 * 1024
IDLE_S = 0.2


class Share(InputPartition):
    """A queue, and the number of messages that a task may read from it."""

    def __init__(self, queue: str, count: int) -> None:
        super().__init__(queue)
        self.queue = queue
        self.count = count


class QueueReader(DataSourceReader):
    """Reads queues. Spark calls `partitions` on the driver, once, and `read` on the executors, once per partition."""

    def __init__(self, options: dict[str, str], application: str = "") -> None:
        self._application = application
        self._options = QUEUES.parse_batch(options)
        self._broker = BrokerOptions.parse(options)

    def partitions(self) -> list[Share]:
        """Return a task per queue: a second one would see what the first one requeued."""
        queues = Subscription(self._broker, self._options).required_names()
        with self._broker.connect("holtmq.spark") as connection:
            counts = [ready_messages(connection, queue) for queue in queues]
        left = self._options.limit or sum(counts)
        shares = []
        for queue, count in zip(queues, counts, strict=True):
            shares.append(Share(queue, min(count, left)))
            left -= shares[-1].count
        announce_read(self._application, self._broker, self._options, sum(share.count for share in shares))
        return shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a share. The broker requeues them when the connection is closed."""
        assert isinstance(partition, Share)
        return without_traceback(self._browse(partition))

    def _browse(self, share: Share) -> Iterator[pa.RecordBatch]:
        if not share.count:
            return
        with self._broker.connect("holtmq.spark") as connection:
            if share.count <= MAX_PREFETCH:
                connection.call(wire.BasicQos(0, share.count, False), wire.BasicQosOk)
            connection.call(wire.BasicConsume(0, share.queue, "holtmq"), wire.BasicConsumeOk)
            encoder = RowEncoder(share.queue)
            for deliveries in _take(connection, share):
                yield encoder.encode(deliveries)


def _take(connection: BlockingConnection, share: Share) -> Iterator[list[Delivery]]:
    """Yield deliveries until the share is complete or the queue is empty."""
    left = share.count
    while left:
        _wait_for(connection, share.queue, min(left, BATCH_ROWS))
        deliveries, connection.deliveries = connection.deliveries[:left], []
        if not deliveries:
            return
        left -= len(deliveries)
        yield deliveries


def _wait_for(connection: BlockingConnection, queue: str, wanted: int) -> None:
    size = counted = 0
    deadline = time.monotonic() + SILENCE_S
    while len(connection.deliveries) < wanted and size < BATCH_BYTES:
        size += sum(len(delivery.body) for delivery in connection.deliveries[counted:])
        counted = len(connection.deliveries)
        if connection.receive(IDLE_S):
            continue
        if connection.deliveries or not (ready := ready_messages(connection, queue)):
            return
        if time.monotonic() > deadline and not connection.deliveries:
            raise SilentQueueError.of(f"queue {queue!r} has", ready, SILENCE_S)
