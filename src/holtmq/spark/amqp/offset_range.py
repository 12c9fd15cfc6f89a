"""Ranges of offsets: the work of the tasks that read stream queues. Made on the driver, read on the executors."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

MOST_OFFSETS = 100_000
"""Size of the largest range. A task reads it in about a second."""


class OffsetRange(InputPartition):
    """The offsets of one stream from `start` up to, but not including, `end`."""

    def __init__(self, queue: str, start: int, end: int, planned_at: datetime) -> None:
        super().__init__((queue, start, end))
        self.queue = queue
        self.start = start
        self.end = end
        self.planned_at = planned_at

    def __len__(self) -> int:
        return self.end - self.start

    def split(self, most: int) -> list[OffsetRange]:
        """Return ranges of nearly the same size, of at most `most` offsets."""
        count = -(-len(self) // most)
        cuts = [self.start + len(self) * number // count for number in range(count + 1)]
        return [OffsetRange(self.queue, start, end, self.planned_at) for start, end in pairwise(cuts)]


def split_ranges(ranges: Iterable[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Return at least `min_partitions` ranges, if there are that many offsets. None of them is empty."""
    found = [each for each in ranges if each.end > each.start]
    total = sum(map(len, found))
    most = max(1, min(MOST_OFFSETS, total // min_partitions))
    return [part for each in found for part in each.split(most)]
