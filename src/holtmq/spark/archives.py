"""archive(): a queue into files by date, as a stream that continues or that ends when the queue is empty.

Messages are acknowledged when they are in the spool beside the checkpoint. A batch that runs again after a crash therefore
contains the same messages. The names of its files consist of the query's id and the batch's number, and the files are moved
into place when they are complete: written again, they replace themselves. So each received message is in the archive once.

A message that the broker delivers twice, because of a crash between spool and acknowledgement, is marked as redelivered. If it
has an id, the copy is removed when its files are compacted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as fs
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.errors import InvalidValueError
from holtmq.spark import compaction
from holtmq.spark.amqp.amqp_options import PREFETCH, RECEIVERS, SEGMENT_ROWS, BrokerOptions, StreamOptions
from holtmq.spark.amqp.source import register
from holtmq.spark.compaction import HIDDEN, BusyError, data_files, finish_interrupted, uri_below
from holtmq.spark.deprecated_names import OldToJson, accept_old_keywords
from holtmq.spark.filesystems import filesystem_of, qualify

FILE_FORMATS = ("parquet", "orc", "json", "csv", "avro", "text")
SEGMENTS_PER_FILE = 20


@dataclass(frozen=True, slots=True)
class ArchiveSummary(OldToJson):
    """The result of an archive job."""

    messages: int
    batches: int
    merged_files: int
    duplicates_removed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return asdict(self)


@accept_old_keywords(compacts="compact")
def archive(
    spark: SparkSession,
    queue: str,
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
    progress: Callable[[int], None] | None = None,
) -> ArchiveSummary:
    """Move the messages of a queue into files under `target`, until the queue is empty.

    With `available_now=False` the job continues, writing a batch every `interval`, until it is interrupted.

    The driver receives the messages into a spool beside the checkpoint, acknowledges them, and moves complete files into
    place. The executors read the spool and write the files.

    Args:
        spark: The session that runs the job.
        queue: The queue to archive. Its messages are removed.
        target: The folder for the files, or the location of a table if `format` is a table format.
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
        format: A file format or table format of Spark.
        partition_by: The columns that name the folders; `date` is the date of the message.
        available_now: Whether to stop when the messages that are in the queue now are archived.
        interval: The time between batches if `available_now` is false.
        compact: Whether to merge small files at the end.
        receivers: The number of connections that consume.
        prefetch: The maximum number of unacknowledged messages per connection.
        max_messages_per_trigger: The maximum size of a batch (default: half of what the receivers prefetch).
        segment_rows: The maximum size of a segment of the spool, which is the work of one task.
        progress: A function that is called on the driver with the number of messages archived so far.
    """
    totals = {"messages": 0, "batches": 0}

    def count(messages: int) -> None:
        totals["messages"] += messages
        totals["batches"] += bool(messages)
        if progress is not None:
            progress(totals["messages"])

    broker = BrokerOptions(
        url=url, user=user, password=password, password_env=password_env, password_file=password_file, ca_file=ca_file,
        cert_file=cert_file, key_file=key_file, verify=verify,
    )  # fmt: skip
    target, format = qualify(spark, target), format.lower()  # noqa: A001
    checkpoint = qualify(spark, checkpoint) if checkpoint else f"{target.rstrip('/')}/{HIDDEN}/checkpoint"
    stream = StreamOptions(
        queue=queue, receivers=receivers, prefetch=prefetch, max_messages_per_trigger=max_messages_per_trigger,
        segment_rows=segment_rows, ack="spool", spool=f"{checkpoint}/spool",
    )  # fmt: skip
    sink = _Sink(target, format, _folders(partition_by), count)
    query = _start(spark, broker, stream, sink, checkpoint, None if available_now else interval)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    merged = removed = 0
    if compact and format in FILE_FORMATS:
        with contextlib.suppress(BusyError):  # another process compacts the folder
            merged, removed = compaction.compact(spark, target, format=format)
    return ArchiveSummary(totals["messages"], totals["batches"], merged, removed)


def _start(
    spark: SparkSession, broker: BrokerOptions, stream: StreamOptions, sink: _Sink, checkpoint: str, interval: str | None
) -> StreamingQuery:
    """Start the query, which runs in the background until the queue is empty or, with an interval, until it is stopped."""
    register(spark)
    messages = spark.readStream.format("amqp").options(**broker.to_spark(), **stream.to_spark()).load()
    _require_columns(messages, sink.folders)
    for name, folder in sink.folders.items():
        messages = messages.withColumn(folder, _date() if name == "date" else F.col(name))
    sink.finish_compaction()
    writer = messages.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint)
    writer = writer.queryName(f"archive of {stream.queue}")
    return (writer.trigger(availableNow=True) if interval is None else writer.trigger(processingTime=interval)).start()


def _date() -> Column:
    return F.to_date(F.coalesce("timestamp", "received_at"))


def _folders(partition_by: Sequence[str]) -> dict[str, str]:
    """Return the columns to partition by, and the columns that name the folders.

    The latter are copies, and the original columns stay in the files: in the name of a folder, an empty string cannot be
    distinguished from null, nor 007 from 7.
    """
    if isinstance(partition_by, str):
        raise InvalidValueError(f"partition_by must be a sequence of column names such as ('date',), got {partition_by!r}")
    return {name: "date" if name == "date" else f"by_{name}" for name in partition_by}


def _require_columns(messages: DataFrame, names: Iterable[str]) -> None:
    known = ["date", *messages.columns]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidValueError(
            f"partition_by names the column {unknown[0]!r}, which messages do not have: expected columns of {', '.join(known)}"
        )


class _Sink:
    """Writes micro-batches such that a batch that is written twice is stored once. Runs on the driver."""

    def __init__(self, target: str, format_: str, folders: dict[str, str], on_batch: Callable[[int], None]) -> None:
        self.folders = folders
        self._target = target
        self._format = format_
        self._on_batch = on_batch
        self._filesystem: fs.FileSystem | None = None
        if format_ in FILE_FORMATS:
            self._filesystem, self._path = filesystem_of(target)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch. Spark calls this on the driver; the executors write the files."""
        segments = batch.rdd.getNumPartitions()
        count = 0
        if segments:
            rows = batch.coalesce(-(-segments // SEGMENTS_PER_FILE))
            count = (self._append if self._filesystem is None else self._write_files)(rows, _query_id(batch), batch_id)
        self._on_batch(count)

    def finish_compaction(self) -> None:
        """Complete an interrupted compaction. Until then, some messages may be invisible."""
        if self._filesystem is not None:
            finish_interrupted(self._filesystem, self._path)

    def _append(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """Append to a table. Delta recognises a repeated batch by these options and skips it."""
        writer = rows.write.format(self._format).partitionBy(*self.folders.values())
        writer.mode("append").options(txnAppId=query_id, txnVersion=batch_id).save(self._target)
        return rows.count()

    def _write_files(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        assert self._filesystem is not None
        counted = Observation()
        observed = rows.observe(counted, F.count("*").alias("messages"))
        writer = observed.write.format(self._format).partitionBy(*self.folders.values())
        batch_name = f"batch-{query_id.replace('-', '')[:12]}-{batch_id:09}"
        staging = f"{self._path}/{HIDDEN}/{batch_name}"
        writer.mode("overwrite").save(uri_below(self._target, staging, self._path))
        for number, (folder, name) in enumerate(sorted(data_files(self._filesystem, staging))):
            suffix = name.split(".", 1)[1]
            self._filesystem.create_dir(f"{self._path}/{folder}", recursive=True)
            place = "/".join(part for part in (self._path, folder, f"{batch_name}-{number:03}.{suffix}") if part)
            self._filesystem.move("/".join(part for part in (staging, folder, name) if part), place)
        self._filesystem.delete_dir(staging)
        return int(counted.get["messages"])


def _query_id(batch: DataFrame) -> str:
    """Return the id of the query, which is the same for all runs from one checkpoint, and unique to it."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "Spark sets it for each micro-batch"
    return found
