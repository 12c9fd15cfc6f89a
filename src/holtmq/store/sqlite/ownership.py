"""Ownership of a HoltMQ file: a broker owns it exclusively, embedded libraries share it.

A claim is a lock on a file beside the database, which any system has and which names the broker that owns the database. Where
the system allows it, a claim is also a lock on the database itself (`inode_lock.py`): a lock file can be removed, and a
database can have other names. The operating system releases a claim when its process ends.
"""

from __future__ import annotations

import importlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from holtmq.errors import StoreOwnedError
from holtmq.store.refusal import refusal
from holtmq.store.sqlite.inode_lock import InodeLock, has_inode_locks

SUFFIX = "-lock"
LONGEST_ADDRESS = 1000


class Locking(Protocol):
    """The locks of an operating system on an open file: any number of shared ones, or a single exclusive one."""

    def share(self, descriptor: int) -> bool:
        """Take a shared lock; return False if another process holds an exclusive one."""

    def own(self, descriptor: int) -> bool:
        """Take an exclusive lock, giving up a shared one; return False if another process holds any lock."""

    def release(self, descriptor: int) -> None:
        """Release the lock, which ends with the last descriptor at the latest."""


class FlockLocking:
    """Locks of Linux, macOS and the BSDs: `flock` on the whole file."""

    def __init__(self, fcntl: Any) -> None:
        self._fcntl = fcntl

    def share(self, descriptor: int) -> bool:
        return self._try(descriptor, self._fcntl.LOCK_SH)

    def own(self, descriptor: int) -> bool:
        return self._try(descriptor, self._fcntl.LOCK_EX)

    def release(self, descriptor: int) -> None:
        """Leave it to the last descriptor: a child made by fork shares the lock and may still need it."""

    def _try(self, descriptor: int, kind: int) -> bool:
        try:
            self._fcntl.flock(descriptor, kind | self._fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


class ByteRangeLocking:
    """Locks of Windows, which are all exclusive: sharing means to lock one byte of a range, owning to lock the whole range.

    SQLite does the same. The range lies far beyond the contents, because Windows lets nobody read a locked byte.
    """

    START = 1 << 30
    SLOTS = 512

    def __init__(self, msvcrt: Any) -> None:
        self._msvcrt = msvcrt
        self._locked: tuple[int, int] | None = None

    def share(self, descriptor: int) -> bool:
        first = os.getpid() % self.SLOTS  # processes rarely meet at the same slot
        return any(self._try(descriptor, self.START + (first + n) % self.SLOTS, 1) for n in range(self.SLOTS))

    def own(self, descriptor: int) -> bool:
        self.release(descriptor)
        return self._try(descriptor, self.START, self.SLOTS)

    def release(self, descriptor: int) -> None:
        if self._locked is not None:
            start, size = self._locked
            os.lseek(descriptor, start, os.SEEK_SET)
            self._msvcrt.locking(descriptor, self._msvcrt.LK_UNLCK, size)
            self._locked = None

    def _try(self, descriptor: int, start: int, size: int) -> bool:
        os.lseek(descriptor, start, os.SEEK_SET)
        try:
            self._msvcrt.locking(descriptor, self._msvcrt.LK_NBLCK, size)
        except OSError:
            return False
        self._locked = start, size
        return True


def system_locking() -> Locking | None:
    """Return the locks that this operating system has, or None if it has none."""
    if (fcntl := _module("fcntl")) is not None:
        return FlockLocking(fcntl)
    if (msvcrt := _module("msvcrt")) is not None:
        return ByteRangeLocking(msvcrt)
    return None


class FileClaim:
    """A claim to a HoltMQ file: exclusive, in the name of a broker's address, or shared with other libraries."""

    def __init__(self, path: str, owner: str | None, locking: Locking) -> None:
        self._path = path
        self._lock_path = Path(os.path.realpath(path) + SUFFIX)
        self._locking = locking
        self._descriptor = self._take(is_shared=owner is None)
        self._inode_lock: InodeLock | None = None
        try:
            self._inode_lock = self._lock_inode(is_shared=owner is None)
        except BaseException:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)  # a broker that was killed leaves its address there
        if owner is not None:
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            os.write(self._descriptor, owner.encode())

    @property
    def is_only(self) -> bool:
        """Whether no other process has the file open, as far as the system can tell."""
        return self._inode_lock is None or self._inode_lock.is_only

    def release(self) -> None:
        """Release the claim, and remove the lock file if no other process holds a claim."""
        if self._inode_lock is not None:
            self._inode_lock.release()
        try:
            is_last = self._locking.own(self._descriptor)
            if is_last and os.name != "nt":
                self._lock_path.unlink(missing_ok=True)  # before it is unlocked, so that nobody locks a removed file
            self._locking.release(self._descriptor)
        except OSError:
            is_last = False
        os.close(self._descriptor)
        if is_last and os.name == "nt":
            self._remove_closed()

    def abandon(self) -> None:
        """Close the descriptors that a forked child has inherited. The claim stays its parent's."""
        if self._inode_lock is not None:
            self._inode_lock.abandon()
        os.close(self._descriptor)

    def _remove_closed(self) -> None:
        """Remove the lock file on Windows, which refuses to remove a file that any process has open."""
        with suppress(OSError):
            self._lock_path.unlink(missing_ok=True)

    def _take(self, *, is_shared: bool) -> int:
        mode = stat.S_IMODE(Path(self._path).stat().st_mode)  # whoever may use the database may lock it
        while True:
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, mode)
            try:
                is_granted = self._locking.share(descriptor) if is_shared else self._locking.own(descriptor)
                if not is_granted:
                    raise refusal(self._path, _read_address(descriptor))
                if self._is_current(descriptor):
                    return descriptor
                self._locking.release(descriptor)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock_inode(self, *, is_shared: bool) -> InodeLock | None:
        if not has_inode_locks():
            return None
        try:
            return InodeLock(self._path, is_shared=is_shared)
        except BlockingIOError:
            raise StoreOwnedError(
                f"{self._path} is in use by another process, which opened it by another name or whose {self._lock_path.name} "
                "was removed; stop that process and try again"
            ) from None
        except OSError:
            return None  # the file system has no such locks

    def _is_current(self, descriptor: int) -> bool:
        """Return whether the locked file still has its name; its last holder may have removed it in the meantime."""
        try:
            return os.fstat(descriptor).st_ino == self._lock_path.stat().st_ino
        except FileNotFoundError:
            return False


def _read_address(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, LONGEST_ADDRESS).decode(errors="replace")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
