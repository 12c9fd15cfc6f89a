"""The options of `format("amqp")` for stream queues. Their presence makes the source read queues as streams.

Nothing else could: AMQP does not say of which type a queue is, and `load()` connects to no broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from holtmq.errors import InvalidValueError
from holtmq.spark.amqp.amqp_options import QueueOptions
from holtmq.spark.amqp.offset_position import Positions

STARTING, ENDING = "startingOffsets", "endingOffsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetOptions(QueueOptions):
    """How stream queues are read, in a batch or as a stream."""

    starting_offsets: str = field(metadata={"kind": str, "is_required": True})
    min_partitions: int = field(default=1, metadata={"kind": int, "least": 1, "most": None})
    fail_on_data_loss: bool = field(default=True, metadata={"kind": bool})

    def __post_init__(self) -> None:
        QueueOptions.__post_init__(self)
        self.starts()

    def starts(self) -> Positions:
        """Return where to start in each stream."""
        return _positions(STARTING, self.starting_offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions(OffsetOptions):
    """How a batch job reads stream queues."""

    ending_offsets: str = field(default="latest", metadata={"kind": str})

    def __post_init__(self) -> None:
        OffsetOptions.__post_init__(self)
        self.ends()

    def ends(self) -> Positions:
        """Return where to end in each stream. The message at that offset is not read."""
        return _positions(ENDING, self.ending_offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions(OffsetOptions):
    """How a stream of Spark reads stream queues."""

    max_offsets_per_trigger: int | None = field(default=None, metadata={"kind": int, "least": 1, "most": None})


def _positions(option: str, text: str) -> Positions:
    try:
        return Positions.parse(text, default="earliest" if option == STARTING else "latest")
    except InvalidValueError as error:
        raise InvalidValueError(f"option {option!r}: {error}") from error


OFFSET_NAMES = frozenset(
    each.name.replace("_", "")
    for group in (RangeOptions, FollowOptions)
    for each in fields(group)
    if each.name not in {of_queue.name for of_queue in fields(QueueOptions)}
)
"""Names of options that only stream queues have, in lower case."""


def reads_streams(given: Mapping[str, str]) -> bool:
    """Return whether options are those of stream queues. They must then include `startingOffsets`."""
    return any(name.lower() in OFFSET_NAMES for name in given)
