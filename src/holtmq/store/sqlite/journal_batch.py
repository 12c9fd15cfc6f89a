"""A batch of the broker's journal: the changes of one transaction, collected in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from holtmq.store.journal_port import StorableMessage

Alone: TypeAlias = tuple[StorableMessage, int, int, int | None]
"""A message for one queue, with the queue's id, priority and expiry."""
Shared: TypeAlias = tuple[StorableMessage, dict[int, tuple[int, int | None]]]
"""A message with a row for each of its queues, with priority and expiry there."""

STEP_BYTES = 1024 * 1024
"""Bytes of message bodies that are written in one step."""


@dataclass(slots=True)
class Removals:
    """Messages that left their queues for good."""

    alone: list[int] = field(default_factory=list)
    """Ids of messages that were stored for one queue."""
    shared: list[tuple[int, int]] = field(default_factory=list)
    """Message and queue."""

    def __bool__(self) -> bool:
        return bool(self.alone or self.shared)

    def take_from(self, other: Removals, place: tuple[int, int] = (0, 0)) -> None:
        """Take over the removals that another list has from a place on."""
        self.alone += other.alone[place[0] :]
        self.shared += other.shared[place[1] :]
        del other.alone[place[0] :], other.shared[place[1] :]

    @property
    def end(self) -> tuple[int, int]:
        return len(self.alone), len(self.shared)


@dataclass(slots=True)
class Batch:
    """The changes of one transaction."""

    number: int
    changes: list[Callable[[], object]] = field(default_factory=list)
    """Changes of topology and accounts, in order. They are written before the messages."""
    purges: list[tuple[int, Collection[int]]] = field(default_factory=list)
    """Queues to empty, each with the ids of the messages to keep."""
    forgotten: list[int] = field(default_factory=list)
    """Deleted queues."""
    alone: dict[int, Alone] = field(default_factory=dict)
    """By message id."""
    shared: dict[int, Shared] = field(default_factory=dict)
    """By message id."""
    removed: Removals = field(default_factory=Removals)
    """Removals that depend on nothing else in the batch. They can be written before it."""
    tied: Removals = field(default_factory=Removals)
    """Removals that must not be written before the rest, because a message goes elsewhere at the same time."""
    returned: dict[tuple[int, int], tuple[int, bool]] = field(default_factory=dict)
    """By message and queue: how often a requeued message has returned, and whether it is stored for one queue only."""
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)
    """By queue and priority: the id up to which messages may have been delivered."""
    size: int = 0
    """Bytes of the message bodies."""

    def __bool__(self) -> bool:
        is_empty = not (self.alone or self.shared or self.removed or self.returned or self.delivered or self.changes)
        return not is_empty or bool(self.tied or self.purges or self.forgotten)

    def __str__(self) -> str:
        removals = [removal for part in (self.removed, self.tied) for removal in (*part.alone, *part.shared)]
        others = len(self.changes) + len(self.purges)
        return (
            f"{len(self.alone) + len(self.shared)} messages, {len(removals)} acknowledgements and {others} other changes, "
            "none of which was confirmed"
        )

    def rows_at_once(self, most: int) -> int:
        """Return the number of messages to write in one step: few, if they are large."""
        number = len(self.alone) + len(self.shared)
        return max(1, min(most, STEP_BYTES * number // max(1, self.size)))

    @property
    def has_relief(self) -> bool:
        """Whether the batch has something to write that makes room, or lets consumers make room."""
        return bool(self.removed or self.delivered or self.relief_purges or self.relief_forgotten)

    @property
    def relief_purges(self) -> list[tuple[int, Collection[int]]]:
        """Purges that can be written before the rest: none if they might remove a message that is still to be moved."""
        return self.purges if not self.tied else []

    @property
    def relief_forgotten(self) -> list[int]:
        return self.forgotten if not self.tied else []

    def remove_alone(self, message_id: int, removals: Removals) -> None:
        """Drop a message that is not written yet, or add it to the removals."""
        waiting = self.alone.pop(message_id, None)
        if waiting is None:
            removals.alone.append(message_id)
        else:
            self.size -= waiting[0].size

    def remove_shared(self, message_id: int, queue_id: int, removals: Removals) -> None:
        """Drop a message that is not written yet from a queue, or add it to the removals."""
        waiting = self.shared.get(message_id)
        if waiting is None or waiting[1].pop(queue_id, None) is None:
            removals.shared.append((message_id, queue_id))
        elif not waiting[1]:
            del self.shared[message_id]
            self.size -= waiting[0].size

    def purge(self, queue_id: int, but: Collection[int]) -> None:
        """Drop the messages of a queue that are not written yet, and purge the queue in the file.

        The queue itself removes the messages that it has in memory, which are all that are stored alone.
        """
        for message_id, (message, deliveries) in list(self.shared.items()):
            if message_id not in but and deliveries.pop(queue_id, None) is not None and not deliveries:
                del self.shared[message_id]
                self.size -= message.size
        self.purges.append((queue_id, but))

    def mark(self, queue_id: int, priority: int, up_to: int) -> None:
        """Note that messages up to this id may have been delivered."""
        if up_to > self.delivered.get((queue_id, priority), 0):
            self.delivered[queue_id, priority] = up_to

    def absorb(self, later: Batch) -> None:
        """Add the changes of the next batch, after this one could not be written. What cancels out is never written."""
        self.number = later.number
        self.changes += later.changes
        for queue_id, but in later.purges:
            self.purge(queue_id, but)
        self.forgotten += later.forgotten
        for target, removals in ((self.removed, later.removed), (self.tied, later.tied)):
            for message_id in removals.alone:
                self.remove_alone(message_id, target)
            for message_id, queue_id in removals.shared:
                self.remove_shared(message_id, queue_id, target)
        self.alone |= later.alone
        self.size += later.size
        for message_id, (message, queues) in later.shared.items():
            if message_id in self.shared:
                self.size -= message.size
            self.shared.setdefault(message_id, (message, {}))[1].update(queues)
        self.returned |= later.returned
        for (queue_id, priority), up_to in later.delivered.items():
            self.mark(queue_id, priority, up_to)
