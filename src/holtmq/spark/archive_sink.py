"""The sinks of an archive: a micro-batch that is written again is stored once. Runs on the driver; the executors write files.

Files are written to a staging folder and moved into place when they are complete. Their names consist of the query's id and
the batch's number: written again, they replace themselves. In a Delta table they become visible with a commit, which contains
both as well; a batch that was committed is skipped.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow.fs as fs
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from holtmq.spark.archive_folders import ArchiveFolders
from holtmq.spark.archive_formats import WRITE_OPTIONS
from holtmq.spark.archive_layout import HIDDEN, batch_name, data_files, join_path, uri_below
from holtmq.spark.compaction import finish_interrupted
from holtmq.spark.delta_table import DELTA, ArchiveTable, NewFile
from holtmq.spark.filesystems import filesystem_of


class ArchiveSink(Protocol):
    """Stores the micro-batches of a query."""

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """Store a micro-batch. Return the number of messages that were written."""


def open_sink(target: str, format_: str, folders: ArchiveFolders) -> ArchiveSink:
    """Return the sink for a format."""
    return DeltaSink(target, folders) if format_ == DELTA else FolderSink(target, format_, folders)


class FolderSink:
    """Stores micro-batches as files in folders."""

    def __init__(self, target: str, format_: str, folders: ArchiveFolders) -> None:
        self._staging = StagingFolder(target, format_, folders)
        # until an interrupted compaction is complete, some messages may be invisible
        finish_interrupted(self._staging.filesystem, self._staging.root)

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """Store a micro-batch. Its files replace those of an earlier attempt."""
        name = batch_name(query_id, batch_id)
        count = self._staging.write(rows, name)
        for number, (folder, file) in enumerate(self._staging.files(name)):
            self._staging.place(name, folder, file, join_path(folder, f"{name}-{number:03}.{file.split('.', 1)[1]}"))
        self._staging.remove(name)
        return count


class DeltaSink:
    """Stores micro-batches in a Delta table. The files have no folders: the table knows the values of their partitions."""

    def __init__(self, target: str, folders: ArchiveFolders) -> None:
        self._staging = StagingFolder(target, "parquet", folders)
        self._table = ArchiveTable(target)
        self._folders = folders

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """Store a micro-batch, unless the table contains it already."""
        self._table.create(rows.schema, self._folders.names)
        if self._table.has_batch(query_id, batch_id):
            return 0
        name = batch_name(query_id, batch_id)
        count = self._staging.write(rows, name)
        files = []
        for number, (folder, file) in enumerate(self._staging.files(name)):
            below = f"{name}-{number:03}.{file.split('.', 1)[1]}"
            self._staging.place(name, folder, file, below)
            files.append(NewFile.at(self._staging.filesystem, self._staging.root, below, folder))
        self._table.commit(files, query_id, batch_id)
        self._staging.remove(name)
        return count


class StagingFolder:
    """The folder in which Spark writes the files of a batch, below the target and invisible to readers."""

    def __init__(self, target: str, format_: str, folders: ArchiveFolders) -> None:
        self.filesystem: fs.FileSystem
        self.filesystem, self.root = filesystem_of(target)
        self._target = target
        self._format = format_
        self._folders = folders

    def write(self, rows: DataFrame, name: str) -> int:
        """Write the files of a batch. Return the number of rows."""
        counted = Observation()
        observed = rows.observe(counted, F.count("*").alias("messages"))
        writer = observed.write.format(self._format).options(**WRITE_OPTIONS.get(self._format, {}))
        writer = writer.partitionBy(*self._folders.names).mode("overwrite")
        writer.save(uri_below(self._target, self._path(name), self.root))
        return int(counted.get["messages"])

    def files(self, name: str) -> list[tuple[str, str]]:
        """Return the folder and the name of each file of a batch."""
        return sorted(data_files(self.filesystem, self._path(name)))

    def place(self, name: str, folder: str, file: str, below: str) -> None:
        """Move a file of a batch to its place below the target."""
        place = f"{self.root}/{below}"
        self.filesystem.create_dir(place.rpartition("/")[0], recursive=True)
        self.filesystem.move(join_path(self._path(name), folder, file), place)

    def remove(self, name: str) -> None:
        """Delete what is left of a batch."""
        self.filesystem.delete_dir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{HIDDEN}/{name}"
