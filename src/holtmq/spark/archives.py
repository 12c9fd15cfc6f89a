"""archive(): queues into files by date, as a stream that continues or that ends when the queue is empty.

A stream queue is read by its offsets, which are in the checkpoint. For any other queue this holds:

Messages are acknowledged when they are in the spool beside the checkpoint. A batch that runs again after a crash therefore
contains the same messages, and the sink (`archive_sink`) stores it once. So each received message is in the archive once.

A message that the broker delivers twice, because of a crash between spool and acknowledgement, is marked as redelivered. If it
has an id, the copy is removed when its files are compacted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.spark import compaction
from holtmq.spark.amqp.amqp_options import PREFETCH, RECEIVERS, SEGMENT_ROWS, BrokerOptions, QueueOptions, StreamOptions
from holtmq.spark.amqp.offset_options import FollowOptions
from holtmq.spark.amqp.source import register_source
from holtmq.spark.amqp.stream_metrics import StreamMetrics, final_metrics, stream_metrics
from holtmq.spark.archive_folders import ArchiveFolders
from holtmq.spark.archive_formats import FILE_FORMATS, require_archive_format
from holtmq.spark.archive_layout import HIDDEN
from holtmq.spark.archive_sink import ArchiveSink, open_sink
from holtmq.spark.compaction import BusyError
from holtmq.spark.deprecated_names import OldToJson, accept_old_keywords
from holtmq.spark.filesystems import qualify
from holtmq.spark.job_announcement import announced, unannounced
from holtmq.spark.new_thread import in_new_thread

SEGMENTS_PER_FILE, RANGES_PER_FILE = 20, 5
"""Partitions of the source that one task writes to a file."""


@dataclass(frozen=True, slots=True)
class ArchiveSummary(OldToJson):
    """The result of an archive job."""

    messages: int
    batches: int
    merged_files: int
    duplicates_removed: int
    stream: StreamMetrics | None = None
    """What the stream received, and what it left in the queue."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and those of `stream`, as a dictionary of values that JSON can represent."""
        counts = {name: value for name, value in asdict(self).items() if name != "stream"}
        return {**counts, **(self.stream.to_dict() if self.stream is not None else {})}


