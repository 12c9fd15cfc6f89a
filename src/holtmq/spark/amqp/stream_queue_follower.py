"""The stream reader of stream queues: micro-batches are ranges of offsets, which the executors read from the broker.

There is no spool, and nothing is acknowledged: the checkpoint contains the offsets. A micro-batch that runs again has the same
rows, so that a sink that writes a batch once gets each message exactly once (tests/spark/test_stream_queues.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holtmq.client.blocking_connection import ConnectionLostError, RefusedError
from holtmq.client.run_announcer import RunAnnouncer
from holtmq.errors import NotFoundError
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.offset_options import FollowOptions
from holtmq.spark.amqp.offset_range import OffsetRange, split_ranges
from holtmq.spark.amqp.range_reader import RangeReader, report_deletion, report_replacement
from holtmq.spark.amqp.reading import STREAM_QUEUES
from holtmq.spark.amqp.receiver import FIRST_PAUSE_S, LONGEST_PAUSE_S, LOOK_S, RECONNECT_TIMEOUT_S
from holtmq.spark.amqp.remote_stream import RemoteStream
from holtmq.spark.amqp.stream_mark import StreamMark
from holtmq.spark.amqp.stream_metrics import StreamMetrics
from holtmq.spark.amqp.stream_progress import StreamProgress
from holtmq.spark.amqp.subscription import Subscription
from holtmq.spark.amqp.task_output import without_traceback
from holtmq.spark.job_announcement import announced_stream, end_stream

T = TypeVar("T")


class StreamQueueFollower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads stream queues as a stream. Spark calls `read` on the executors, and all other methods on the driver.

    The constructor checks nothing, for the same reason as that of `QueueStreamReader`.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._given = options
        self._streams: dict[str, RemoteStream] = {}
        self._looked_at: float | None = None
        self._recognised: dict[str, int] = {}
        """The attachment with which each stream was found to be the one of the checkpoint."""
        self._ends: dict[str, int] = {}
        """Where the streams ended when they were last asked."""
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
            offset = self._unless_deleted(queue, partial(self._find_start, stream))
            if offset is not None:
                progress = progress.starting(queue, offset)
        return progress.marked(self._marks()).to_dict()

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
        self._end = begin if end is known else end.marked(self._marks())
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
        if self._looked_at is None:
            self._add_streams(subscription.required_names())
        elif subscription.is_pattern and time.monotonic() - self._looked_at > LOOK_S:
            self._add_streams(_patiently(subscription.names))
        return dict(self._streams)

    def _add_streams(self, queues: tuple[str, ...]) -> None:
        self._looked_at = time.monotonic()
        for queue in queues:
            self._streams.setdefault(queue, RemoteStream(self._broker, queue))

    def _find_start(self, stream: RemoteStream) -> int | None:
        offset = stream.find(self._options.starts().of(stream.queue))
        if offset is not None:
            stream.end()  # for its mark: a query that starts at the end may wait long for its first message
        return offset

    def _find_ends(self) -> dict[str, int]:
        ends = {
            queue: self._unless_deleted(queue, partial(_patiently, stream.end))
            for queue, stream in self._known_streams().items()
        }
        self._ends = {queue: end for queue, end in ends.items() if end is not None}
        return self._ends

    def _marks(self) -> dict[str, StreamMark]:
        return {queue: stream.mark for queue, stream in self._streams.items() if stream.mark is not None}

    def _unless_deleted(self, queue: str, look: Callable[[], int | None]) -> int | None:
        """Ask for an offset. Return None, and leave the stream alone, if it matches the pattern and was deleted."""
        try:
            return look()
        except RefusedError as error:
            if error.reply_code != NotFoundError.reply_code or self._options.queue_pattern is None:
                raise
        self._streams.pop(queue).close()
        self._recognised.pop(queue, None)
        planned, end = self._end.offsets.get(queue), self._ends.pop(queue, 0)
        if planned is not None and planned < end:
            report_deletion(queue, planned, end, fails=self._options.fail_on_data_loss)
        return None

    def _with_new_streams(self, progress: StreamProgress, ends: dict[str, int]) -> StreamProgress:
        """Add streams that had no message before. Start again in those that were deleted and declared again."""
        for queue, end in ends.items():
            offset = progress.offsets.get(queue)
            if queue not in self._streams or (offset is not None and not self._is_another(queue, progress, end)):
                continue
            first = self._unless_deleted(queue, self._streams[queue].first)
            if first is None:
                continue
            if offset is not None:
                report_replacement(queue, offset, first, fails=self._options.fail_on_data_loss)
            progress = progress.starting(queue, first)
        return progress

    def _is_another(self, queue: str, progress: StreamProgress, end: int) -> bool:
        """Return whether a stream is not the one that was read up to here. It is asked once per connection."""
        mark, stream = progress.marks.get(queue), self._streams[queue]
        if mark is None:  # it had no message when the query started, perhaps at an offset in the future
            return end < progress.offsets[queue] != progress.starts[queue]
        if self._recognised.get(queue) == stream.attachments:
            return False
        if _patiently(partial(stream.is_another, mark)):
            return True
        self._recognised[queue] = stream.attachments
        return False


def _patiently(look: Callable[[], T]) -> T:
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
