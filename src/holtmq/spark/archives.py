"""Archive: a queue into files by date, as a stream that goes on or that ends when the queue is empty.

Messages are acknowledged when they are in the spool beside the checkpoint, so that a batch which is run again after a crash
has the same messages. Its files have names made from its number, are written aside and then put in place: run again they
replace themselves. So each message that was received is in the archive once. One that the broker delivers twice, because a
crash came between spool and acknowledgement, is marked as redelivered, and goes when files are compacted if it has an id.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as fs
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.source import register
from holtmq.spark.parquet import filesystem_of

FILE_FORMATS = ("parquet", "orc", "json", "csv", "avro", "text")
SEGMENTS_PER_FILE = 20
SMALL_BYTES = 32 * 1024 * 1024
"""A file below this is worth merging with others."""
FEW_FILES = 8
"""Folders with fewer small files are left alone."""
MERGED_BYTES = 128 * 1024 * 1024
BATCH_NAME = len("batch-000000000")
HIDDEN = "_holtmq"
"""Below this, beside the data, lies what is being written; readers pass over names that start with an underscore."""


@dataclass(frozen=True, slots=True)
class ArchiveSummary:
    messages: int
    batches: int
    merged_files: int
    duplicates_removed: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def archive(
    spark: SparkSession,
    queue: str,
    target: str,
    *,
    checkpoint: str | None = None,
    format: str = "parquet",  # noqa: A002  # Spark's own word
    partition_by: tuple[str, ...] = ("date",),
    available_now: bool = True,
    interval: str = "10 seconds",
    compacts: bool = True,
    progress: Callable[[int], None] | None = None,
    **broker: Any,
) -> ArchiveSummary:
    """Archive a queue until it is empty or, without `available_now`, until the query is stopped. Runs the job.

    `broker` are options of the source: url, user, passwordEnv and so on. `progress` is told how many messages there are so far.
    """
    totals = {"messages": 0, "batches": 0}

    def count(messages: int) -> None:
        totals["messages"] += messages
        totals["batches"] += bool(messages)
        if progress is not None:
            progress(totals["messages"])

    query = start_archive(
        spark, queue, target, checkpoint=checkpoint, format=format, partition_by=partition_by, available_now=available_now,
        interval=interval, on_batch=count, **broker,
    )  # fmt: skip
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    merged, removed = compact(spark, target, format=format) if compacts and format in FILE_FORMATS else (0, 0)
    return ArchiveSummary(totals["messages"], totals["batches"], merged, removed)


def start_archive(
    spark: SparkSession,
    queue: str,
    target: str,
    *,
    checkpoint: str | None = None,
    format: str = "parquet",  # noqa: A002
    partition_by: tuple[str, ...] = ("date",),
    available_now: bool = True,
    interval: str = "10 seconds",
    on_batch: Callable[[int], None] | None = None,
    **broker: Any,
) -> StreamingQuery:
    """The same as a query that runs in the background."""
    register(spark)
    checkpoint = checkpoint or f"{target.rstrip('/')}/{HIDDEN}/checkpoint"
    options = {"ack": "spool", "spool": f"{checkpoint}/spool", **{name: str(value) for name, value in broker.items()}}
    messages = spark.readStream.format("amqp").options(queue=queue, **options).load()
    if "date" in partition_by:
        messages = messages.withColumn("date", F.to_date(F.coalesce("timestamp", "received_at")))
    _require_columns(messages, partition_by)
    sink = _Sink(target, format, partition_by, on_batch)
    writer = (
        messages.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint).queryName(f"archive of {queue}")
    )
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()


def _require_columns(messages: DataFrame, names: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in messages.columns]
    if unknown:
        raise InvalidValueError(
            f"expected columns of a message to partition by, got {unknown[0]!r}; there are {', '.join(messages.columns)}"
        )


class _Sink:
    """Writes micro-batches so that one which is written twice is there once. Runs on the driver."""

    def __init__(
        self, target: str, format_: str, partition_by: tuple[str, ...], on_batch: Callable[[int], None] | None
    ) -> None:
        self._target = target
        self._format = format_
        self._partition_by = partition_by
        self._on_batch = on_batch
        self._filesystem: fs.FileSystem | None = None
        if format_ in FILE_FORMATS:
            self._filesystem, self._path = filesystem_of(target)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        counted = Observation()
        segments = batch.rdd.getNumPartitions()
        if segments:
            rows = batch.coalesce(-(-segments // SEGMENTS_PER_FILE)).observe(counted, F.count("*").alias("messages"))
            self._write_rows(rows, batch_id)
        if self._on_batch is not None:
            self._on_batch(counted.get["messages"] if segments else 0)

    def _write_rows(self, rows: DataFrame, batch_id: int) -> None:
        if self._filesystem is None:  # a table format, with transactions of its own
            rows.write.format(self._format).partitionBy(*self._partition_by).mode("append").save(self._target)
            return
        aside = f"{self._path}/{HIDDEN}/batch-{batch_id:09}"
        rows.write.format(self._format).partitionBy(*self._partition_by).mode("overwrite").save(
            _uri(self._target, aside, self._path)
        )
        for number, (folder, name) in enumerate(sorted(_data_files(self._filesystem, aside))):
            suffix = name.split(".", 1)[1]
            self._filesystem.create_dir(f"{self._path}/{folder}", recursive=True)
            place = "/".join(part for part in (self._path, folder, f"batch-{batch_id:09}-{number:03}.{suffix}") if part)
            self._filesystem.move("/".join(part for part in (aside, folder, name) if part), place)
        self._filesystem.delete_dir(aside)


def _uri(target: str, path: str, root: str) -> str:
    """A path below the target, as Spark is to be told of it."""
    return target.rstrip("/") + path[len(root) :] if "://" in target else path


def _data_files(filesystem: fs.FileSystem, root: str) -> Iterator[tuple[str, str]]:
    """Folder (below the root) and name of each file of data."""
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True)):
        below = info.path[info.path.index(root) + len(root) + 1 :]
        if info.type == fs.FileType.File and not any(part.startswith(("_", ".")) for part in below.split("/")):
            folder, _, name = below.rpartition("/")
            yield folder, name


def compact(
    spark: SparkSession,
    target: str,
    *,
    format: str = "parquet",  # noqa: A002
    small_bytes: int = SMALL_BYTES,
    few_files: int = FEW_FILES,
) -> tuple[int, int]:
    """Merge small files, folder by folder, and drop messages that are there twice. Files merged, messages dropped.

    The merged file is written aside. Then a note says which files it replaces; from there on a compaction that is cut short
    is completed by the next one.
    """
    filesystem, path = filesystem_of(target)
    _finish(filesystem, path)
    by_folder: dict[str, list[str]] = {}
    found = list(_data_files(filesystem, path))
    newest = max((name[:BATCH_NAME] for _, name in found if name.startswith("batch-")), default=None)
    for folder, name in found:
        if name[:BATCH_NAME] == newest:
            continue  # Spark may write this batch again, and must find its files to replace them
        place = "/".join(part for part in (path, folder, name) if part)
        if filesystem.get_file_info(place).size < small_bytes:
            by_folder.setdefault(folder, []).append(place)
    merged = dropped = 0
    for folder, places in sorted(by_folder.items()):
        if len(places) >= few_files:
            merged += len(places)
            dropped += _merge(spark, filesystem, target, path, folder, sorted(places), format)
    return merged, dropped


def _merge(
    spark: SparkSession, filesystem: fs.FileSystem, target: str, path: str, folder: str, places: list[str], format_: str
) -> int:
    rows = spark.read.format(format_).load([_uri(target, place, path) for place in places])
    size = sum(filesystem.get_file_info(place).size for place in places)
    before = rows.count()
    kept = _without_duplicates(rows)
    aside = f"{path}/{HIDDEN}/compaction-{uuid.uuid4()}"
    kept.coalesce(max(1, size // MERGED_BYTES)).write.format(format_).mode("overwrite").save(_uri(target, aside, path))
    new = [f"{aside}/{name}" for _, name in _data_files(filesystem, aside)]
    moves = {
        name: "/".join(part for part in (path, folder, f"merged-{uuid.uuid4()}.{name.split('.', 1)[1]}") if part)
        for name in new
    }
    note = f"{path}/{HIDDEN}/compaction.json"
    with filesystem.open_output_stream(f"{note}.part") as stream:
        stream.write(json.dumps({"aside": aside, "moves": moves, "replaced": places}).encode())
    filesystem.move(f"{note}.part", note)
    after = spark.read.format(format_).load(_uri(target, aside, path)).count()
    _finish(filesystem, path)
    return before - after


def _finish(filesystem: fs.FileSystem, path: str) -> None:
    """Do what a note of a compaction asks for, as far as it is not done."""
    note = f"{path}/{HIDDEN}/compaction.json"
    if filesystem.get_file_info(note).type == fs.FileType.NotFound:
        return
    with filesystem.open_input_stream(note) as stream:
        plan = json.loads(stream.read())
    for place in plan["replaced"]:
        if filesystem.get_file_info(place).type != fs.FileType.NotFound:
            filesystem.delete_file(place)
    for name, place in plan["moves"].items():
        if filesystem.get_file_info(name).type != fs.FileType.NotFound:
            filesystem.move(name, place)
    if filesystem.get_file_info(plan["aside"]).type != fs.FileType.NotFound:
        filesystem.delete_dir(plan["aside"])
    filesystem.delete_file(note)


def _without_duplicates(rows: DataFrame) -> DataFrame:
    """Without the second and further copies of a message that was delivered again; only one with an id can be told."""
    if not {"redelivered", "message_id", "source_queue"} <= {*rows.columns}:
        return rows
    again = rows.where("redelivered and message_id is not null").select("source_queue", "message_id").distinct()
    if again.isEmpty():
        return rows
    suspects = rows.join(F.broadcast(again), ["source_queue", "message_id"], "left_semi")
    others = rows.join(F.broadcast(again), ["source_queue", "message_id"], "left_anti")
    first = suspects.orderBy("redelivered", "received_at").dropDuplicates(["source_queue", "message_id"])
    return others.unionByName(first)
