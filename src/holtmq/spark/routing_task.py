"""A task of the Parquet job: read a split, route it, write the deliveries. Runs on the executors.

Each attempt of a task writes files with names of their own into a staging folder. The driver later moves those of the
successful attempts into place (`parquet.py`), so a task that is retried or runs twice leaves nothing behind.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyspark.accumulators import Accumulator
from pyspark.core.broadcast import Broadcast

from holtmq.routing import Router
from holtmq.spark.parquet_source import ParquetSource, Split
from holtmq.spark.route_cache import RouteCache
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch

BATCH_ROWS = 65_536
BATCH_BYTES = 64 * 1024 * 1024
"""A batch has at most BATCH_ROWS rows, and about BATCH_BYTES bytes."""
ROW_GROUP_ROWS = 1_048_576
FILE_ROWS = 10_000_000
OPEN_FILES = 256
RESULT = "split int, files string, messages long, deliveries long, unroutable long, malformed long"
RESULT_NAMES = [field.split()[0] for field in RESULT.split(", ")]
RESULT_ARROW = pa.schema(
    [
        (name, {"int": pa.int32(), "long": pa.int64(), "string": pa.string()}[type_])
        for name, type_ in (field.split() for field in RESULT.split(", "))
    ]
)


@dataclass(frozen=True, slots=True)
class RouteCounts:
    """How many messages a routing job read, and what became of them."""

    messages: int = 0
    deliveries: int = 0
    unroutable: int = 0
    malformed: int = 0


@dataclass(frozen=True, slots=True)
class RoutingTask:
    """What every task of a job needs. Created on the driver, pickled with the tasks, used on the executors."""

    source: ParquetSource
    """The source without its splits."""
    splits: Broadcast[tuple[Split, ...]]
    spec: RoutingSpec
    parts: Mapping[str, str]
    """Names of the columns that contain the parts of the signature as text."""
    filesystem: fs.FileSystem
    staging: str
    """Folder for files that are not committed yet."""
    compression: str
    by_queue: bool
    counted: Accumulator[int] | None = None
    """What to add the number of messages to."""

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the splits whose numbers come in. Yield one row per split: the files written, and the counts."""
        routes = RouteCache.shared(self.spec)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                counter = _Counter()
                messages = counter.read(self._read(self.splits.value[number]))
                deliveries = (counter.count(routed) for rows in messages for routed in self.route(routes, rows))
                files = self._write(number, deliveries)
                if self.counted is not None:
                    self.counted.add(counter.messages)
                values = [number, json.dumps(files), *counter.values()]
                yield pa.RecordBatch.from_pylist([dict(zip(RESULT_NAMES, values, strict=True))], RESULT_ARROW)

    def route(self, routes: RouteCache, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the deliveries of a batch of messages: their columns, then the added ones.

        No output batch has more rows than the input batch, however many queues each message reaches.
        """
        if not batch.num_rows:
            return
        rows, at = routes.spread(
            routes.outcomes(SignatureBatch(**{part: batch.column(self.parts[part]) for part in self.parts}))
        )
        names = [*batch.schema.names, *self.spec.added.names]
        for start in range(0, max(1, len(at)), batch.num_rows):
            piece = slice(start, start + batch.num_rows)
            taken = batch if rows is None else batch.take(pa.array(rows[piece]))
            columns = [*taken.columns, *(column.take(pa.array(at[piece])) for column in routes.columns())]
            yield pa.RecordBatch.from_arrays(columns, names=names)

    def _read(self, split: Split) -> Iterator[pa.RecordBatch]:
        with pq.ParquetFile(
            split.path,
            filesystem=self.source.filesystem,
            read_dictionary=list(self.source.encoded),
            memory_map=True,
            coerce_int96_timestamp_unit="us",  # Spark's default type for timestamps in Parquet
        ) as file:
            for batch in file.iter_batches(_batch_rows(file.metadata, split), row_groups=list(split.row_groups)):
                yield _fit(batch, self.source, dict(split.folder_values))

    def _write(self, number: int, deliveries: Iterator[pa.RecordBatch]) -> list[str]:
        """Write the deliveries to files whose names no other attempt uses. Return the names."""
        first = next(deliveries, None)
        if first is None:
            return []
        files: list[str] = []
        options = ds.ParquetFileFormat().make_write_options(
            compression=self.compression, use_dictionary=[*self.source.encoded, *self.spec.added.names], store_schema=False
        )
        ds.write_dataset(
            ds.Scanner.from_batches(chain((first,), deliveries), schema=first.schema, use_threads=False),
            self.staging,
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

    def write_empty_file(self) -> str:
        """Write a file without rows, so that the output has a schema. Runs on the driver. Return the file's name."""
        added = zip(self.spec.added.names, RouteCache(self.spec, Router()).columns(), strict=True)
        fields = [*self.source.schema, *(pa.field(name, column.type) for name, column in added)]
        if self.by_queue:
            fields = [field for field in fields if field.name != "queue"]
        folder = f"{self.staging}/queue=__HIVE_DEFAULT_PARTITION__" if self.by_queue else self.staging
        self.filesystem.create_dir(folder, recursive=True)
        name = f"{folder}/part-00000-{uuid.uuid4()}.{self.compression}.parquet"
        pq.write_table(pa.schema(fields).empty_table(), name, filesystem=self.filesystem, compression=self.compression)
        return name


def _batch_rows(metadata: pq.FileMetaData, split: Split) -> int:
    groups = [metadata.row_group(number) for number in split.row_groups]
    row_bytes = sum(group.total_byte_size for group in groups) / max(1, sum(group.num_rows for group in groups))
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(1.0, row_bytes))))


class _Counter:
    """Counts the messages and deliveries that pass through it."""

    def __init__(self) -> None:
        self.messages = self.deliveries = self.unroutable = self.malformed = 0

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.messages += batch.num_rows
            yield batch

    def count(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        undelivered = batch.column("queue").null_count
        malformed = batch.num_rows - batch.column("reason").null_count
        self.deliveries += batch.num_rows - undelivered
        self.malformed += malformed
        self.unroutable += undelivered - malformed
        return batch

    def values(self) -> tuple[int, int, int, int]:
        return self.messages, self.deliveries, self.unroutable, self.malformed


def _fit(batch: pa.RecordBatch, source: ParquetSource, folder_values: Mapping[str, Any]) -> pa.RecordBatch:
    """Return the batch with all columns of the source: missing ones are null, or have the value in the folder's name."""
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
    """Return the value in a folder's name as the type that Spark infers for it."""
    return pa.scalar(None, type_) if value is None else pa.scalar(str(value)).cast(type_)
