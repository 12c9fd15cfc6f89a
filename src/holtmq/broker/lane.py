"""The ready messages of one priority of a queue.

A lane also knows how far its messages may have been delivered according to the file. After a crash, `redelivered` is set on
the messages up to that mark, so a message that is in the file must not be sent before the mark on disk includes it. A
newer message can be sent at once: it gets into the file in the same batch as its mark, or not at all. To save consumers
the wait for the disk, the mark is set ahead of them. How far depends on how fast they are, because after a crash the
messages between the last delivery and the mark are taken for delivered too.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque

from holtmq.broker.queued_message import QueuedMessage

AHEAD = 16
"""The mark is set ahead of the last delivery by this many times the messages delivered in the last batch."""
LEAST_AHEAD = 256
MOST_AHEAD = 10_000


class Lane:
    """Requeued messages first, then those in memory, then those that are only in the file (paged).

    Messages leave at the head, so a requeued message is older than all others, and the three parts form one order. Once a
    message is paged, all later ones are too, until the paged part is used up.
    """

    __slots__ = (
        "cursor",
        "delivered",
        "is_marking",
        "is_reading",
        "is_recalling",
        "marked",
        "paged",
        "paged_batch",
        "priority",
        "ready",
        "recovered_mark",
        "reserved",
        "returned",
        "sealed_mark",
        "taken",
        "used",
        "wanted",
        "wanted_batch",
    )

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.returned: list[tuple[int, QueuedMessage]] = []
        self.ready: deque[QueuedMessage] = deque()
        self.paged = 0
        """Number of messages that are only in the file."""
        self.paged_batch = 0
        """The batch of the journal that has messages which were in memory before. Until it is on disk, newer ones may be
        there that must not overtake them."""
        self.cursor = 0
        """Paged messages have ids above this one."""
        self.recovered_mark = 0
        """Recovered messages up to this id may have been delivered before the broker stopped."""
        self.marked = 0
        """Messages up to this id may have been delivered, according to the file."""
        self.sealed_mark = 0
        """The same, including the batch that is being written."""
        self.wanted = 0
        """The mark that the journal was last asked to store."""
        self.wanted_batch = 0
        """The batch of the journal that has it."""
        self.delivered = 0
        """The newest message that was taken for delivery."""
        self.taken = 0
        """Messages taken for delivery in the batch that is being collected."""
        self.used = 0
        """Messages taken for delivery since a mark was last wanted."""
        self.reserved = 0
        """Messages by which the mark was ahead of the consumers when it was wanted."""
        self.is_reading = False
        """Whether the next paged messages are being read."""
        self.is_recalling = False
        """Whether contents of requeued messages are being read."""
        self.is_marking = False
        """Whether a mark is to be set when the current batch ends."""

    def __len__(self) -> int:
        return len(self.returned) + len(self.ready) + self.paged

    def page(self, message: QueuedMessage) -> None:
        """Leave a message, and all that follow it, to the file."""
        if not self.paged:
            self.cursor = message.id - 1
        self.paged += 1

    def take_back(self, message: QueuedMessage) -> None:
        heapq.heappush(self.returned, (message.id, message))

    def released(self, limit: int, most_bytes: int) -> list[QueuedMessage]:
        """Return those of the next requeued messages whose content was released, up to the limits or a little more."""
        next_ones = [heapq.heappop(self.returned) for _ in range(min(limit, len(self.returned)))]
        for one in next_ones:
            heapq.heappush(self.returned, one)
        found: list[QueuedMessage] = []
        for _, message in next_ones:
            if most_bytes <= 0:
                break
            if not message.content:
                found.append(message)
                most_bytes -= message.size
        return found

    def has_returned(self, message: QueuedMessage) -> bool:
        return (message.id, message) in self.returned

    def withdraw(self, message: QueuedMessage) -> bool:
        """Remove a requeued message from its place. Return False if it is not there."""
        if not self.has_returned(message):
            return False
        self.returned.remove((message.id, message))
        heapq.heapify(self.returned)
        return True

    def first(self) -> QueuedMessage | None:
        """Return the next message to leave, if it is in memory."""
        if self.returned:
            return self.returned[0][1]
        return self.ready[0] if self.ready else None

    def pop(self) -> QueuedMessage:
        return heapq.heappop(self.returned)[1] if self.returned else self.ready.popleft()

    def pop_many(self, limit: int) -> list[QueuedMessage]:
        """Remove and return up to `limit` messages in memory that were not requeued."""
        ready = self.ready
        if limit >= len(ready):
            messages = list(ready)
            ready.clear()
            return messages
        popleft = ready.popleft
        return [popleft() for _ in range(limit)]

    def free_to_leave(self, limit: int, on_disk: int, sealed: int) -> int:
        """Return how many of the next messages in memory, of which there is one at least, can be delivered now.

        `on_disk` and `sealed` are the newest message on disk, and the newest one in the batch that is being written.
        """
        first = self.first()
        assert first is not None
        if first.id > sealed:
            return limit
        if self.returned:
            return 1 if self.is_free(first.id, on_disk, sealed) else 0
        ready, mark = self.ready, self.marked if first.id <= on_disk else self.sealed_mark
        number = min(limit, len(ready))
        return number if ready[number - 1].id <= mark else bisect_right(ready, mark, 0, number, key=_id)

    def is_free(self, message_id: int, on_disk: int, sealed: int) -> bool:
        """Return whether a message gets on disk together with a mark that includes it, or is there with one."""
        if message_id <= on_disk:
            return message_id <= self.marked
        return message_id <= self.sealed_mark or message_id > sealed

    def place_ahead(self) -> tuple[int, int] | None:
        """Return where to set the mark: an id in memory, and how many paged messages after it. None if it is fine."""
        taken, self.taken = self.taken, 0
        self.used += taken
        if self.delivered <= self.wanted and 2 * self.used < self.reserved:
            return None
        ahead = self.reserved = max(LEAST_AHEAD, min(MOST_AHEAD, AHEAD * taken))
        self.used = 0
        newest = self.delivered
        if self.returned and self.returned[0][0] > self.marked:
            newest = max(newest, heapq.nsmallest(ahead, self.returned)[-1][0])
        if self.ready:
            newest = max(newest, self.ready[min(ahead, len(self.ready)) - 1].id)
        return newest, max(0, ahead - len(self.ready)) if self.paged else 0

    def clear(self) -> deque[QueuedMessage]:
        """Remove all messages. Return those that were in memory, because to free many of them takes a while."""
        removed, self.ready = self.ready, deque()
        removed.extend(message for _, message in self.returned)
        self.returned.clear()
        self.paged = 0
        return removed


def _id(message: QueuedMessage) -> int:
    return message.id
