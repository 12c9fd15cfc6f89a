"""The ready messages of one priority of a queue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from holtmq.broker.queued_message import QueuedMessage


class Lane:
    """Requeued messages first, then those in memory, then those that are only in the file (paged).

    Messages leave at the head, so a requeued message is older than all others, and the three parts form one order. Once a
    message is paged, all later ones are too, until the paged part is used up.
    """

    __slots__ = ("cursor", "paged", "priority", "ready", "returned")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.returned: list[tuple[int, QueuedMessage]] = []
        self.ready: deque[QueuedMessage] = deque()
        self.paged = 0
        """Number of messages that are only in the file."""
        self.cursor = 0
        """Paged messages have ids above this one."""

    def __len__(self) -> int:
        return len(self.returned) + len(self.ready) + self.paged

    def page(self, message: QueuedMessage) -> None:
        """Leave a message, and all that follow it, to the file."""
        if not self.paged:
            self.cursor = message.id - 1
        self.paged += 1

    def take_back(self, message: QueuedMessage) -> None:
        heapq.heappush(self.returned, (message.id, message))

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

    def in_memory(self) -> Iterator[QueuedMessage]:
        yield from (message for _, message in self.returned)
        yield from self.ready

    def clear(self) -> None:
        self.returned.clear()
        self.ready.clear()
        self.paged = 0
