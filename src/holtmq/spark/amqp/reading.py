"""The options of `format("amqp")` for a kind of queue: those of a batch and those of a stream.

Spark calls the source in `load()` without saying which of the two it will be: `schema` is all that it calls then. So `load()`
refuses what is wrong for both, and the first use refuses the options of the other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.amqp_options import BrokerOptions, Options, QueueOptions, ReadOptions, StreamOptions, require_known
from holtmq.spark.amqp.offset_options import FollowOptions, RangeOptions
from holtmq.spark.job_announcement import require_announce

MODE_REMOVED = (
    "option 'mode' was removed: a batch always browses, because one that removed messages would lose them if it is read twice "
    "or not to its end. Use holtmq.spark.drain(spark, queue, write, url=…), which acknowledges messages after they are "
    "written, or archive"
)
BATCHES, STREAMS = "batches (spark.read)", "streams (spark.readStream)"
Batch = TypeVar("Batch", bound=QueueOptions)
Stream = TypeVar("Stream", bound=QueueOptions)


@dataclass(frozen=True, slots=True)
class Reading(Generic[Batch, Stream]):
    """The two ways to read a kind of queue."""

    batch: type[Batch]
    stream: type[Stream]

    def require_loadable(self, given: Mapping[str, str]) -> None:
        """Raise InvalidValueError if neither a batch nor a stream can have these options."""
        self._require_known(given)
        self.batch.parse(given)
        self.stream.parse(given)
        of_batch, of_stream = _own(given, self.batch, self.stream), _own(given, self.stream, self.batch)
        if of_batch and of_stream:
            raise InvalidValueError(
                f"option {of_batch[0]!r} is for {BATCHES}, and option {of_stream[0]!r} for {STREAMS}: remove one of them"
            )

    def parse_batch(self, given: Mapping[str, str]) -> Batch:
        """Read the options of a batch. Raise InvalidValueError if one is wrong, or for a stream."""
        self._require_known(given)
        for name in _own(given, self.stream, self.batch):
            raise InvalidValueError(f"option {name!r} is for {STREAMS}, got it for a batch: remove it")
        return self.batch.parse(given)

    def parse_stream(self, given: Mapping[str, str]) -> Stream:
        """Read the options of a stream. Raise InvalidValueError if one is wrong, or for a batch."""
        self._require_known(given)
        for name in _own(given, self.batch, self.stream):
            raise InvalidValueError(f"option {name!r} is for {BATCHES}, got it for a stream: remove it")
        return self.stream.parse(given)

    def _require_known(self, given: Mapping[str, str]) -> None:
        if "mode" in map(str.lower, given):
            raise InvalidValueError(MODE_REMOVED)
        require_known(given, BrokerOptions, self.batch, self.stream)
        require_announce(BrokerOptions.parse(given))


def _own(given: Mapping[str, str], group: type[Options], other: type[Options]) -> list[str]:
    """Return the names of given options that belong to a group and not to the other one."""
    texts = {name.lower() for name in given}
    return sorted(name for name in group.names() - other.names() if name.lower() in texts)


QUEUES = Reading(ReadOptions, StreamOptions)
STREAM_QUEUES = Reading(RangeOptions, FollowOptions)
