"""compact(): merge the small files of an archive, and remove messages that were delivered twice.

The driver finds the files and replaces them; the executors read and write the rows. The merged files are written to a staging
folder. Then a plan on disk lists the files that they replace. From then on, a compaction that is interrupted is completed by
the next one, or by the next archive job.
"""

from __future__ import annotations

import json
import uuid

import pyarrow.fs as fs
from pyspark.sql import SparkSession

from holtmq.errors import InvalidValueError
from holtmq.spark.archive_formats import require_archive_format
from holtmq.spark.archive_layout import BATCH, HIDDEN, data_files, join_path, uri_below
from holtmq.spark.delta_table import DELTA
from holtmq.spark.duplicates import without_duplicates
from holtmq.spark.filesystems import WriteError, exists, filesystem_of, qualify
from holtmq.spark.locks import FolderLock

SMALL_BYTES = 32 * 1024 * 1024
"""Size below which a file is merged with others."""
FEW_FILES = 8
"""Folders with fewer small files than this are not compacted."""
MERGED_BYTES = 128 * 1024 * 1024
LOCK_TIMEOUT_S = 30.0
"""How long to wait for another compaction to end."""


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
    target, format = qualify(spark, target), require_archive_format(format)  # noqa: A001
    if format == DELTA:
        raise InvalidValueError("a Delta table is not compacted by holtmq: use OPTIMIZE, or optimize.compact() of deltalake")
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
                removed += _merge(spark, filesystem, target, path, folder, sorted(places), format)
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
        place = join_path(path, folder, name)
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
    kept = without_duplicates(rows)
    staging = f"{path}/{HIDDEN}/compaction-{uuid.uuid4()}"
    staging_uri = uri_below(target, staging, path)
    kept.coalesce(max(1, size // MERGED_BYTES)).write.format(format_).mode("overwrite").save(staging_uri)
    after = spark.read.format(format_).load(staging_uri).count()
    new = [f"{staging}/{name}" for _, name in data_files(filesystem, staging)]
    moves = {name: join_path(path, folder, f"merged-{uuid.uuid4()}.{name.split('.', 1)[1]}") for name in new}
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
