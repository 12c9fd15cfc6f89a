"""The spool: received messages that are not committed yet, as numbered Arrow files.

A queue cannot be read again from an offset, but a file can. The driver writes a segment under a temporary name. The segment
gets its number when a micro-batch includes it, the executors read it, and it is deleted when that batch is committed. On the
local disk a lock ensures that a spool has one user at a time; the lock is released when its process is killed. On other file
systems each stream must have a spool of its own.
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
from holtmq.spark.amqp.columns import with_all_columns
from holtmq.spark.filesystems import exists, filesystem_of
from holtmq.spark.locks import FolderLock

NUMBERED = re.compile(r"segment-(\d{12})\.arrow$")
FRESH = re.compile(r"fresh-[^/]*\.arrow(\.part)?$")
TAKEN = re.compile(r"taken-[^/]*\.arrow$")
TEMPORARY = "holtmq-spool-"
"""Prefix of the folder of a stream that does not keep its spool."""
LOCK_TIMEOUT_S = 30.0
"""How long to wait for a killed stream to release its spool."""


class SpoolError(HoltmqError):
    """The spool is in use, or segments are missing."""


class Spool:
    """The spool in one folder. The driver writes it, the executors read it."""

    def __init__(self, uri: str) -> None:
        self._filesystem, self._path = filesystem_of(uri)
        self.uri = uri if "://" in uri else self._path  # executors may have another working directory
        self._lock = FolderLock(self._filesystem, self._path)

    def acquire(self) -> None:
        """Create the folder and lock it. Raise SpoolError if another stream uses it."""
        self._filesystem.create_dir(self._path, recursive=True)
        if not self._lock.acquire(LOCK_TIMEOUT_S):
            raise SpoolError(f"the spool {self.uri} is used by another stream: each stream needs a spool of its own")

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    @classmethod
    def temporary(cls, folder: str | None) -> Spool:
        """Return a new spool below the folder, by default below the system's folder for temporary files.

        It is for a stream that does not keep its spool. Abandoned spools of such streams are removed.
        """
        parent = folder or tempfile.gettempdir()
        with contextlib.suppress(OSError):  # another process is removing it, or it belongs to another user
            for abandoned in cls._abandoned(parent):
                abandoned.remove()
        return cls(f"{folder.rstrip('/')}/{TEMPORARY}{uuid.uuid4()}" if folder else tempfile.mkdtemp(prefix=TEMPORARY))

    @classmethod
    def _abandoned(cls, folder: str) -> Iterator[Spool]:
        """Yield the temporary spools of streams that were killed."""
        filesystem, path = filesystem_of(folder)
        for info in filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if info.type == fs.FileType.Directory and info.base_name.startswith(TEMPORARY):
                spool = cls(f"{folder.rstrip('/')}/{info.base_name}")
                if spool._lock.acquire_if_abandoned():
                    yield spool

    def remove(self) -> None:
        """Delete the folder and all segments."""
        self._filesystem.delete_dir(self._path)
        self.release()

    def write(self, batch: pa.RecordBatch, order: int) -> str:
        """Write a new segment and sync it to disk. Return its name. Names sort by `order`, oldest first."""
        name = f"{self._path}/fresh-{order:012}-{uuid.uuid4()}.arrow"
        partial = name + ".part"
        with self._filesystem.open_output_stream(partial) as stream, pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)
        self._sync(partial)
        self._filesystem.move(partial, name)
        self._sync(self._path)
        return name

    def _sync(self, path: str) -> None:
        """Sync to the local disk. Other file systems guarantee durability when a file is closed."""
        if isinstance(self._filesystem, fs.LocalFileSystem):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def number(self, name: str, number: int) -> None:
        """Give a segment its number."""
        if self.has(number):
            raise SpoolError(f"the spool {self.uri} already has a segment {number}: each stream needs a spool of its own")
        self._filesystem.move(name, self._place(number))
        self._sync(self._path)  # segments without a number are deleted after a crash; this one may be acknowledged already

    def has(self, number: int) -> bool:
        """Return whether there is a segment with this number."""
        return exists(self._filesystem, self._place(number))

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment. Runs on the executors."""
        try:
            stream = self._filesystem.open_input_file(self._place(number))
        except FileNotFoundError as error:
            raise SpoolError(
                f"segment {number} was not found in the spool {self.uri}: the spool must be a folder that the driver "
                "and all executors share"
            ) from error
        with stream, pa.ipc.open_file(stream) as reader:
            for index in range(reader.num_record_batches):
                yield with_all_columns(reader.get_batch(index))

    def remove_up_to(self, number: int) -> None:
        """Delete the segments up to this number, which are committed."""
        for name in self._names():
            found = NUMBERED.search(name)
            if found and int(found.group(1)) <= number:
                self._filesystem.delete_file(name)

    def recover(self, last: int) -> list[tuple[str, int]]:
        """Remove the numbers of segments after `last`. Return their names and row counts, oldest first.

        After a crash, these segments are acknowledged, but Spark has not recorded a batch that includes them.
        """
        for name in self._names():
            found = NUMBERED.search(name)
            if found and int(found.group(1)) > last:
                self._filesystem.move(name, f"{self._path}/taken-{found.group(1)}.arrow")
        return [(name, self._rows(name)) for name in sorted(self._names()) if TAKEN.search(name)]

    def discard(self, name: str) -> None:
        """Delete a segment that has no number."""
        self._filesystem.delete_file(name)

    def remove_fresh(self) -> None:
        """Delete all segments that never got a number. Their messages are unacknowledged and will be redelivered."""
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
