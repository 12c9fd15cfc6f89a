"""From Parquet to Parquet without a detour: Spark hands out the work, and tasks read, route and write Arrow data.

A row that goes from Parquet to Spark's rows to Arrow to Python and back is converted four times. Here Python reads the files
itself, keeps what is a dictionary on disk a dictionary, and writes; that is faster than a Spark job that only copies
(benchmarks/pipeline.py). Each attempt of a task writes files of its own, aside; when all tasks are done, the driver puts
those of the successful attempts in place. So a task that is retried, or run twice at a time, leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.core.broadcast import Broadcast
from pyspark.sql import SparkSession

from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.routing import Router
from holtmq.spark.routes import Order, Outcomes

SPLIT_BYTES = 64 * 1024 * 1024
"""About so much of a file is one task's work."""
BATCH_ROWS = 65_536
BATCH_BYTES = 64 * 1024 * 1024
"""A task holds so many rows, or about so many bytes, whichever is less."""
ROW_GROUP_ROWS = 1_048_576
FILE_ROWS = 10_000_000
OPEN_FILES = 256
ASIDE = "_holtmq-"
"""Where files lie until they are committed; readers pass over names that start so."""
RESULT = "split int, files string, messages long, deliveries long, unroutable long, malformed long"


SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]+:")
"""How a URI starts; one letter is a drive."""


class WriteError(HoltmqError):
    """The target of a job can't be written to as asked."""


