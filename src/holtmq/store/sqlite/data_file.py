"""The data file in its folder: created for its owner only, and watched, because a file can be deleted while it is open.

A process that has a file open goes on writing to it after the file was deleted, moved or replaced. Nobody would ever read
what it writes. SQLite does not notice; this module does, by device and inode.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from holtmq.errors import StoreError, StoreReplacedError

OWNER_ONLY = 0o600
WAL = "-wal"
CHECK_EVERY_S = 0.01
"""Longest time for which a change of the file goes unnoticed. Two looks at a path take as long as a fifth of a put."""


def prepare(path: str) -> None:
    """Create a missing file, readable and writable by its owner only; SQLite gives `-wal` and `-shm` the same permissions.

    The permissions of an existing file stay as they are.
    """
    refuse_lone_wal(path)
    with suppress(OSError):  # the file exists, or its folder does not exist or is read-only, which SQLite reports
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
    _refuse_hard_links(path)


def refuse_lone_wal(path: str) -> None:
    """Raise `StoreError` if there is a WAL with changes to a file that is missing or empty. SQLite would delete the WAL."""
    wal = wal_path(path)
    waiting, size = _size(wal), _size(path)  # in this order: another process may be creating both, the file first
    if waiting and not size:
        found = "is missing" if size is None else "is empty"
        raise StoreError(
            f"{path} {found}, but {wal} has {waiting} bytes of changes to it; restore {path} from where it was moved or "
            f"backed up, or move {wal} away to start with an empty file"
        )


def _refuse_hard_links(path: str) -> None:
    """Raise `StoreError` if a file has two names. SQLite would keep a WAL for each, and each would spoil the other's work."""
    with suppress(OSError):
        status = Path(path).stat()
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            raise StoreError(
                f"{path} has {status.st_nlink} hard links; expected one, because SQLite keeps a separate WAL for each name: "
                "remove the other names, or copy the file"
            )


class FileWatch:
    """Tells whether an open file is still the one at its path. `path` is absolute: the process may change its folder."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._wal = Path(wal_path(path))
        self._identity = _identity(self._path)
        self._wal_identity: tuple[int, int] | None = None
        self._next_check = 0.0

    def start_wal(self) -> None:
        """Watch the WAL as well, which exists and stays the same file while any process has the database open."""
        self._wal_identity = _identity(self._wal)

    def wal_size(self) -> int:
        return _size(str(self._wal)) or 0

    def check(self, *, at_once: bool) -> None:
        """Raise `StoreReplacedError` if the file or its WAL is not where it was opened."""
        now = time.monotonic()
        if now < self._next_check and not at_once:
            return
        found = _identity(self._path)
        if found != self._identity:
            raise StoreReplacedError(
                f"{self._path} was {_fate(found)} while it is open, so nothing is written any more; put the same file back, "
                "or close it and open it again to use what is there now"
            )
        if self._wal_identity is not None and (found := _identity(self._wal)) != self._wal_identity:
            raise StoreReplacedError(
                f"{self._wal} was {_fate(found)} while {self._path} is open, so nothing is written any more; put the same file "
                f"back, or close {self._path}, which saves the changes that were in the WAL, and open it again"
            )
        self._next_check = now + CHECK_EVERY_S


def wal_path(path: str) -> str:
    """Return the path of a file's WAL. SQLite follows symbolic links before it adds the suffix."""
    return os.path.realpath(path) + WAL


def _fate(found: tuple[int, int] | None) -> str:
    return "deleted or moved away" if found is None else "replaced by another file"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int | None:
    try:
        return Path(path).stat().st_size
    except OSError:
        return None
