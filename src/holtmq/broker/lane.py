"""The ready messages of one priority of a queue."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from holtmq.broker.queued_message import QueuedMessage


class Lane:
    """First those that came back from consumers, then those in memory, then those that are only in the file.

    A message leaves at the front, so whatever comes back is older than all that is still here; that makes the three parts
    one order. Once something is paged, all that comes after it is, until the file's part is used up.
    """

    __slots__ = ("cursor", "paged", "priority", "ready", "returned")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.returned: list[tuple[int, QueuedMessage]] = []
        self.ready: deque[QueuedMessage] = deque()
        self.paged = 0
        """How many are only in the file."""
        self.cursor = 0
        """Those in the file have ids above this."""

    def __len__(self) -> int:
        return len(self.returned) + len(self.ready) + self.paged

    def page(self, message: QueuedMessage) -> None:
        """Count on the file for a message, and for all that come after it."""
        if not self.paged:
            self.cursor = message.id - 1
        self.paged += 1

    def take_back(self, message: QueuedMessage) -> None:
        heapq.heappush(self.returned, (message.id, message))

    def first(self) -> QueuedMessage | None:
        """The next to go, of those in memory."""
        if self.returned:
            return self.returned[0][1]
        return self.ready[0] if self.ready else None

    def pop(self) -> QueuedMessage:
        return heapq.heappop(self.returned)[1] if self.returned else self.ready.popleft()

    def pop_many(self, limit: int) -> list[QueuedMessage]:
        """Up to so many at once, of those in memory that did not come back."""
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
