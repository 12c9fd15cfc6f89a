"""A queue of the processes that want to write to a file: one at a time, in the order in which they came.

SQLite has no such queue. Whoever finds its write lock taken sleeps and tries again, so that eight processes spend more time on
attempts than on transactions (benchmarks/embedded.py). Here the operating system wakes the next process when one leaves. Only
processes that have met others queue up, and SQLite's lock still decides: where this queue does not work, they try again.

It is made of System V semaphores, because these have all it takes: a wait with a time limit, and an end of the wait when the
process inside is killed. Their key is made of the device and inode of the file. Containers that share a file but no
semaphores have a queue each.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
import zlib
from pathlib import Path
from typing import Any

IPC_CREAT, IPC_NOWAIT, SEM_UNDO, IPC_RMID = 0o1000, 0o4000, 0x1000, 0


class _Operation(ctypes.Structure):
    _fields_ = (("number", ctypes.c_ushort), ("change", ctypes.c_short), ("flags", ctypes.c_short))


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _operations(*operations: tuple[int, int, int]) -> ctypes.Array[_Operation]:
    return (_Operation * len(operations))(*[_Operation(*each) for each in operations])


# Two semaphores: whether somebody is inside, and whether somebody waits at the head of the queue. Both are 0 at first, and the
# system takes back what a killed process has added.
INSIDE, HEAD = 0, 1
_TRY = _operations((INSIDE, 0, IPC_NOWAIT), (INSIDE, 1, SEM_UNDO | IPC_NOWAIT))
_LEAVE = _operations((INSIDE, -1, SEM_UNDO | IPC_NOWAIT))
_BECOME_HEAD = _operations((HEAD, 0, 0), (HEAD, 1, SEM_UNDO))
_AWAIT_EXIT = _operations((INSIDE, 0, 0))
_END_AS_HEAD = _operations((HEAD, -1, SEM_UNDO | IPC_NOWAIT))


def can_queue() -> bool:
    """Return whether this system has semaphores with a time limit, and the types above."""
    return sys.platform == "linux" and sys.maxsize > 2**32


class Turnstile:
    """The turnstile of one file, as one process sees it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._system: Any = None
        self._id: int | None = None
        self.is_inside = False

    def enter(self, wait_s: float) -> bool:
        """Wait for a turn. Return False if the time is up, or if there is no queue on this system.

        Whoever comes while nobody is inside goes in at once, also if others have just been woken: with several transactions
        in a row, a process reads less of the file again than if processes alternate.
        """
        deadline = time.monotonic() + wait_s
        try:
            if self.is_inside:
                return True
            if not self._open():
                return False
            if self._enter_now():
                return True
            self._wait(_BECOME_HEAD, deadline)
            try:
                while not self._enter_now():
                    self._wait(_AWAIT_EXIT, deadline)
            finally:
                self._system.semop(self._id, _END_AS_HEAD, len(_END_AS_HEAD))
        except TimeoutError:
            return False
        except OSError:
            self._id = None
            return False
        return True

    @property
    def exists(self) -> bool:
        """Whether there is a queue. It ends when a process that takes itself for the last one removes it."""
        return self._id is not None

    def _enter_now(self) -> bool:
        try:
            self._wait(_TRY, 0.0)
        except TimeoutError:
            return False
        self.is_inside = True
        return True

    def _wait(self, operations: ctypes.Array[_Operation], deadline: float) -> None:
        """Do operations when they can be done. Raise TimeoutError at the deadline, and OSError if there is no semaphore."""
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            limit = _Time(int(left_s), int(left_s % 1 * 1e9))
            if self._system.semtimedop(self._id, operations, len(operations), ctypes.byref(limit)) == 0:
                return
            match ctypes.get_errno():
                case errno.EAGAIN:
                    raise TimeoutError
                case errno.EINTR:
                    continue  # Python has handled the signal
                case error:
                    raise OSError(error, os.strerror(error))

    def leave(self) -> None:
        """Let the next one in."""
        if self.is_inside:
            self.is_inside = False
            self._system.semop(self._id, _LEAVE, len(_LEAVE))  # if the semaphore is gone, nobody waits

    def remove(self) -> None:
        """Remove the semaphore. Only for the last process that has the file open."""
        if (key := self.key) is not None:
            system = ctypes.CDLL(None)
            found = system.semget(key, 2, 0)
            if found >= 0:
                system.semctl(found, 0, IPC_RMID)

    def _open(self) -> bool:
        if self._id is None and (key := self.key) is not None:
            self._system = self._system or ctypes.CDLL(None, use_errno=True)
            found = self._system.semget(key, 2, IPC_CREAT | 0o600)
            self._id = found if found >= 0 else None
        return self._id is not None

    @property
    def key(self) -> int | None:
        """The key of the file's semaphores: above 0, which would stand for private ones. None if there is no file."""
        try:
            status = Path(self._path).stat()
        except OSError:
            return None
        return zlib.crc32(f"holtmq {status.st_dev} {status.st_ino}".encode()) & 0x7FFFFFFF or 1