class Split(NamedTuple):
    """Some row groups of a file, and the columns that its folders spell out."""

    path: str
    row_groups: tuple[int, ...]
    folder_values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a job did."""

    messages: int = 0
    deliveries: int = 0
    unroutable: int = 0
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """Parquet files under a path: found, and taken apart into splits, on the driver."""

    filesystem: fs.FileSystem
    schema: pa.Schema
    splits: tuple[Split, ...]
    """All of them; tasks get them by a broadcast, once for each process."""
    encoded: tuple[str, ...]
    """Text columns that are dictionaries on disk, and stay so."""

    @classmethod
    def at(cls, uri: str, schema: pa.Schema, least: int) -> Source:
        """Files with these columns; at least so many splits, if there are so many row groups."""
        filesystem, path = filesystem_of(uri)
        dataset = ds.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive")
        fragments = list(dataset.get_fragments())
        if not fragments:
            raise InvalidValueError(f"expected Parquet files under {uri}, found none")
        size = max(1, min(SPLIT_BYTES, sum(_size(group) for f in fragments for group in f.row_groups) // max(1, least)))
        splits = tuple(split for fragment in fragments for split in _splits(fragment, size))
        return cls(filesystem, schema, splits, _encoded(fragments[0], schema))


def _size(group: ds.RowGroupInfo) -> int:
    return int(group.total_byte_size)


def _splits(fragment: ds.ParquetFileFragment, size: int) -> Iterator[Split]:
    folder_values = tuple(ds.get_partition_keys(fragment.partition_expression).items())
    groups: list[int] = []
    filled = 0
    for group in fragment.row_groups:
        groups.append(group.id)
        filled += _size(group)
        if filled >= size:
            yield Split(fragment.path, tuple(groups), folder_values)
            groups, filled = [], 0
    if groups:
        yield Split(fragment.path, tuple(groups), folder_values)


def _encoded(fragment: ds.ParquetFileFragment, schema: pa.Schema) -> tuple[str, ...]:
    if not fragment.row_groups:
        return ()
    group = fragment.metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    names = [column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings and _stays(column)]
    return tuple(name for name in names if name in schema.names and pa.types.is_string(schema.field(name).type))


def _stays(column: pq.ColumnChunkMetaData) -> bool:
    """Whether all of a column is a dictionary; a writer that finds too many values goes on without one."""
    return "PLAIN" not in column.encodings or column.total_uncompressed_size < column.num_values * 8


def located(spark: SparkSession, path: str) -> str:
    """A path without a scheme is on the file system that Spark takes it for, which need not be this machine's."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    if SCHEME.match(path) or str(settings.get("fs.defaultFS", "file:///")).startswith("file:"):
        return path
    place = spark.sparkContext._jvm.org.apache.hadoop.fs.Path(path)  # type: ignore[union-attr]
    return str(place.getFileSystem(settings).makeQualified(place))


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system and path that a URI, or a path of this machine, names."""
    if not SCHEME.match(uri) or re.match("file:/?[^/]", uri):
        return fs.LocalFileSystem(), str(Path(uri.removeprefix("file:")).absolute())
    try:
        return fs.FileSystem.from_uri(uri.replace("s3a://", "s3://", 1))  # type: ignore[no-any-return]
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidValueError(
            f"expected a path, or a URI of a file system that Arrow can open, got {uri!r}: {error}"
        ) from error


@dataclass(frozen=True, slots=True)
class Work:
    """What a task needs to know: all that is the same for each. Runs on the executors."""

    source: Source
    """Without its splits."""
    splits: Broadcast[tuple[Split, ...]]
    order: Order
    filesystem: fs.FileSystem
    aside: str
    compression: str
    by_queue: bool

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Do the splits whose numbers come in; tell of each what was written and counted."""
        outcomes = Outcomes.kept_for(self.order)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                counter = _Counter()
                messages = counter.read(self._read(self.splits.value[number]))
                deliveries = (counter.count(routed) for rows in messages for routed in self.order.route(outcomes, rows))
                files = self._write(number, deliveries)
                values = [number, json.dumps(files), *counter.values()]
                yield pa.RecordBatch.from_pylist([dict(zip(_names(RESULT), values, strict=True))], _schema(RESULT))

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(
            split.path,
            filesystem=self.source.filesystem,
            read_dictionary=list(self.source.encoded),
            memory_map=True,
            coerce_int96_timestamp_unit="us",  # which is how Spark writes timestamps, unless it is told otherwise
        ) as file:
            for batch in file.iter_batches(_batch_rows(file.metadata, split), row_groups=list(split.row_groups)):
                yield _fit(batch, self.source, dict(split.folder_values))

    def _write(self, number: int, deliveries: Iterator[pa.RecordBatch]) -> list[str]:
        """Write what comes, each file under a name that no other attempt uses; their names."""
        first = next(deliveries, None)
        if first is None:
            return []
        files: list[str] = []
        options = ds.ParquetFileFormat().make_write_options(
            compression=self.compression, use_dictionary=[*self.source.encoded, *self.order.added], store_schema=False
        )
        ds.write_dataset(
            ds.Scanner.from_batches(chain((first,), deliveries), schema=first.schema, use_threads=False),
            self.aside,
            filesystem=self.filesystem,
            format="parquet",
            file_options=options,
            basename_template=f"part-{number:05}-{uuid.uuid4()}-{{i}}.{self.compression}.parquet",
            partitioning=ds.partitioning(pa.schema([("queue", pa.string())]), flavor="hive") if self.by_queue else None,
            existing_data_behavior="overwrite_or_ignore",
            max_rows_per_group=ROW_GROUP_ROWS,
            max_rows_per_file=FILE_ROWS,
            max_open_files=OPEN_FILES,
            file_visitor=lambda written: files.append(written.path),
            use_threads=False,
        )
        return files

    def write_nothing(self) -> str:
        """A file without rows, which says what columns there would be."""
        added = zip(self.order.added, Outcomes(self.order, Router()).columns(), strict=True)
        fields = [*self.source.schema, *(pa.field(name, column.type) for name, column in added)]
        if self.by_queue:
            fields = [field for field in fields if field.name != "queue"]
        folder = f"{self.aside}/queue=__HIVE_DEFAULT_PARTITION__" if self.by_queue else self.aside
        self.filesystem.create_dir(folder, recursive=True)
        name = f"{folder}/part-00000-{uuid.uuid4()}.{self.compression}.parquet"
        pq.write_table(pa.schema(fields).empty_table(), name, filesystem=self.filesystem, compression=self.compression)
        return name


def _batch_rows(metadata: pq.FileMetaData, split: Split) -> int:
    groups = [metadata.row_group(number) for number in split.row_groups]
    row_bytes = sum(group.total_byte_size for group in groups) / max(1, sum(group.num_rows for group in groups))
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))


class _Counter:
    """Counts what passes by."""

    def __init__(self) -> None:
        self.messages = self.deliveries = self.unroutable = self.malformed = 0

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.messages += batch.num_rows
            yield batch

    def count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        nowhere = batch.column("queue").null_count
        malformed = batch.num_rows - batch.column("reason").null_count
        self.deliveries += batch.num_rows - nowhere
        self.malformed += malformed
        self.unroutable += nowhere - malformed
        return batch

    def values(self) -> tuple[int, int, int, int]:
        return self.messages, self.deliveries, self.unroutable, self.malformed


