"""The spool: what was received and is not committed, as numbered Arrow files that driver and executors both see.

A queue can't be read again from an offset, a file can. A segment is first written under a name of its own; it gets its
number when a micro-batch takes it, and goes when that batch is committed. On this machine's disk a spool has one user at a
time, by a lock that a process which is killed lets go of; other file systems leave that to whoever names the spool.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as fs

from holtmq.errors import HoltmqError
from holtmq.spark.locks import FolderLock
from holtmq.spark.parquet import filesystem_of

NUMBERED = re.compile(r"segment-(\d{12})\.arrow$")
FRESH = re.compile(r"fresh-[^/]*\.arrow(\.part)?$")
TAKEN = re.compile(r"taken-[^/]*\.arrow$")
PASSING = "holtmq-spool-"
"""How the folder of a stream begins that keeps nothing."""
PATIENCE_S = 30.0
"""So long a stream that was killed may take to let go of its spool."""


class SpoolError(HoltmqError):
    """The spool does not hold what it should."""


class Spool:
    def __init__(self, uri: str) -> None:
        self._filesystem, self._path = filesystem_of(uri)
        self.uri = uri if "://" in uri else self._path  # executors may have another working directory
        self._lock = FolderLock(self._filesystem, self._path)

    def hold(self) -> None:
        """Make it, and be its only user from now on."""
        self._filesystem.create_dir(self._path, recursive=True)
        if not self._lock.take(PATIENCE_S):
            raise SpoolError(f"the spool {self.uri} is in use: expected one that this stream has to itself")

    def release(self) -> None:
        self._lock.release()

    @classmethod
    def passing(cls, folder: str | None) -> Spool:
        """One below the folder, or in a folder for temporary things, for a stream that needs it no longer than it runs."""
        parent = folder or tempfile.gettempdir()
        with contextlib.suppress(OSError):  # others may tidy up as well, or it is another user's
            for left in cls._left_in(parent):
                left.remove()
        return cls(f"{folder.rstrip('/')}/{PASSING}{uuid.uuid4()}" if folder else tempfile.mkdtemp(prefix=PASSING))

    @classmethod
    def _left_in(cls, folder: str) -> Iterator[Spool]:
        """Such spools of streams that are gone and could not tidy up."""
        filesystem, path = filesystem_of(folder)
        for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if info.type == fs.FileType.Directory and info.base_name.startswith(PASSING):
                spool = cls(f"{folder.rstrip('/')}/{info.base_name}")
                if spool._lock.take_if_left():
                    yield spool

    def remove(self) -> None:
        self._filesystem.delete_dir(self._path)
        self.release()

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
        if self.has(number):
            raise SpoolError(f"segment {number} is in {self.uri} already: expected a spool that this stream has to itself")
        self._filesystem.move(name, self._place(number))
        self._sync(self._path)  # a segment without a number is thrown away after a crash, and this one may be acknowledged

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

    def take_back(self, last: int) -> list[tuple[str, int]]:
        """Segments with a number beyond the last one that a batch has, for a crash came between the two: without a number
        again, oldest first, with how many rows each has."""
        for name in self._names():
            found = NUMBERED.search(name)
            if found and int(found.group(1)) > last:
                self._filesystem.move(name, f"{self._path}/taken-{found.group(1)}.arrow")
        return [(name, self._rows(name)) for name in sorted(self._names()) if TAKEN.search(name)]

    def forget(self, name: str) -> None:
        self._filesystem.delete_file(name)

    def remove_fresh(self) -> None:
        """Segments that never got a number go: their messages were not acknowledged, and come again."""
        for name in self._names():
            if FRESH.search(name):
                self._filesystem.delete_file(name)

    def _rows(self, name: str) -> int:
        with self._filesystem.open_input_file(name) as stream, pa.ipc.open_file(stream) as reader:
            return sum(reader.get_batch(index).num_rows for index in range(reader.num_record_batches))

    def _names(self) -> list[str]:
        found = self._filesystem.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return [info.path for info in found if info.type == fs.FileType.File]

    def _place(self, number: int) -> str:
        return f"{self._path}/segment-{number:012}.arrow"
