"""Free disk space: publishers stop while there is still room for everything else.

A full disk must not keep consumers from draining it. An acknowledgement frees space in the file, but needs some to be
written: first in the WAL, and again when the WAL is copied into the file.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holtmq.errors import StoreFullError
from holtmq.store.sqlite.data_file import wal_path

MOST_OF_FILE_SYSTEM = 0.05
"""The limit is at most this part of the file system, so that a small one can be used."""
MIB = 1024 * 1024
AMPLE_BYTES = 1024 * MIB
"""With this much more than needed, the next check is after CHECK_S: no broker writes as much in the meantime."""
CHECK_S = 1.0


class DiskSpace:
    """The file system of a data file."""

    def __init__(self, data: str, limit: int) -> None:
        self._data = data
        self._folder = None if data == ":memory:" else Path(data).resolve().parent
        self._limit = limit
        self._next_check = 0.0

    @property
    def limit(self) -> int:
        """Free bytes below which publishers are blocked."""
        if self._folder is None:
            return 0
        system = os.statvfs(self._folder)
        return min(self._limit, int(system.f_blocks * system.f_frsize * MOST_OF_FILE_SYSTEM))

    @property
    def used(self) -> int:
        """Bytes of the data file and its WAL."""
        return 0 if self._folder is None else _size(self._data) + _size(wal_path(self._data))

    def require(self, size: int) -> None:
        """Raise StoreFullError if the disk has no room for messages of this size."""
        if self._folder is None or not size or time.monotonic() < self._next_check:
            return
        system = os.statvfs(self._folder)
        free = system.f_bavail * system.f_frsize
        needed = self.limit + 2 * size + _size(wal_path(self._data))
        if free < needed:
            raise StoreFullError(
                f"{self._data}: {free / MIB:.1f} MiB of disk space are free, and {needed / MIB:.1f} MiB are needed; "
                "free some space, or let consumers drain the queues"
            )
        if free > needed + AMPLE_BYTES:
            self._next_check = time.monotonic() + CHECK_S


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
