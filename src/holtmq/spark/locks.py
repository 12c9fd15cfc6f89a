"""Folders that one process has to itself, by a lock that a process which is killed lets go of.

Only on this machine's disk: other file systems have no such locks, and leave it to whoever names the folder.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pyarrow.fs as fs

POLL_S = 0.1


class FolderLock:
    def __init__(self, filesystem: fs.FileSystem, folder: str) -> None:
        self._is_local = isinstance(filesystem, fs.LocalFileSystem) and sys.platform != "win32"
        self._path = f"{folder}/owner.lock"
        self._descriptor: int | None = None

    def take_if_left(self) -> bool:
        """Take it if somebody had it and can be seen to be gone."""
        return self._is_local and Path(self._path).exists() and self._try_take(os.O_RDWR)

    def take(self, patience_s: float) -> bool:
        """Wait for it so long at most. Whether we have it."""
        deadline = time.monotonic() + patience_s
        if self._is_local:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        while not self._try_take(os.O_RDWR | os.O_CREAT):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try_take(self, flags: int) -> bool:
        if not self._is_local:
            return True
        import fcntl  # not on Windows

        descriptor = os.open(self._path, flags, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino != Path(self._path).stat().st_ino:
                raise BlockingIOError  # somebody has removed the folder, and made it anew
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return False
        except OSError:  # a mounted file system that has no locks
            os.close(descriptor)
            return True
        self._descriptor = descriptor
        return True
