"""compact(): merge the small files of an archive, and remove messages that were delivered twice.

The driver finds the files and replaces them; the executors read and write the rows. The merged files are written to a staging
folder. Then a plan on disk lists the files that they replace. From then on, a compaction that is interrupted is completed by
the next one, or by the next archive job.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator

import pyarrow.fs as fs
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from holtmq.spark.filesystems import SCHEME, WriteError, exists, filesystem_of, qualify
from holtmq.spark.locks import FolderLock

SMALL_BYTES = 32 * 1024 * 1024
"""Size below which a file is merged with others."""
FEW_FILES = 8
"""Folders with fewer small files than this are not compacted."""
MERGED_BYTES = 128 * 1024 * 1024
BATCH = re.compile(r"batch-([0-9a-f]{12})-(\d{9})-")
"""Name of a file of an archive: the query and the batch that have written it."""
LOCK_TIMEOUT_S = 30.0
"""How long to wait for another compaction to end."""
HIDDEN = "_holtmq"
"""Folder beside the data for files that are not complete. Readers ignore names that start with an underscore."""


class BusyError(WriteError):
    """Another process is compacting the folder."""


def compact(
    spark: SparkSession,
    target: str,
    *,
    format: str = "parquet",  # noqa: A002  # Spark's own word
    small_bytes: int = SMALL_BYTES,
    few_files: int = FEW_FILES,
) -> tuple[int, int]:
    """Merge the small files of an archive, folder by folder, and remove duplicates. Runs a job for each such folder.

    A file is small below `small_bytes`. Folders with fewer than `few_files` small files are left alone. Return the number of
    files that were merged and the number of duplicates that were removed. Raise BusyError if another process compacts the
    same archive.

    The driver plans and commits; the executors read, deduplicate and write the rows.
    """
    target = qualify(spark, target)
    filesystem, path = filesystem_of(target)
    filesystem.create_dir(f"{path}/{HIDDEN}", recursive=True)
    lock = FolderLock(filesystem, f"{path}/{HIDDEN}")
    if not lock.acquire(LOCK_TIMEOUT_S):
        raise BusyError(f"{target} is being compacted by another process: try again when it has finished")
    try:
        _carry_out_plan(filesystem, path)
        merged = removed = 0
        for folder, places in sorted(_small_files(filesystem, path, small_bytes).items()):
            if len(places) >= few_files:
                merged += len(places)
                removed += _merge(spark, filesystem, target, path, folder, sorted(places), format.lower())
    finally:
        lock.release()
    return merged, removed


def finish_interrupted(filesystem: fs.FileSystem, path: str) -> None:
    """Complete a compaction that was interrupted, unless another process is doing so. Runs on the driver."""
    if not exists(filesystem, f"{path}/{HIDDEN}"):
        return
    lock = FolderLock(filesystem, f"{path}/{HIDDEN}")
    if lock.acquire(0):
        try:
            _carry_out_plan(filesystem, path)
        finally:
            lock.release()


def uri_below(target: str, path: str, root: str) -> str:
    """Return a path below the target in the form that Spark expects."""
    return target.rstrip("/") + path[len(root) :] if SCHEME.match(target) else path


def data_files(filesystem: fs.FileSystem, root: str, *, may_vanish: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the folder (below the root) and the name of each data file. With `may_vanish`, missing folders are ignored."""
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=may_vanish)):
        below = info.path[info.path.index(root) + len(root) + 1 :]
        if info.type == fs.FileType.File and not any(part.startswith(("_", ".")) for part in below.split("/")):
            folder, _, name = below.rpartition("/")
            yield folder, name


def _small_files(filesystem: fs.FileSystem, path: str, small_bytes: int) -> dict[str, list[str]]:
    """Return the small files by folder, without those of each query's last batch.

    Spark may write that batch again, and must then find its files in order to replace them.
    """
    found = list(data_files(filesystem, path, may_vanish=True))
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
    """Merge the files of a folder. Return the number of duplicates that were removed."""
    reader = spark.read.format(format_).option("mergeSchema", value=True)
    rows = reader.load([uri_below(target, place, path) for place in places])
    size = sum(filesystem.get_file_info(place).size for place in places)
    before = rows.count()
    kept = _without_duplicates(rows)
    staging = f"{path}/{HIDDEN}/compaction-{uuid.uuid4()}"
    staging_uri = uri_below(target, staging, path)
    kept.coalesce(max(1, size // MERGED_BYTES)).write.format(format_).mode("overwrite").save(staging_uri)
    after = spark.read.format(format_).load(staging_uri).count()
    new = [f"{staging}/{name}" for _, name in data_files(filesystem, staging)]
    moves = {
        name: "/".join(part for part in (path, folder, f"merged-{uuid.uuid4()}.{name.split('.', 1)[1]}") if part)
        for name in new
    }
    plan = f"{path}/{HIDDEN}/compaction.json"
    with filesystem.open_output_stream(f"{plan}.part") as stream:
        stream.write(json.dumps({"aside": staging, "moves": moves, "replaced": places}).encode())
    filesystem.move(f"{plan}.part", plan)
    _carry_out_plan(filesystem, path)
    return before - after


def _carry_out_plan(filesystem: fs.FileSystem, path: str) -> None:
    """Carry out the remaining steps of the plan on disk, if there is one."""
    name = f"{path}/{HIDDEN}/compaction.json"
    if not exists(filesystem, name):
        return
    with filesystem.open_input_stream(name) as stream:
        plan = json.loads(stream.read())
    for place in plan["replaced"]:
        if exists(filesystem, place):
            filesystem.delete_file(place)
    for merged, place in plan["moves"].items():
        if exists(filesystem, merged):
            filesystem.move(merged, place)
    if exists(filesystem, plan["aside"]):
        filesystem.delete_dir(plan["aside"])
    filesystem.delete_file(name)


def _without_duplicates(rows: DataFrame) -> DataFrame:
    """Remove the further copies of redelivered messages. Only messages with an id can be recognised."""
    if not {"redelivered", "message_id", "source_queue"} <= {*rows.columns}:
        return rows
    redelivered = rows.where("redelivered and message_id is not null").select("source_queue", "message_id").distinct()
    if redelivered.isEmpty():
        return rows
    suspects = rows.join(F.broadcast(redelivered), ["source_queue", "message_id"], "left_semi")
    others = rows.join(F.broadcast(redelivered), ["source_queue", "message_id"], "left_anti")
    # all other columns must be equal: different messages may share an id, such as that of an order
    same = [name for name in rows.columns if name not in ("redelivered", "received_at")]
    copies = Window.partitionBy(*same).orderBy("redelivered", "received_at")
    first = suspects.withColumn("__holtmq_copy", F.row_number().over(copies)).where("__holtmq_copy = 1").drop("__holtmq_copy")
    return others.unionByName(first)