@accept_old_keywords(compacts="compact")
def archive(
    spark: SparkSession,
    queue: str | Sequence[str] | None,
    target: str,
    *,
    url: str,
    user: str | None = None,
    password: str | None = None,
    password_env: str | None = None,
    password_file: str | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    verify: bool = True,
    checkpoint: str | None = None,
    format: str = "parquet",  # noqa: A002  # Spark's own word
    partition_by: Sequence[str] = ("date",),
    available_now: bool = True,
    interval: str = "10 seconds",
    compact: bool = True,
    receivers: int = RECEIVERS,
    prefetch: int = PREFETCH,
    max_messages_per_trigger: int | None = None,
    segment_rows: int = SEGMENT_ROWS,
    starting_offsets: str | None = None,
    fail_on_data_loss: bool = True,
    queue_pattern: str | None = None,
    management_url: str | None = None,
    progress: Callable[[int], None] | None = None,
    announce: str | None = None,
) -> ArchiveSummary:
    """Move the messages of one or more queues into files under `target`, until the queues are empty.

    With `starting_offsets` the queues are stream queues: their messages stay there, and the executors read them from the
    broker.

    With `available_now=False` the job continues, writing a batch every `interval`, until it is interrupted.

    The driver receives the messages into a spool beside the checkpoint, acknowledges them, and moves complete files into
    place. The executors read the spool and write the files.

    Args:
        spark: The session that runs the job.
        queue: The queue to archive, or a list of queues. Their messages are removed, unless they are stream queues. With
            `queue_pattern`, None.
        target: The folder for the files, or the location of the table if `format` is delta.
        url: The broker: `amqp://host:port/vhost` or `amqps://…`.
        user: The user name (default: that of the URL, or guest).
        password: The password. Prefer `password_env` or `password_file`.
        password_env: The environment variable that contains the password on the driver.
        password_file: The file that contains the password on the driver.
        ca_file: The certificates to trust, for amqps.
        cert_file: The client's certificate, for amqps.
        key_file: The key of the client's certificate, for amqps.
        verify: Whether to verify the broker's certificate.
        checkpoint: The folder for the stream's progress and spool (default: `_holtmq/checkpoint` below the target).
        format: The format of the archive: parquet, orc, json, or delta, which needs the package deltalake.
        partition_by: The columns that name the folders; `date` is the date of the message.
        available_now: Whether to stop when the messages that are in the queue now are archived.
        interval: The time between batches if `available_now` is false.
        compact: Whether to merge small files at the end. A Delta table is not compacted.
        receivers: The number of connections that consume.
        prefetch: The maximum number of unacknowledged messages per connection.
        max_messages_per_trigger: The maximum size of a batch (default: half of what the receivers prefetch).
        segment_rows: The maximum size of a segment of the spool, which is the work of one task.
        starting_offsets: Where to start in a stream queue: earliest, latest, an offset, a time, or a time span such as 24h.
            A JSON object has a position for each queue. A job that continues from its checkpoint ignores it.
        fail_on_data_loss: Whether to fail if messages of a stream queue were removed before they were read, or are damaged.
            Otherwise they are skipped, and logged.
        queue_pattern: A regular expression. All queues whose whole name matches are archived, such as the partitions of a
            super stream.
        management_url: The HTTP API that lists the queues for the pattern (default: port 15672 of the broker).
        progress: A function that is called on the driver with the number of messages archived so far.
        announce: The HTTP API of a broker whose Pipeline page lists this run, such as `http://127.0.0.1:15672`, or "" for none
            (default: the setting `spark.holtmq.announce` of the session, and without it the job's broker, if it is HoltMQ).
    """
    format, folders = require_archive_format(format), ArchiveFolders.by(partition_by)  # noqa: A001
    broker = BrokerOptions(
        url=url, user=user, password=password, password_env=password_env, password_file=password_file, ca_file=ca_file,
        cert_file=cert_file, key_file=key_file, verify=verify,
    )  # fmt: skip
    chosen = QueueOptions.choose(queue, queue_pattern, management_url)
    target = qualify(spark, target)
    checkpoint = qualify(spark, checkpoint) if checkpoint else f"{target.rstrip('/')}/{HIDDEN}/checkpoint"
    stream: QueueOptions
    if starting_offsets is None:
        stream = StreamOptions(
            **asdict(chosen), receivers=receivers, prefetch=prefetch, max_messages_per_trigger=max_messages_per_trigger,
            segment_rows=segment_rows, ack="spool", spool=f"{checkpoint}/spool",
        )  # fmt: skip
    else:
        stream = FollowOptions(
            **asdict(chosen), starting_offsets=starting_offsets, max_offsets_per_trigger=max_messages_per_trigger,
            fail_on_data_loss=fail_on_data_loss,
        )  # fmt: skip
    messages = folders.add_to(_read(spark, broker, stream))
    per_file = SEGMENTS_PER_FILE if starting_offsets is None else RANGES_PER_FILE
    batches = _Batches(open_sink(target, format, folders), per_file, progress)
    with announced(spark, broker, announce, "archive", lambda: batches.messages, written=target, queue=chosen, lag=batches.lag):
        query = batches.query = _start(
            messages, batches, f"archive of {chosen}", checkpoint, None if available_now else interval
        )
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            in_new_thread(query.stop)
            if available_now:  # a job that should have ended by itself is not complete
                raise
        merged = removed = 0
        if compact and format in FILE_FORMATS:
            with contextlib.suppress(BusyError):  # another process compacts the folder
                merged, removed = compaction.compact(spark, target, format=format)
    return ArchiveSummary(batches.messages, batches.count, merged, removed, final_metrics(query))


def _read(spark: SparkSession, broker: BrokerOptions, stream: QueueOptions) -> DataFrame:
    register_source(spark)
    return spark.readStream.format("amqp").options(**unannounced(broker), **stream.to_spark()).load()


def _start(messages: DataFrame, batches: _Batches, name: str, checkpoint: str, interval: str | None) -> StreamingQuery:
    """Start the query, which runs in the background until the queue is empty or, with an interval, until it is stopped."""
    writer = messages.writeStream.foreachBatch(batches.write).option("checkpointLocation", checkpoint).queryName(name)
    return (writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)).start()


class _Batches:
    """Passes the micro-batches of a query to a sink, and counts. Runs on the driver."""

    def __init__(self, sink: ArchiveSink, per_file: int, progress: Callable[[int], None] | None) -> None:
        self._sink = sink
        self._per_file = per_file
        self._progress = progress
        self.messages = 0
        self.count = 0
        self.query: StreamingQuery | None = None

    def lag(self) -> int | None:
        """Return how many messages no finished micro-batch includes, or None if that is not known."""
        metrics = None if self.query is None else stream_metrics(self.query)
        return None if metrics is None else metrics.lag

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch. Spark calls this on the driver."""
        partitions = batch.rdd.getNumPartitions()
        if partitions:
            rows = batch.coalesce(-(-partitions // self._per_file))
            written = self._sink.write(rows, _query_id(batch), batch_id)
            self.messages += written
            self.count += bool(written)
        if self._progress is not None:
            self._progress(self.messages)


def _query_id(batch: DataFrame) -> str:
    """Return the id of the query, which is the same for all runs from one checkpoint, and unique to it."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "Spark sets it for each micro-batch"
    return found
