"""Archive: a queue into files by date, as a stream that goes on or that ends when the queue is empty.

Messages are acknowledged when they are in the spool beside the checkpoint, so that a batch which is run again after a crash
has the same messages. Its files have names made from the query's id and the batch's number, are written aside and then put in
place: run again they replace themselves. So each message that was received is in the archive once. One that the broker
delivers twice, because a crash came between spool and acknowledgement, is marked as redelivered, and goes when its files are
compacted if it has an id.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.fs as fs
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.source import register
from holtmq.spark.locks import FolderLock
from holtmq.spark.parquet import SCHEME, WriteError, filesystem_of, located

FILE_FORMATS = ("parquet", "orc", "json", "csv", "avro", "text")
SEGMENTS_PER_FILE = 20
SMALL_BYTES = 32 * 1024 * 1024
"""A file below this is worth merging with others."""
FEW_FILES = 8
"""Folders with fewer small files are left alone."""
MERGED_BYTES = 128 * 1024 * 1024
BATCH = re.compile(r"batch-([0-9a-f]{12})-(\d{9})-")
"""Which batch of which query has written a file."""
PATIENCE_S = 30.0
"""So long a compaction waits for another one to end."""
HIDDEN = "_holtmq"
"""Below this, beside the data, lies what is being written; readers pass over names that start with an underscore."""


class BusyError(WriteError):
    """Somebody else does it already."""


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
    merged = removed = 0
    if compacts and format.lower() in FILE_FORMATS:
        with contextlib.suppress(BusyError):  # then another one does it
            merged, removed = compact(spark, target, format=format)
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
    target, format = located(spark, target), format.lower()  # noqa: A001
    checkpoint = located(spark, checkpoint) if checkpoint else f"{target.rstrip('/')}/{HIDDEN}/checkpoint"
    options = {"ack": "spool", "spool": f"{checkpoint}/spool", **{name: str(value) for name, value in broker.items()}}
    messages = spark.readStream.format("amqp").options(queue=queue, **options).load()
    _require_columns(messages, partition_by)
    folders = {name: "date" if name == "date" else f"by_{name}" for name in partition_by}
    for name, folder in folders.items():
        messages = messages.withColumn(folder, _date() if name == "date" else F.col(name))
    sink = _Sink(target, format, tuple(folders.values()), on_batch)
    sink.finish_compaction()
    writer = (
        messages.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint).queryName(f"archive of {queue}")
    )
    return (writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=interval)).start()


def _date() -> Column:
    return F.to_date(F.coalesce("timestamp", "received_at"))


def _require_columns(messages: DataFrame, names: tuple[str, ...]) -> None:
    """Columns to partition by. A folder's name is no place for a value, for it does not tell empty from null or 007 from 7: so
    it gets a copy, and the column stays in the files."""
    known = ["date", *messages.columns]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidValueError(
            f"expected columns of a message to partition by, got {unknown[0]!r}; there are {', '.join(known)}"
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
        segments = batch.rdd.getNumPartitions()
        count = 0
        if segments:
            rows = batch.coalesce(-(-segments // SEGMENTS_PER_FILE))
            count = (self._append if self._filesystem is None else self._write_files)(rows, _query_id(batch), batch_id)
        if self._on_batch is not None:
            self._on_batch(count)

    def finish_compaction(self) -> None:
        """What one that was cut short left undone: until then some messages may not be seen."""
        if self._filesystem is None or self._filesystem.get_file_info(f"{self._path}/{HIDDEN}").type == fs.FileType.NotFound:
            return
        lock = FolderLock(self._filesystem, f"{self._path}/{HIDDEN}")
        if lock.take(0):  # who has it finishes it
            try:
                _finish(self._filesystem, self._path)
            finally:
                lock.release()

    def _append(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """To a table, with transactions of its own. Delta takes one with these options once, and skips it the next time."""
        writer = rows.write.format(self._format).partitionBy(*self._partition_by)
        writer.mode("append").options(txnAppId=query_id, txnVersion=batch_id).save(self._target)
        return rows.count()

    def _write_files(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        assert self._filesystem is not None
        counted = Observation()
        observed = rows.observe(counted, F.count("*").alias("messages"))
        writer = observed.write.format(self._format).partitionBy(*self._partition_by)
        batch_name = f"batch-{query_id.replace('-', '')[:12]}-{batch_id:09}"
        aside = f"{self._path}/{HIDDEN}/{batch_name}"
        writer.mode("overwrite").save(_uri(self._target, aside, self._path))
        for number, (folder, name) in enumerate(sorted(_data_files(self._filesystem, aside))):
            suffix = name.split(".", 1)[1]
            self._filesystem.create_dir(f"{self._path}/{folder}", recursive=True)
            place = "/".join(part for part in (self._path, folder, f"{batch_name}-{number:03}.{suffix}") if part)
            self._filesystem.move("/".join(part for part in (aside, folder, name) if part), place)
        self._filesystem.delete_dir(aside)
        return int(counted.get["messages"])


def _query_id(batch: DataFrame) -> str:
    """The same for all runs from one checkpoint, and for no other."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert found is not None, "Spark sets it for each micro-batch"
    return found


