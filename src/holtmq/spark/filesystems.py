"""Paths and URIs: the file systems that Spark and Arrow open for them, on the driver and on the executors."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
from pyspark.sql import SparkSession

from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.spark.connect import require_classic

SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:")
"""The start of a URI. A single letter is a drive."""

SCHEME_AND_SLASHES = re.compile(SCHEME.pattern + "(//)?")

REMOTE = re.compile("(s3a?|gc?s|hdfs|viewfs|abfss?)://")
"""The start of a URI of a file system that Arrow reaches over the network."""


class WriteError(HoltmqError):
    """The target of a job cannot be written in the requested way."""


def qualify(spark: SparkSession, path: str) -> str:
    """Return the path as a URI if Spark's default file system is not the local disk. Runs on the driver."""
    require_classic(spark, "a job that moves files (archive, compact, route_job)")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    if SCHEME.match(path) or str(settings.get("fs.defaultFS", "file:///")).startswith("file:"):
        return path
    place = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return str(place.getFileSystem(settings).makeQualified(place))


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the Arrow file system and the path in it that a URI or local path stands for. Runs anywhere."""
    if not SCHEME.match(uri) or re.match("file:/?[^/]", uri):
        return fs.LocalFileSystem(), str(Path(uri.removeprefix("file:")).absolute())
    try:
        return fs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidValueError(
            f"Arrow cannot open the file system of {uri!r} ({error}): expected a local path, or a URI that Arrow supports"
        ) from error


def path_below(path: str, root: str) -> str:
    """Return the part of a path below a root. Spark, and Arrow for HDFS, list files by their URIs."""
    plain = SCHEME_AND_SLASHES.sub("", path)
    if not plain.startswith(f"{root}/"):
        plain = plain[plain.find("/") :]  # without the host
    return plain.removeprefix(f"{root}/")


def exists(filesystem: fs.FileSystem, path: str) -> bool:
    """Return whether there is a file or folder at this path."""
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)
