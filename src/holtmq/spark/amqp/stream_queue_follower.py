"""The stream reader of stream queues: micro-batches are ranges of offsets, which the executors read from the broker.

There is no spool, and nothing is acknowledged: the checkpoint contains the offsets. A micro-batch that runs again has the same
rows, so that a sink that writes a batch once gets each message exactly once (tests/spark/test_stream_queues.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holtmq.client.blocking_connection import ConnectionLostError
from holtmq.client.run_announcer import RunAnnouncer
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.offset_options import FollowOptions
from holtmq.spark.amqp.offset_range import OffsetRange, split_ranges
from holtmq.spark.amqp.range_reader import RangeReader, report_loss
from holtmq.spark.amqp.reading import STREAM_QUEUES
from holtmq.spark.amqp.receiver import FIRST_PAUSE_S, LONGEST_PAUSE_S, LOOK_S, RECONNECT_TIMEOUT_S
from holtmq.spark.amqp.remote_stream import RemoteStream
from holtmq.spark.amqp.stream_metrics import StreamMetrics
from holtmq.spark.amqp.stream_progress import StreamProgress
from holtmq.spark.amqp.subscription import Subscription
from holtmq.spark.amqp.task_output import without_traceback
from holtmq.spark.job_announcement import announced_stream, end_stream


class StreamQueueFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads stream queues as a stream. Spark calls `read` on the executors, and all other methods on the driver.

    The constructor checks nothing, for the same reason as that of `QueueStreamReader`.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._given = options
        self._streams: dict[str, RemoteStream] = {}
        self._looked_at = 0.0
        self._final: dict[str, int] | None = None
        self._end = StreamProgress()
        self._lags: dict[str, int] = {}
        self._read_before: int | None = None
        """How many offsets the micro-batches of earlier runs had."""
        self._run: RunAnnouncer | None = None

    @cached_property
    def _options(self) -> FollowOptions:
        return STREAM_QUEUES.parse_stream(self._given)

    @cached_property
    def _broker(self) -> BrokerOptions:
        return BrokerOptions.parse(self._given)

    # Spark calls these on the driver, always from one thread.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        progress = StreamProgress()
        for queue, stream in self._known_streams().items():
            offset = stream.find(self._options.starts().of(queue))
            if offset is not None:
                progress = progress.starting(queue, offset)
        return progress.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a micro-batch."""
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the streams end now. The query ends when it has read up to there."""
        self._close()  # new consumers see all that was confirmed
        self._final = self._find_ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Plan the next micro-batch, and return its end."""
        begin = StreamProgress.parse(start)
        self._read_before = begin.messages if self._read_before is None else self._read_before
        ends = self._find_ends() if self._final is None else self._final
        known = self._with_new_streams(begin, ends)
        self._lags = known.lags(ends)
        end = known.advance(ends, limit.max_rows if isinstance(limit, ReadMaxRows) else None, datetime.now(UTC))
        self._end = begin if end is known else end
        if end is known and self._final is not None and self._run is not None:
            self._run.end("finished")  # Spark kills this process next, without a call of stop()
        return self._end.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last offset with the metrics of the stream, for the progress of the query."""
        if self._read_before is None:
            return None
        metrics = StreamMetrics(self._lag(), self._read(), acknowledged=0, redelivered=0, oldest_age_ms=None)
        return {**self._end.to_dict(), **metrics.to_dict(), "lags": self._lags}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[OffsetRange]:
        """Return the ranges of a micro-batch. They depend on nothing but the offsets and the options."""
        ranges = StreamProgress.parse(end).ranges_since(StreamProgress.parse(start))
        return split_ranges(ranges, self._options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint contains the offsets, and the messages stay in the stream."""

    def stop(self) -> None:
        """Close the connections."""
        if self._run is not None:
            end_stream(self._run)
        self._close()

    # Spark calls this on the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a range."""
        assert isinstance(partition, OffsetRange)
        reader = RangeReader(self._broker, partition, fail_on_data_loss=self._options.fail_on_data_loss)
        return without_traceback(reader.read())

    def _close(self) -> None:
        for stream in self._streams.values():
            stream.close()

    def _read(self) -> int:
        """Return how many offsets the micro-batches of this run had."""
        return self._end.messages - (self._read_before or 0)

    def _lag(self) -> int:
        return sum(self._lags.values())

    def _known_streams(self) -> dict[str, RemoteStream]:
        """Return the streams to read. For a pattern, look for new ones now and then. The first call announces the run."""
        if self._run is None:
            self._run = announced_stream(self._broker, self._options, self._read, self._lag).start()
        subscription = Subscription(self._broker, self._options)
        now = time.monotonic()
        if not self._streams or (subscription.is_pattern and now - self._looked_at > LOOK_S):
            self._looked_at = now
            for queue in subscription.required_names():
                self._streams.setdefault(queue, RemoteStream(self._broker, queue))
        return self._streams

    def _find_ends(self) -> dict[str, int]:
        ends = {queue: _patiently(stream.end) for queue, stream in self._known_streams().items()}
        return {queue: end for queue, end in ends.items() if end is not None}

    def _with_new_streams(self, progress: StreamProgress, ends: dict[str, int]) -> StreamProgress:
        """Add streams that had no message before. Start again in those that were deleted and declared again."""
        for queue, end in ends.items():
            offset = progress.offsets.get(queue)
            if offset is not None and (end >= offset or offset == progress.starts[queue]):  # or a start in the future
                continue
            first = self._streams[queue].first()
            if first is None:
                continue
            if offset is not None:
                report_loss(queue, offset, first, fails=self._options.fail_on_data_loss)
            progress = progress.starting(queue, first)
        return progress


def _patiently(look: Callable[[], int | None]) -> int | None:
    """Repeat a request while the broker is unreachable, for as long as a receiver would."""
    lost_at, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        try:
            return look()
        except ConnectionLostError:
            if time.monotonic() - lost_at > RECONNECT_TIMEOUT_S:
                raise
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