def _names(ddl: str) -> list[str]:
    return [field.split()[0] for field in ddl.split(", ")]


def _schema(ddl: str) -> pa.Schema:
    types = {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}
    return pa.schema([(field.split()[0], types[field.split()[1]]) for field in ddl.split(", ")])


def _fit(batch: pa.RecordBatch, source: Source, folder_values: Mapping[str, Any]) -> pa.RecordBatch:
    """A batch with all columns of the source: those that a file lacks are null, those of its folders filled in."""
    columns = []
    for field in source.schema:
        if field.name in batch.schema.names:
            column = batch.column(field.name)
            is_kept = column.type == field.type or (pa.types.is_dictionary(column.type) and field.name in source.encoded)
            columns.append(column if is_kept else column.cast(field.type))
        elif field.name in folder_values:
            columns.append(pa.repeat(_folder_value(folder_values[field.name], field.type), batch.num_rows))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, names=source.schema.names)


def _folder_value(value: Any, type_: pa.DataType) -> pa.Scalar:
    """What the name of a folder says, as the type that Spark sees in it."""
    return pa.scalar(None, type_) if value is None else pa.scalar(str(value)).cast(type_)


def route_files(spark: SparkSession, source: Source, target: str, order: Order, *, mode: str, by_queue: bool) -> Counts:
    """Run the job, and put what it wrote in place."""
    filesystem, path = filesystem_of(target)
    before = _require_writable(filesystem, path, target, mode)
    read = {_real(source.filesystem, split.path) for split in source.splits}
    if mode == "overwrite" and not read.isdisjoint(_real(filesystem, name) for name in before):
        raise WriteError(f"{target} holds the messages that are to be read: expected another folder to overwrite")
    aside = f"{path}/{ASIDE}{uuid.uuid4()}"
    compression = str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy"))
    compression = "NONE" if compression == "uncompressed" else compression
    splits = spark.sparkContext.broadcast(source.splits)
    work = Work(replace(source, splits=()), splits, order, filesystem, aside, compression, by_queue)
    success = f"{path}/_SUCCESS"
    filesystem.create_dir(aside, recursive=True)
    try:
        numbers = spark.range(0, len(source.splits), 1, len(source.splits))
        done = numbers.mapInArrow(work.run, RESULT).collect()
        files = [name for row in done for name in json.loads(row["files"])] or [work.write_nothing()]
        if filesystem.get_file_info(success).type != fs.FileType.NotFound:
            filesystem.delete_file(success)
        for name in files:
            place = path + _as_spark_names(name[name.index(aside) + len(aside) :])
            filesystem.create_dir(place.rsplit("/", 1)[0], recursive=True)
            filesystem.move(name, place)
        if mode == "overwrite":
            for name in before:
                filesystem.delete_file(name)
    finally:
        filesystem.delete_dir(aside)
        splits.destroy()
    with filesystem.open_output_stream(success):
        pass
    return Counts(*(sum(row[name] for row in done) for name in _names(RESULT)[2:]))


def _as_spark_names(path: str) -> str:
    """Folders as Spark names them: Arrow escapes bytes, of which Spark would make a character each."""
    *folders, name = path.split("/")
    return "/".join([*("".join(_ESCAPES.get(c, c) for c in unquote(f).replace("=", "\0", 1)) for f in folders), name])


# What Spark escapes in the name of a folder; the first equals sign is its own.
_ESCAPES = {chr(code): f"%{code:02X}" for code in (*range(1, 0x20), 0x7F, *b"\"#%'*/:=?\\{[]^")} | {"\0": "="}


def _real(filesystem: fs.FileSystem, path: str) -> str:
    """The same for all ways to a file."""
    return os.path.realpath(path) if isinstance(filesystem, fs.LocalFileSystem) else path


def _require_writable(filesystem: fs.FileSystem, path: str, target: str, mode: str) -> set[str]:
    """The files that are there already, which `mode` must allow."""
    if filesystem.get_file_info(path).type == fs.FileType.NotFound:
        return set()
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    files = [info.path for info in found if info.type == fs.FileType.File]
    if files and mode == "error":
        raise WriteError(f"{target} is not empty: expected a new folder, or mode append or overwrite")
    return {name for name in files if not name.endswith("/_SUCCESS")}
