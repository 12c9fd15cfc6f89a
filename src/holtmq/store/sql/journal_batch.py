"""A batch of the broker's journal: the changes of one transaction, collected in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from holtmq.store.chunk import Chunk
from holtmq.store.journal_port import StorableMessage
from holtmq.store.log_port import Alone, Gone, Place
from holtmq.store.stream_port import StreamChange

Shared: TypeAlias = tuple[StorableMessage, dict[int, Place]]
"""A message for several queues, with priority and expiry in each. Queues that it has left are taken out."""
Purge: TypeAlias = tuple[int, Collection[StorableMessage]]
"""A queue to empty, and the messages to keep."""


@dataclass(slots=True)
class Batch:
    """The changes of one transaction."""

    number: int
    changes: list[Callable[[], object]] = field(default_factory=list)
    """Changes of topology and accounts, in order. They are written before the messages."""
    purges: list[Purge] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    """Deleted queues."""
    alone: dict[int, Alone] = field(default_factory=dict)
    """By message id."""
    shared: dict[int, Shared] = field(default_factory=dict)
    """By message id."""
    late: dict[int, Alone] = field(default_factory=dict)
    """By message id: messages for one queue that are older than others of it in the file."""
    streams: dict[int, StreamChange] = field(default_factory=dict)
    """By queue."""
    removed: list[Gone] = field(default_factory=list)
    """Removals that depend on nothing else in the batch. They can be written before it."""
    tied: list[Gone] = field(default_factory=list)
    """Removals that must not be written before the rest, because a message goes elsewhere at the same time."""
    unplaced: list[tuple[StorableMessage, int]] = field(default_factory=list)
    """Removals, by message and queue, of messages that are being written, so that their chunks are not known yet."""
    returned: dict[tuple[int, int], tuple[StorableMessage, int]] = field(default_factory=dict)
    """By message and queue: a requeued message, and how often it has returned."""
    delivered: dict[tuple[int, int], int] = field(default_factory=dict)
    """By queue and priority: the id up to which messages may have been delivered."""
    size: int = 0
    """Bytes of the message bodies, without those for streams."""

    def __bool__(self) -> bool:
        has_messages = self.alone or self.shared or self.late or self.removed or self.tied or self.unplaced
        return bool(
            has_messages or self.streams or self.returned or self.delivered or self.changes or self.purges or self.forgotten
        )

    @property
    def has_only_messages(self) -> bool:
        """Whether nothing would be left if all its messages were acknowledged."""
        removals = self.removed or self.tied or self.unplaced
        return not (
            removals or self.streams or self.returned or self.delivered or self.changes or self.purges or self.forgotten
        )

    def __str__(self) -> str:
        removals = len(self.removed) + len(self.tied) + len(self.unplaced)
        others = len(self.changes) + len(self.purges)
        appended = sum(len(change.entries) for change in self.streams.values())
        return (
            f"{len(self.alone) + len(self.shared) + len(self.late) + appended} messages, {removals} acknowledgements and "
            f"{others} other changes, none of which was confirmed"
        )

    @property
    def total_size(self) -> int:
        """Bytes of all message bodies."""
        return self.size + sum([change.size for change in self.streams.values()]) if self.streams else self.size

    @property
    def overhead(self) -> int:
        """What messages for streams take beyond their bodies. For other messages, their queues count it."""
        return sum([change.overhead for change in self.streams.values()]) if self.streams else 0

    @property
    def has_relief(self) -> bool:
        """Whether the batch has something to write that makes room, or lets consumers make room."""
        return bool(self.removed or self.delivered or self.relief_purges or self.relief_forgotten)

    @property
    def relief_purges(self) -> list[Purge]:
        """Purges that can be written before the rest: none if they might remove a message that is still to be moved."""
        return self.purges if not self.tied else []

    @property
    def relief_forgotten(self) -> list[int]:
        return self.forgotten if not self.tied else []

    def withdraw(self, message_id: int, queue_id: int) -> bool:
        """Drop a message that is not written yet from a queue. Return False if the batch does not have the message."""
        entry = self.alone.pop(message_id, None) or self.late.pop(message_id, None)
        if entry is not None:
            self.size -= entry[0].size
            return True
        waiting = self.shared.get(message_id)
        if waiting is None:
            return False
        waiting[1].pop(queue_id, None)
        if not waiting[1]:
            del self.shared[message_id]
            self.size -= waiting[0].size
        return True

    def place(self) -> None:
        """Find the chunks of removed messages that have been written meanwhile."""
        unplaced, self.unplaced = self.unplaced, []
        for message, queue_id in unplaced:
            if isinstance(message.stored, Chunk) and queue_id in message.stored.slices:
                self.tied.append((message.stored, queue_id, message.id))

    def purge(self, queue_id: int, but: Collection[StorableMessage]) -> None:
        """Drop the messages of a queue that are not written yet, and purge the queue in the file."""
        kept = {message.id for message in but}
        waiting = [
            *(message_id for message_id, entry in self.alone.items() if entry[1] == queue_id),
            *(message_id for message_id, entry in self.late.items() if entry[1] == queue_id),
            *(message_id for message_id, (_, places) in self.shared.items() if queue_id in places),
        ]
        for message_id in waiting:
            if message_id not in kept:
                self.withdraw(message_id, queue_id)
        self.purges.append((queue_id, but))

    def forget(self, queue_id: int) -> None:
        """Remove all that is stored of a deleted queue."""
        self.forgotten.append(queue_id)
        if (change := self.streams.pop(queue_id, None)) is not None:
            change.is_open = False

    def close(self) -> None:
        """Note that nothing more is added."""
        for change in self.streams.values():
            change.is_open = False

    def append(self, queue_id: int, later: StreamChange) -> None:
        """Add the next batch's change of a stream."""
        change = self.streams.setdefault(queue_id, later)
        if change is not later:
            change.entries += later.entries
            change.size += later.size
            change.heavy += later.heavy
            change.chunk_bytes, change.max_bytes, change.since_ms = later.chunk_bytes, later.max_bytes, later.since_ms

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
        for queue_id in later.forgotten:
            self.forget(queue_id)
        for queue_id, change in later.streams.items():
            self.append(queue_id, change)
        for target, removals in ((self.removed, later.removed), (self.tied, later.tied)):
            target += [gone for gone in removals if not self.withdraw(gone[2], gone[1])]
        for message, queue_id in later.unplaced:
            self.withdraw(message.id, queue_id)
        self.alone |= later.alone
        self.late |= later.late
        self.size += later.size
        for message_id, (message, queues) in later.shared.items():
            if message_id in self.shared:
                self.size -= message.size
            self.shared.setdefault(message_id, (message, {}))[1].update(queues)
        self.returned |= later.returned
        for (queue_id, priority), up_to in later.delivered.items():
            self.mark(queue_id, priority, up_to)
