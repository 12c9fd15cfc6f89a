"""One sync of the WAL for all threads that wait for it.

SQLite's own sync (`synchronous = FULL`) happens within a commit, while the commit holds the write lock of the file: one commit,
one sync, and everybody else waits. Here a commit leaves its frames to the operating system (`synchronous = NORMAL`), releases
the lock, and is confirmed after a sync of the WAL that began later. A sync covers the whole WAL, so it serves all threads
whose commits came before it; processes sync at the same time. Why the promise is the same: docs/data-file.md.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path


def can_share_syncs() -> bool:
    """Return whether a sync of one descriptor may stand for the commits made through others.

    macOS needs SQLite's F_FULLFSYNC. On Linux a write that fails in the background is reported to every open descriptor, so
    that no process confirms a commit after one whose frames another process has found to be lost.
    """
    return sys.platform == "linux" and hasattr(os, "fdatasync")


class SharedSync:
    """Syncs a WAL. The file exists and stays the same while a connection to its database has used it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._turn = threading.Condition(threading.Lock())
        self._is_running = False
        self._is_closed = False
        self._begun = self._done = 0
        self.is_doubtful = False
        """Whether a sync has failed: what was in the WAL then may be lost even if later syncs succeed."""

    def wait(self) -> None:
        """Return when everything that was written to the WAL before this call is on disk. Raise OSError if that is doubtful."""
        with self._turn:
            wanted = self._begun + 1  # a sync that is running may have missed the caller's frames
            while self._is_running and self._done < wanted:
                self._turn.wait()
            if self.is_doubtful:
                raise OSError("an earlier sync failed")
            if self._done >= wanted or self._is_closed:
                return
            self._begun += 1
            self._is_running = True
        is_complete = False
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
            os.fdatasync(self._descriptor)
            is_complete = True
        except OSError:
            self.is_doubtful = is_complete = True
            raise
        finally:
            with self._turn:
                self._is_running = False
                if is_complete:
                    self._done = self._begun
                self._turn.notify_all()

    def _open(self) -> int:
        """Open the WAL, and make sure that its name is on disk as well, where folders can be synced."""
        descriptor = os.open(self._path, os.O_RDONLY)
        try:
            _sync_folder(Path(self._path).parent)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def trust(self) -> None:
        """Note that everything in the WAL is in the database, and synced there."""
        self.is_doubtful = False

    def close(self) -> None:
        """Sync for the threads whose commits are not confirmed yet, and close the descriptor.

        SQLite has no locks on a WAL, so closing one of its descriptors drops none.
        """
        with suppress(OSError):
            self.wait()
        with self._turn:
            while self._is_running:
                self._turn.wait()
            self._is_closed = True
            self._close_descriptor()

    def renewed(self) -> SharedSync:
        """Return one for a forked child, where the threads that wait or sync in the parent do not exist."""
        self._close_descriptor()
        return SharedSync(self._path)

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _sync_folder(path: Path) -> None:
    try:
        folder = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(folder)
