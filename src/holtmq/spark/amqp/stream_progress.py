"""The offset that Spark stores in a checkpoint for stream queues: where a micro-batch ends in each of them.

Spark stores the end of a micro-batch. Where the first one starts is asked again after a crash, when "latest" would be another
offset. Each end therefore contains the starts as well: a start that differs was asked again, and the one in the end counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.offset_range import OffsetRange
from holtmq.spark.amqp.stream_mark import StreamMark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The next offset of each stream. A stream that has never had a message is missing."""

    offsets: Mapping[str, int] = field(default_factory=dict)
    starts: Mapping[str, int] = field(default_factory=dict)
    """The offsets at which the query began."""
    messages: int = 0
    """How many offsets all micro-batches had so far."""
    planned_us: int = 0
    """When the micro-batch was planned. It is the time of receipt of its rows, which must be the same if it runs again."""
    restarts: Mapping[str, int] = field(default_factory=dict)
    """How often a stream was deleted and declared again. The new one may start at the same offset."""
    marks: Mapping[str, StreamMark] = field(default_factory=dict)
    """The last message of each stream when the micro-batch was planned."""

    @classmethod
    def parse(cls, stored: Mapping[str, Any]) -> StreamProgress:
        """Read an offset of Spark."""
        if "offsets" not in stored:
            raise InvalidValueError(
                f"the checkpoint contains no offsets of stream queues, but {', '.join(stored)}: it belongs to a query on other "
                "queues. Use another checkpoint"
            )
        marks = {queue: StreamMark(*mark) for queue, mark in stored.get("marks", {}).items()}
        return cls(**{**stored, "marks": marks})

    def to_dict(self) -> dict[str, Any]:
        """Return the offset as Spark stores it. Equal offsets are equal as JSON text."""
        return {
            "offsets": dict(sorted(self.offsets.items())),
            "starts": dict(sorted(self.starts.items())),
            "messages": self.messages,
            "planned_us": self.planned_us,
            "restarts": dict(sorted(self.restarts.items())),
            "marks": {queue: [mark.offset, mark.digest] for queue, mark in sorted(self.marks.items())},
        }

    def starting(self, queue: str, offset: int) -> StreamProgress:
        """Return the progress with a stream that starts, or starts again, at this offset."""
        restarts = {**self.restarts, queue: self.restarts.get(queue, 0) + 1} if queue in self.offsets else self.restarts
        return replace(self, offsets={**self.offsets, queue: offset}, starts={**self.starts, queue: offset}, restarts=restarts)

    def marked(self, marks: Mapping[str, StreamMark]) -> StreamProgress:
        """Return the progress with the last message of each of these streams."""
        return replace(self, marks={**self.marks, **marks})

    def lags(self, ends: Mapping[str, int]) -> dict[str, int]:
        """Return how many offsets are left in each stream."""
        return {queue: max(0, end - self.offsets[queue]) for queue, end in ends.items() if queue in self.offsets}

    def advance(self, ends: Mapping[str, int], most: int | None, now: datetime) -> StreamProgress:
        """Return the end of a micro-batch of at most `most` offsets, shared by the streams according to their lags."""
        lags = self.lags(ends)
        taken = lags if most is None else _shares(lags, most)
        if not any(taken.values()):
            return self
        return replace(
            self,
            offsets={queue: offset + taken.get(queue, 0) for queue, offset in self.offsets.items()},
            messages=self.messages + sum(taken.values()),
            planned_us=(now - EPOCH) // timedelta(microseconds=1),
        )

    def ranges_since(self, start: StreamProgress) -> Iterable[OffsetRange]:
        """Yield the range of each stream in the micro-batch that ends here."""
        planned_at = EPOCH + timedelta(microseconds=self.planned_us)
        for queue, end in sorted(self.offsets.items()):
            first = start.offsets[queue] if self._continues(start, queue) else self.starts[queue]
            yield OffsetRange(queue, first, end, planned_at)

    def _continues(self, start: StreamProgress, queue: str) -> bool:
        """Return whether the micro-batch goes on in a stream where an earlier one ended."""
        if queue not in start.offsets:
            return False
        return (start.starts[queue], start.restarts.get(queue)) == (self.starts[queue], self.restarts.get(queue))


def _shares(lags: Mapping[str, int], most: int) -> dict[str, int]:
    """Divide `most` offsets in proportion to the lags. The largest lags get what is left over."""
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    shares = {queue: most * lag // total for queue, lag in lags.items()}
    left = most - sum(shares.values())
    for queue in sorted(lags, key=lambda name: (-lags[name], name))[:left]:
        shares[queue] += 1
    return shares
