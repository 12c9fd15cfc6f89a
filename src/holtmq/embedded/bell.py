"""Wakes waiting consumers: immediately within a process, and within a few milliseconds across processes.

Writers in this process ring the bell, which also tells other processes if those do not notice by themselves. For writers in
other processes a thread, which runs only while someone waits, waits for changes of the store.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable

IDLE_S = 1.0
"""Time after which the thread ends if nobody waits any more."""


class Bell:
    """A wake-up call for the threads of this process that wait for messages."""

    def __init__(
        self, await_change: Callable[[], bool], stop_awaiting: Callable[[], None], announce: Callable[[], None]
    ) -> None:
        self._await_change = await_change
        self._stop_awaiting = stop_awaiting
        self._announce = announce
        self._condition = threading.Condition()
        self._rings = 0
        self._waiting = 0
        self._watcher: threading.Thread | None = None
        _bells.add(self)

    def listen(self) -> int:
        """Return a mark for `wait`. No ring after it is missed."""
        return self._rings

    def ring(self) -> None:
        """Wake all waiting threads, here and in other processes."""
        self._announce()
        self._ring_here()

    def _ring_here(self) -> None:
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
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._look, name="holtmq-bell", daemon=True)
            self._watcher.start()

    def _look(self) -> None:
        last_waiter = time.monotonic()
        try:
            while True:
                has_changed = self._await_change()
                with self._condition:
                    if self._waiting:
                        last_waiter = time.monotonic()
                    elif time.monotonic() > last_waiter + IDLE_S:
                        self._rest()
                        return
                if has_changed:
                    self._ring_here()
        except Exception:  # noqa: BLE001  # the store was closed meanwhile: waiters must re-check
            with self._condition:
                self._rest()
            self._ring_here()

    def _rest(self) -> None:
        """End the thread. The next waiter starts another one."""
        self._stop_awaiting()
        self._watcher = None

    def renew_after_fork(self) -> None:
        """Forget the threads of the parent, one of which may have held the lock."""
        self._condition = threading.Condition()
        self._waiting, self._watcher = 0, None


_bells: weakref.WeakSet[Bell] = weakref.WeakSet()


def _renew_all() -> None:
    for bell in list(_bells):
        bell.renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
