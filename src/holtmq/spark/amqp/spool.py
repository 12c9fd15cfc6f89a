"""The spool: what was received and is not committed, as numbered Arrow files that driver and executors both see.

A queue can't be read again from an offset, a file can. A segment is first written under a name of its own; it gets its
number when a micro-batch takes it, and goes when that batch is committed.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as fs

from holtmq.errors import HoltmqError
from holtmq.spark.parquet import filesystem_of

NUMBERED = re.compile(r"segment-(\d{12})\.arrow$")
FRESH = re.compile(r"fresh-[^/]*\.arrow$")


class SpoolError(HoltmqError):
    """The spool does not hold what it should."""


class Spool:
    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._filesystem, self._path = filesystem_of(uri)

    def prepare(self) -> None:
        self._filesystem.create_dir(self._path, recursive=True)

    def clear(self) -> None:
        for name in self._names():
            self._filesystem.delete_file(name)

    def remove(self) -> None:
        self._filesystem.delete_dir(self._path)

    def write(self, batch: pa.RecordBatch, order: int) -> str:
        """A new segment, on disk when this returns; its name. `order` keeps segments of one receiver apart, oldest first."""
        name = f"{self._path}/fresh-{order:012}-{uuid.uuid4()}.arrow"
        aside = name + ".part"
        with self._filesystem.open_output_stream(aside) as stream, pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)
        self._sync(aside)
        self._filesystem.move(aside, name)
        self._sync(self._path)
        return name

    def _sync(self, path: str) -> None:
        """On this machine's disk for good; other file systems promise that when a file is closed."""
        if isinstance(self._filesystem, fs.LocalFileSystem):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def number(self, name: str, number: int) -> None:
        self._filesystem.move(name, self._place(number))

    def has(self, number: int) -> bool:
        return bool(self._filesystem.get_file_info(self._place(number)).type != fs.FileType.NotFound)

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        try:
            stream = self._filesystem.open_input_file(self._place(number))
        except FileNotFoundError as error:
            message = f"segment {number} is not in {self.uri}: expected a spool that the driver and all executors can reach"
            raise SpoolError(message) from error
        with stream, pa.ipc.open_file(stream) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)

    def remove_up_to(self, number: int) -> None:
        for name in self._names():
            found = NUMBERED.search(name)
            if found and int(found.group(1)) <= number:
                self._filesystem.delete_file(name)

    def take_back(self, last: int) -> None:
        """Make segments fresh again that got a number beyond the last one that a batch has: a crash came between the two."""
        for name in self._names():
            found = NUMBERED.search(name)
            if found and int(found.group(1)) > last:
                self._filesystem.move(name, f"{self._path}/fresh-{0:012}-{found.group(1)}.arrow")

    def fresh(self) -> list[tuple[str, int]]:
        """Segments that no batch has taken, oldest first, with their numbers of rows."""
        return [(name, self._rows(name)) for name in sorted(self._names()) if FRESH.search(name)]

    def _rows(self, name: str) -> int:
        with self._filesystem.open_input_file(name) as stream, pa.ipc.open_file(stream) as reader:
            return sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))

    def _names(self) -> list[str]:
        found = self._filesystem.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [info.path for info in found if info.type == fs.FileType.File]

    def _place(self, number: int) -> str:
        return f"{self._path}/segment-{number:012}.arrow"
