"""The spool: received messages that are not committed yet, as Arrow files.

A queue cannot be read again from an offset, but a file can. The driver writes pieces as `fresh-…`. When a micro-batch includes
them, they are renamed to `segment-NUMBER-…`, the executors read them, and they are deleted when that batch is committed. On
the local disk a lock ensures that a spool has one user at a time; the lock is released when its process is killed. On other
file systems each stream must have a spool of its own.

The spool of a stream with `ack=spool` is durable: its files are synced to disk before their messages are acknowledged. That of
a stream with `ack=commit` is temporary. It is not synced, because a crash makes the broker redeliver all of its messages.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.fs as fs

from holtmq.errors import HoltmqError
from holtmq.spark.amqp.segment import Piece
from holtmq.spark.filesystems import filesystem_of
from holtmq.spark.locks import FolderLock

NUMBERED = re.compile(r"segment-(\d{12})(?:-\d+)?\.arrow$")
"""The file of a segment. In old spools it has no second number, because a segment was one file."""
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

    def __init__(self, uri: str, *, is_durable: bool = True) -> None:
        self._is_durable = is_durable
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
        uri = f"{folder.rstrip('/')}/{TEMPORARY}{uuid.uuid4()}" if folder else tempfile.mkdtemp(prefix=TEMPORARY)
        return cls(uri, is_durable=False)

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

    def write(self, batches: Sequence[pa.RecordBatch], order: int) -> str:
        """Write a piece. Return its name. Names sort by `order`, oldest first."""
        name = f"{self._path}/fresh-{order:012}-{uuid.uuid4()}.arrow"
        partial = name + ".part"
        with self._filesystem.open_output_stream(partial) as stream, pa.ipc.new_file(stream, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        self._sync(partial)
        self._filesystem.move(partial, name)
        return name

    def _sync(self, path: str) -> None:
        """Sync to the local disk. Other file systems guarantee durability when a file is closed."""
        if self._is_durable and isinstance(self._filesystem, fs.LocalFileSystem):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def number(self, segments: Mapping[int, Iterable[str]]) -> None:
        """Make pieces, by their names, the segments with these numbers."""
        if taken := segments.keys() & self.segments().keys():
            raise SpoolError(f"the spool {self.uri} already has a segment {min(taken)}: each stream needs a spool of its own")
        for number, names in segments.items():
            for part, name in enumerate(names):
                self._filesystem.move(name, f"{self._path}/segment-{number:012}-{part:04}.arrow")
        self._sync(self._path)  # pieces without a number are deleted after a crash; these may be acknowledged already

    def segments(self) -> dict[int, list[str]]:
        """Return the numbers of all segments, and their files in order."""
        found: dict[int, list[str]] = defaultdict(list)
        for name in sorted(self._names()):
            if numbered := NUMBERED.search(name):
                found[int(numbered[1])].append(name)
        return found

    def read(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of files. Runs on the executors."""
        for name in names:
            try:
                stream = self._filesystem.open_input_file(name)
            except FileNotFoundError as error:
                raise SpoolError(
                    f"{name.rpartition('/')[2]} was not found in the spool {self.uri}: the spool must be a folder that the "
                    "driver and all executors share"
                ) from error
            with stream, pa.ipc.open_file(stream) as reader:
                for index in range(reader.num_record_batches):
                    yield reader.get_batch(index)

    def remove_up_to(self, number: int) -> None:
        """Delete the segments up to this number, which are committed."""
        for each, names in self.segments().items():
            if each <= number:
                for name in names:
                    self._filesystem.delete_file(name)

    def recover(self, last: int) -> list[Piece]:
        """Remove the numbers of segments after `last`. Return their pieces, oldest first.

        After a crash, these segments are acknowledged, but Spark has not recorded a batch that includes them.
        """
        for number, names in self.segments().items():
            if number > last:
                for name in names:
                    self._filesystem.move(name, f"{self._path}/taken-{name.rpartition('/segment-')[2]}")
        return [Piece(name, self._rows(name), datetime.now(UTC)) for name in sorted(self._names()) if TAKEN.search(name)]

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
