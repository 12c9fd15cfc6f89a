"""The batch reader of stream queues: the driver plans ranges of offsets, and the executors read them in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.offset_range import OffsetRange, split_ranges
from holtmq.spark.amqp.range_reader import RangeReader, report_loss
from holtmq.spark.amqp.reading import STREAM_QUEUES
from holtmq.spark.amqp.remote_stream import RemoteStream
from holtmq.spark.amqp.subscription import Subscription
from holtmq.spark.amqp.task_output import without_traceback
from holtmq.spark.job_announcement import announce_read


class StreamQueueReader(DataSourceReader):
    """Reads stream queues. Spark calls `partitions` on the driver, once, and `read` on the executors, once per partition."""

    def __init__(self, options: dict[str, str], application: str = "") -> None:
        self._application = application
        self._options = STREAM_QUEUES.parse_batch(options)
        self._broker = BrokerOptions.parse(options)

    def partitions(self) -> list[OffsetRange]:
        """Return the ranges to read. What is published later is not included."""
        ranges = self.ranges()
        announce_read(self._application, self._broker, self._options, sum(each.end - each.start for each in ranges))
        return split_ranges(ranges, self._options.min_partitions)

    def ranges(self) -> list[OffsetRange]:
        """Return what to read of each stream now: one range for each, which may be empty. Runs on the driver."""
        now = datetime.now(UTC)
        queues = Subscription(self._broker, self._options).required_names()
        return [self._range(queue, now) for queue in queues]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range."""
        if not isinstance(partition, OffsetRange):  # Spark makes a partition of its own if there is nothing to read
            return iter(())
        reader = RangeReader(self._broker, partition, fail_on_data_loss=self._options.fail_on_data_loss)
        return without_traceback(reader.read())

    def _range(self, queue: str, now: datetime) -> OffsetRange:
        with closing(RemoteStream(self._broker, queue)) as stream:
            first = stream.first()
            latest = None if first is None else stream.end()
            if first is None or latest is None:
                return OffsetRange(queue, 0, 0, now)
            start, end = stream.find(self._options.starts().of(queue)), stream.find(self._options.ends().of(queue))
        start, end = first if start is None else start, latest if end is None else min(end, latest)
        if start < first:
            report_loss(queue, start, first, fails=self._options.fail_on_data_loss)
        start = max(start, first)
        return OffsetRange(queue, start, max(start, end), now)  # a start may be in the future
