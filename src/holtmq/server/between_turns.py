"""Chores between turns: what takes long is done for a few milliseconds in each iteration of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from holtmq.broker.chores import Chores
from holtmq.broker.containment import InternalErrors

SLICE_S = 0.005
"""Time for new chores, and for those that wait, in one iteration of the event loop. Measured in benchmarks/stalls.py."""


class ChoresBetweenTurns(Chores):
    """Chores that take turns. A new one goes first: most are done at once."""

    def __init__(self, errors: InternalErrors, begin_turn: Callable[[], None]) -> None:
        super().__init__(errors)
        self._begin_turn = begin_turn
        self._loop = asyncio.get_running_loop()
        self._deadline: float | None = None
        """When the time is up for the chores of this iteration, if there were any."""
        self._is_scheduled = False

    def count_time(self) -> None:
        if self._deadline is None:
            self._deadline = perf_counter() + SLICE_S
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._go_on)

    def _has_time(self) -> bool:
        if self._deadline is not None:
            return perf_counter() < self._deadline
        self.count_time()
        return True

    def _go_on(self) -> None:
        """Begin the next iteration with the chores that wait. Those that come in it have time of their own."""
        self._is_scheduled, self._deadline = False, None
        if not self._waiting:
            return
        self._begin_turn()
        while self._waiting and self._has_time():
            chore = self._waiting.popleft()
            if not self._do(chore):
                self._waiting.append(chore)
        self._deadline = None
