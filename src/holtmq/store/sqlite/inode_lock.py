"""A lock on the data file itself, which holds by whatever name a process opens the file: a symbolic link, a new name.

It covers one byte far beyond the contents. SQLite locks other bytes (1 GiB to 1 GiB + 511), so the two never meet. It is an
"open file description" lock of Linux, because an ordinary `fcntl` lock ends when SQLite closes any descriptor of the file,
and `flock` covers the whole file on network file systems and on the BSDs, where it would lock out SQLite. Where the system has
no such locks, the lock file of `ownership.py` is all there is.
"""

from __future__ import annotations

import importlib
import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

LOCKED_BYTE = 1 << 62
FLOCK = "hhqqi"
"""`struct flock` of Linux: type, whence, start, length, process."""
DESCRIPTORS = Path("/proc/self/fd")


class InodeLock:
    """A lock on a file, shared or exclusive. Raises `BlockingIOError` if another process holds one that conflicts."""

    def __init__(self, path: str, *, is_shared: bool) -> None:
        with _guard:
            self._descriptor = os.open(path, os.O_RDWR)
        try:
            self._set(_ofd.F_RDLCK if is_shared else _ofd.F_WRLCK)
        except BaseException:
            self.abandon()
            raise

    @property
    def is_only(self) -> bool:
        """Whether no other process holds a lock on the file."""
        asked = _flock(_ofd.F_WRLCK)
        kind, *_ = struct.unpack(FLOCK, _ofd.fcntl(self._descriptor, _ofd.F_OFD_GETLK, asked))
        return bool(kind == _ofd.F_UNLCK)

    def release(self) -> None:
        self._set(_ofd.F_UNLCK)
        self.abandon()

    def abandon(self) -> None:
        """Close the descriptor and leave the lock to the processes that share it through a fork.

        Closing any descriptor of a file drops all locks that SQLite holds on it in this process. So the descriptor is kept
        while this process has the file open otherwise, and closed with a later one.
        """
        with _guard:
            _kept.append(self._descriptor)
            opened = [_identity(int(entry.name)) for entry in DESCRIPTORS.iterdir() if int(entry.name) not in _kept]
            for descriptor in list(_kept):
                if _identity(descriptor) not in opened:
                    os.close(descriptor)
                    _kept.remove(descriptor)

    def _set(self, kind: int) -> None:
        _ofd.fcntl(self._descriptor, _ofd.F_OFD_SETLK, _flock(kind))


def has_inode_locks() -> bool:
    """Return whether this system has such locks."""
    return hasattr(_ofd, "F_OFD_SETLK") and DESCRIPTORS.is_dir()


def _flock(kind: int) -> bytes:
    return struct.pack(FLOCK, kind, os.SEEK_SET, LOCKED_BYTE, 1, 0)


def _identity(descriptor: int) -> tuple[int, int] | None:
    with suppress(OSError):
        found = os.fstat(descriptor)
        return found.st_dev, found.st_ino
    return None


def _fcntl() -> Any:
    try:
        return importlib.import_module("fcntl")
    except ImportError:
        return None


def _renew_guard() -> None:
    """Replace the guard in a forked child: another thread of the parent may have held it."""
    global _guard
    _guard = threading.Lock()


_ofd = _fcntl()
_guard = threading.Lock()
_kept: list[int] = []
"""Descriptors that are unlocked and wait to be closed."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_guard)
