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
        return self._is_local and Path(self._path).exists() and self._try_take()

    def take(self, patience_s: float) -> bool:
        """Wait for it so long at most; the folder must be there. Whether we have it."""
        deadline = time.monotonic() + patience_s
        while not self._try_take():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _try_take(self) -> bool:
        if not self._is_local:
            return True
        import fcntl  # not on Windows

        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True
