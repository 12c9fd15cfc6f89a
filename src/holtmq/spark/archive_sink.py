"""The sinks of an archive: a micro-batch that is written again is stored once. Runs on the driver; the executors write files.

Files are written to a staging folder and moved into place when they are complete. Their names consist of the query's id, the
batch's number and a number in their folder: written again, they replace themselves. What else an earlier attempt has left is
deleted, because a batch may have fewer messages when it runs again. In a Delta table they become visible with a commit, which
contains the id and the number as well; a batch that was committed is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
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
        self._may_be_repeated = True

    def write(self, rows: DataFrame, query_id: str, batch_id: int) -> int:
        """Store a micro-batch. Its files replace those of an earlier attempt."""
        name = batch_name(query_id, batch_id)
        count = self._staging.write(rows, name)
        places = set()
        for folder, file, new_name in self._staging.files(name):
            below = join_path(folder, new_name)
            self._staging.place(name, folder, file, below)
            places.add(below)
        if self._may_be_repeated:  # only the first batch of a run can be
            self._staging.delete_others(name, places)
        self._may_be_repeated = False
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
        for number, (folder, file, _) in enumerate(self._staging.files(name)):
            below = _numbered(name, number, file)
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

    def files(self, name: str) -> Iterator[tuple[str, str, str]]:
        """Yield the folder of each file of a batch, its name, and the name to give it in this folder."""
        for folder, files in groupby(sorted(data_files(self.filesystem, self._path(name))), itemgetter(0)):
            for number, (_, file) in enumerate(files):
                yield folder, file, _numbered(name, number, file)

    def place(self, name: str, folder: str, file: str, below: str) -> None:
        """Move a file of a batch to its place below the target."""
        place = f"{self.root}/{below}"
        self.filesystem.create_dir(place.rpartition("/")[0], recursive=True)
        self.filesystem.move(join_path(self._path(name), folder, file), place)

    def delete_others(self, name: str, places: set[str]) -> None:
        """Delete further files of a batch in the folders of these places.

        An earlier attempt wrote the same messages there, to more files. Other folders stay as they are: if retention has
        removed their messages meanwhile, the archive has the only copies.
        """
        folders = {place.rpartition("/")[0] for place in places}
        for folder, file in data_files(self.filesystem, self.root):
            below = join_path(folder, file)
            if folder in folders and file.startswith(f"{name}-") and below not in places:
                self.filesystem.delete_file(join_path(self.root, below))

    def remove(self, name: str) -> None:
        """Delete what is left of a batch."""
        self.filesystem.delete_dir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root}/{HIDDEN}/{name}"


def _numbered(name: str, number: int, file: str) -> str:
    """Return the name of a file of a batch: that of the batch, a number, and the extensions that Spark chose."""
    return f"{name}-{number:03}.{file.split('.', 1)[1]}"
