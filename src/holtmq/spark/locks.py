"""Locks on folders that are released when the process that has them is killed.

They work on the local disk only. Other file systems have no such locks: there, each process must use a folder of its own.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow.fs as fs

POLL_S = 0.1


class FolderLock:
    """The lock of one folder. Where locks are not supported, acquiring it always succeeds."""

    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        self._is_local = isinstance(filesystem, fs.LocalFileSystem) and sys.platform != "win32"
        self._path = f"{folder}/owner.lock"
        self._descriptor: int | None = None

    def acquire_if_abandoned(self) -> bool:
        """Acquire the lock if another process had it and is gone. Return whether it was acquired."""
        return self._is_local and Path(self._path).exists() and self._try_acquire(os.O_RDWR)

    def acquire(self, timeout_s: float) -> bool:
        """Wait for the lock for at most this long. Return whether it was acquired."""
        deadline = time.monotonic() + timeout_s
        if self._is_local:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        while not self._try_acquire(os.O_RDWR | os.O_CREAT):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        """Release the lock if this object has it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try_acquire(self, flags: int) -> bool:
        if not self._is_local:
            return True
        import fcntl  # not available on Windows

        descriptor = os.open(self._path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != Path(self._path).stat().st_ino:
                raise BlockingIOError  # the folder was removed and created again in the meantime
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except OSError:  # a mounted file system without locks
            os.close(descriptor)
            return True
        self._descriptor = descriptor
        return True