def _uri(target: str, path: str, root: str) -> str:
    """A path below the target, as Spark is to be told of it."""
    return target.rstrip("/") + path[len(root) :] if SCHEME.match(target) else path


def _data_files(filesystem: fs.FileSystem, root: str, *, may_go: bool = False) -> Iterator[tuple[str, str]]:
    """Folder (below the root) and name of each file of data; others may be at work there, so that folders go meanwhile."""
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=may_go)):
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
    is completed by the next one, or by the next archive.
    """
    target = located(spark, target)
    filesystem, path = filesystem_of(target)
    filesystem.create_dir(f"{path}/{HIDDEN}", recursive=True)
    lock = FolderLock(filesystem, f"{path}/{HIDDEN}")
    if not lock.take(PATIENCE_S):
        raise BusyError(f"{target} is being compacted by another process: expected one at a time")
    try:
        _finish(filesystem, path)
        merged = dropped = 0
        for folder, places in sorted(_small_files(filesystem, path, small_bytes).items()):
            if len(places) >= few_files:
                merged += len(places)
                dropped += _merge(spark, filesystem, target, path, folder, sorted(places), format.lower())
    finally:
        lock.release()
    return merged, dropped


def _small_files(filesystem: fs.FileSystem, path: str, small_bytes: int) -> dict[str, list[str]]:
    """By folder, but without those of each query's last batch: Spark may write it again, and must find them to replace them."""
    found = list(_data_files(filesystem, path, may_go=True))
    newest: dict[str, str] = {}
    for query, number in (batch.groups() for _, name in found if (batch := BATCH.match(name))):
        newest[query] = max(number, newest.get(query, ""))
    by_folder: dict[str, list[str]] = {}
    for folder, name in found:
        batch = BATCH.match(name)
        place = "/".join(part for part in (path, folder, name) if part)
        is_last = batch is not None and batch[2] == newest[batch[1]]
        if not is_last and filesystem.get_file_info(place).size < small_bytes:
            by_folder.setdefault(folder, []).append(place)
    return by_folder


def _merge(
    spark: SparkSession, filesystem: fs.FileSystem, target: str, path: str, folder: str, places: list[str], format_: str
) -> int:
    reader = spark.read.format(format_).option("mergeSchema", value=True)
    rows = reader.load([_uri(target, place, path) for place in places])
    size = sum(filesystem.get_file_info(place).size for place in places)
    before = rows.count()
    kept = _without_duplicates(rows)
    aside = f"{path}/{HIDDEN}/compaction-{uuid.uuid4()}"
    kept.coalesce(max(1, size // MERGED_BYTES)).write.format(format_).mode("overwrite").save(_uri(target, aside, path))
    after = spark.read.format(format_).load(_uri(target, aside, path)).count()
    new = [f"{aside}/{name}" for _, name in _data_files(filesystem, aside)]
    moves = {
        name: "/".join(part for part in (path, folder, f"merged-{uuid.uuid4()}.{name.split('.', 1)[1]}") if part)
        for name in new
    }
    note = f"{path}/{HIDDEN}/compaction.json"
    with filesystem.open_output_stream(f"{note}.part") as stream:
        stream.write(json.dumps({"aside": aside, "moves": moves, "replaced": places}).encode())
    filesystem.move(f"{note}.part", note)
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
    same = [name for name in rows.columns if name not in ("redelivered", "received_at")]  # an id may be that of an order
    copies = Window.partitionBy(*same).orderBy("redelivered", "received_at")
    first = suspects.withColumn("__holtmq_copy", F.row_number().over(copies)).where("__holtmq_copy = 1").drop("__holtmq_copy")
    return others.unionByName(first)
