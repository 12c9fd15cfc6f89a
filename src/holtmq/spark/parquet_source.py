"""Parquet files as the input of tasks: found and divided into splits on the driver, read on the executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs
import pyarrow.parquet as pq

from holtmq.errors import InvalidValueError
from holtmq.spark.filesystems import filesystem_of

SPLIT_BYTES = 64 * 1024 * 1024
"""Approximate size of a split, which is the work of one task."""


class Split(NamedTuple):
    """Some row groups of a file, and the columns whose values are in the names of its folders."""

    path: str
    row_groups: tuple[int, ...]
    folder_values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """The Parquet files under a path."""

    filesystem: fs.FileSystem
    schema: pa.Schema
    splits: tuple[Split, ...]
    """All splits. They are broadcast, so that each worker process receives them once."""
    encoded: tuple[str, ...]
    """String columns that are dictionary-encoded on disk and stay so in memory."""

    @classmethod
    def at(cls, uri: str, schema: pa.Schema, min_splits: int) -> ParquetSource:
        """Find the files under `uri` and divide them into at least `min_splits` splits if there are enough row groups.

        Runs on the driver.
        """
        filesystem, path = filesystem_of(uri)
        dataset = ds.dataset(path, filesystem=filesystem, format="parquet", partitioning="hive")
        fragments = list(dataset.get_fragments())
        if not fragments:
            raise InvalidValueError(f"no Parquet files found under {uri}: expected at least one")
        total_bytes = sum(_size(group) for fragment in fragments for group in fragment.row_groups)
        size = max(1, min(SPLIT_BYTES, total_bytes // max(1, min_splits)))
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
    names = [column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings and _is_all_encoded(column)]
    return tuple(name for name in names if name in schema.names and pa.types.is_string(schema.field(name).type))


def _is_all_encoded(column: pq.ColumnChunkMetaData) -> bool:
    """Return whether the whole column uses a dictionary. A writer that finds too many values continues without one."""
    return "PLAIN" not in column.encodings or column.total_uncompressed_size < column.num_values * 8
