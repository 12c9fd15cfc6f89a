"""Wakes waiting consumers: immediately within a process, and within a few milliseconds across processes.

Writers in this process ring the bell. For writers in other processes a thread, which runs only while someone waits, checks
SQLite's data version every few milliseconds; each check takes microseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_EVERY_S = 0.01


class Bell:
    """A wake-up call for the threads of this process that wait for messages."""

    def __init__(self, data_version: Callable[[], int]) -> None:
        self._data_version = data_version
        self._condition = threading.Condition()
        self._rings = 0
        self._waiting = 0
        self._watcher: threading.Thread | None = None

    def listen(self) -> int:
        """Return a mark for `wait`. No ring after it is missed."""
        return self._rings

    def ring(self) -> None:
        """Wake all waiting threads."""
        # Every put rings, mostly without a waiter. A waiter registers before it reads the number of rings, so it misses none.
        self._rings += 1
        if self._waiting:
            with self._condition:
                self._condition.notify_all()

    def wait(self, since: int, timeout_s: float | None) -> bool:
        """Wait until the bell has rung since the mark. Return False on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._condition:
            self._waiting += 1
            try:
                self._watch()
                while self._rings == since:
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._condition.wait(left)
                return True
            finally:
                self._waiting -= 1

    def _watch(self) -> None:
        if self._watcher is None or not self._watcher.is_alive():
            seen = self._data_version()
            self._watcher = threading.Thread(target=self._look, args=(seen,), name="holtmq-bell", daemon=True)
            self._watcher.start()

    def _look(self, seen: int) -> None:
        idle = 0
        while idle < 100:
            time.sleep(LOOK_EVERY_S)
            with self._condition:
                idle = 0 if self._waiting else idle + 1
            try:
                now = self._data_version()
            except Exception:  # noqa: BLE001  # the file was closed meanwhile: waiters must re-check
                self.ring()
                return
            if now != seen:
                seen = now
                self.ring()
