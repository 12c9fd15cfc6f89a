"""Messages of a lane that came together, with the same properties and origin: all but the first take less memory.

They are told from others when their memory is counted, which is once a turn, and not when they enter and leave, which is on
the hot path (benchmarks/broker.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from holtmq.broker.queued_message import QueuedMessage


class AlikeMessages:
    """Runs of messages with consecutive ids, in the order of the lane, which they leave at its ends."""

    __slots__ = ("_number", "_runs")

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque()
        """The first and the last id of each."""
        self._number = 0
        """Messages in all runs, without the first of each."""

    def add(self, first_id: int, last_id: int) -> None:
        self._runs.append((first_id, last_id))
        self._number += last_id - first_id

    def among(self, ready: Sequence[QueuedMessage]) -> int:
        """Return how many of the messages of the lane are like the one before, and forget those that have left it."""
        runs = self._runs
        if not runs:
            return 0
        oldest, newest = (ready[0].id, ready[-1].id) if ready else (runs[-1][1] + 1, 0)
        while runs and runs[0][1] < oldest:
            first, last = runs.popleft()
            self._number -= last - first
        while runs and runs[-1][1] > newest:
            first, last = runs.pop()
            self._number -= last - first
            if first <= newest:
                self.add(first, newest)
        return self._number - max(0, oldest - runs[0][0]) if runs else 0
