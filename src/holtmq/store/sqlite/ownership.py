"""Whose a file is: a broker has it alone, embedded libraries share it. A claim ends with the process that has it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holtmq.errors import StoreOwnedError

SUFFIX = "-lock"


class FileClaim:
    """A claim to a HoltMQ file: alone, in the name of a broker's address, or together with others.

    It is a lock on a file beside it and not on the file itself, as SQLite would lose its own locks with ours.
    """

    def __init__(self, path: str, owner: str | None) -> None:
        self._path = path
        self._lock_path = Path(path + SUFFIX)
        self._descriptor = self._lock(fcntl.LOCK_SH if owner is None else fcntl.LOCK_EX)
        if owner is not None:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, owner.encode(), 0)

    def release(self) -> None:
        """Give it up, and tidy up if nobody else has a claim."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock_path.unlink(missing_ok=True)
        except OSError:
            pass
        os.close(self._descriptor)

    def _lock(self, kind: int) -> int:
        while True:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                if self._is_current(descriptor):
                    return descriptor
            except BlockingIOError:
                holder = os.pread(descriptor, 1000, 0).decode(errors="replace")
                os.close(descriptor)
                raise self._refused(holder) from None
            os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Whether the file that was locked is still the one of that name; its last holder may have removed it meanwhile."""
        try:
            return os.fstat(descriptor).st_ino == self._lock_path.stat().st_ino
        except FileNotFoundError:
            return False

    def _refused(self, holder: str) -> StoreOwnedError:
        if holder:
            return StoreOwnedError(f"{self._path} belongs to the running broker at {holder}: connect to that, or stop it")
        return StoreOwnedError(f"{self._path} is open in another process through holtmq.open; close it there first")
