"""The Parquet job: Spark schedules, and the tasks read, route and write Arrow data themselves. Runs on the driver.

A row that goes from Parquet to Spark's rows to Arrow to Python and back is converted four times. Here Python reads the files,
keeps dictionary-encoded columns encoded, and writes the files. That is faster than a Spark job that only copies
(benchmarks/pipeline.py). The driver commits the job: it moves the files of the successful tasks into place when all have
finished.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import unquote

import pyarrow.fs as fs
from pyspark import Accumulator
from pyspark.sql import SparkSession

from holtmq.spark.filesystems import WriteError, exists, filesystem_of
from holtmq.spark.parquet_source import ParquetSource
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.routing_task import RESULT, RESULT_NAMES, RouteCounts, RoutingTask

STAGING = "_holtmq-"
"""Prefix of the staging folder. Readers ignore names that start with an underscore."""


def route_files(
    spark: SparkSession,
    source: ParquetSource,
    target: str,
    spec: RoutingSpec,
    parts: Mapping[str, str],
    *,
    mode: str,
    by_queue: bool,
    counted: Accumulator[int] | None = None,
) -> RouteCounts:
    """Run the job and commit its files to `target`. The tasks run on the executors, the commit on the driver.

    `parts` names the columns that contain the parts of the signature as text.
    """
    filesystem, path = filesystem_of(target)
    before = _require_writable(filesystem, path, target, mode)
    read = {_real(source.filesystem, split.path) for split in source.splits}
    if mode == "overwrite" and not read.isdisjoint(_real(filesystem, name) for name in before):
        raise WriteError(f"{target} contains files that this job reads: choose another folder to overwrite")
    staging = f"{path}/{STAGING}{uuid.uuid4()}"
    compression = str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy"))
    compression = "NONE" if compression == "uncompressed" else compression
    splits = spark.sparkContext.broadcast(source.splits)
    task = RoutingTask(replace(source, splits=()), splits, spec, parts, filesystem, staging, compression, by_queue, counted)
    success = f"{path}/_SUCCESS"
    filesystem.create_dir(staging, recursive=True)
    try:
        numbers = spark.range(0, len(source.splits), 1, len(source.splits))
        done = numbers.mapInArrow(task.run, RESULT).collect()
        files = [name for row in done for name in json.loads(row["files"])] or [task.write_empty_file()]
        if exists(filesystem, success):
            filesystem.delete_file(success)
        for name in files:
            place = path + _as_spark_names(name[name.index(staging) + len(staging) :])
            filesystem.create_dir(place.rsplit("/", 1)[0], recursive=True)
            filesystem.move(name, place)
        if mode == "overwrite":
            for name in before:
                filesystem.delete_file(name)
    finally:
        filesystem.delete_dir(staging)
        splits.destroy()
    with filesystem.open_output_stream(success):
        pass
    return RouteCounts(*(sum(row[name] for row in done) for name in RESULT_NAMES[2:]))


def _as_spark_names(path: str) -> str:
    """Return the path with its folders escaped as Spark escapes them. Arrow escapes bytes, Spark characters."""
    *folders, name = path.split("/")
    return "/".join([*("".join(_ESCAPES.get(c, c) for c in unquote(f).replace("=", "\0", 1)) for f in folders), name])


# The characters that Spark escapes in the name of a folder. The first equals sign separates name and value.
_ESCAPES = {chr(code): f"%{code:02X}" for code in (*range(1, 0x20), 0x7F, *b"\"#%'*/:=?\\{[]^")} | {"\0": "="}


def _real(filesystem: fs.FileSystem, path: str) -> str:
    """Return the path without symbolic links, if it is local."""
    return os.path.realpath(path) if isinstance(filesystem, fs.LocalFileSystem) else path


def _require_writable(filesystem: fs.FileSystem, path: str, target: str, mode: str) -> set[str]:
    """Return the files that exist at the target. Raise WriteError if `mode` does not allow any."""
    if not exists(filesystem, path):
        return set()
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    files = [info.path for info in found if info.type == fs.FileType.File]
    if files and mode == "error":
        raise WriteError(f"{target} is not empty: choose a new folder, or mode append or overwrite")
    return {name for name in files if not name.endswith("/_SUCCESS")}
