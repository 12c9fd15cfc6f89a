"""The memory budget: everything that clients can make the broker hold, counted in one place against one limit.

Queues, topology and connections report what they hold at the end of each turn. Four levels follow from the total:

- Below three quarters of the limit, queues keep messages in memory. Of persistent ones, which are in the file anyway, each
  keeps only the first: a window.
- Above, the broker is *short* of memory: all queues share one small window and leave further messages to the file, the
  largest ones page messages out, and consumers with many unacknowledged messages must acknowledge some to get more.
- Above the limit, there is a memory *alarm*: publishers are blocked.
- Far above the limit, memory is *exhausted*: nothing is read from the file, new connections and channels are refused, and the
  connection that holds the most is closed.

The sizes of objects below are measured, and rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holtmq.errors import ResourceError
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Queue

DEFAULT_LIMIT = 512 * 1024 * 1024
EXCESS_BYTES = 48 * 1024 * 1024
"""Memory is exhausted when the total exceeds the limit by this much."""
SHORT = 0.75
CALM = 0.9
"""Shares of the limit: queues save memory above SHORT; an alarm ends below CALM."""
WINDOW_BYTES = 128 * 1024 * 1024
WINDOW_MESSAGES = 20_000
"""Ready messages up to which each queue keeps persistent ones in memory."""
SHORT_WINDOW = 0.1
"""Share of the limit for the windows of all queues together while the broker is short of memory. With it, queues alone never
cause an alarm."""
SHORT_UNACKNOWLEDGED = 1000
"""While the broker is short of memory, a channel with this many unacknowledged messages gets no more."""
MESSAGE_BYTES = 640
ALIKE_BYTES = 256
UNACKNOWLEDGED_BYTES = 400
"""What a message takes in a queue beyond its body; what it takes if it shares properties and origin with the one before; and
what an unacknowledged one takes beyond that."""
CONNECTION_BYTES = 8 * 1024
TLS_BYTES = 64 * 1024
CHANNEL_BYTES = 4 * 1024
CONSUMER_BYTES = 1024
QUEUE_BYTES = 4 * 1024
EXCHANGE_BYTES = 2 * 1024
BINDING_BYTES = 1024
DECODED = 20
"""Decoded arguments and properties take this many times the length of their text."""
COPIES_TO_WRITE = 2
"""A message that is being written to the file exists this many times beyond the one in its queue."""


class MemoryBudget:
    """The bytes held at the end of the last turn, by kind, and what follows from their total."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queues = 0
        """Messages in queues, ready or unacknowledged."""
        self.topology = 0
        """Exchanges, queues and bindings."""
        self.connections = 0
        """Connections with their channels, consumers, buffers, unfinished messages and transactions."""
        self.requests = 0
        """Requests of the HTTP API that are under way, with the messages in their responses."""
        self.unwritten = 0
        """Messages that wait to be written to the file."""
        self.log = 0
        """What the log keeps for the messages in memory that it has."""
        self.expected = 0
        """What messages to several queues may have added to `queues` since the last turn ended."""
        self.most = 0
        """The largest total since somebody set it to 0."""
        self.is_short = False
        self.is_alarmed = False
        self.is_exhausted = False
        self._queue_count = 0
        self.window_bytes = WINDOW_BYTES
        self.window_messages = WINDOW_MESSAGES

    @property
    def total(self) -> int:
        others = self.topology + self.connections + self.requests + self.log
        return self.queues + others + COPIES_TO_WRITE * self.unwritten

    @property
    def is_relieved_by_disk(self) -> bool:
        """Whether memory is within its limit as soon as messages are written that are on their way to the file."""
        return self.total - COPIES_TO_WRITE * self.unwritten <= self.limit < self.total

    def describe(self) -> str:
        return (
            f"{self.total} bytes in use, of these {self.queues + self.log} by queues, {self.connections} by connections, "
            f"{self.requests} by HTTP requests, {self.topology} by the topology, "
            f"{COPIES_TO_WRITE * self.unwritten} by messages that are being written"
        )

    def assess(self, queue_count: int) -> None:
        """Draw the conclusions from the total, at the end of a turn."""
        total, limit = self.total, self.limit
        self.expected, self._queue_count = 0, queue_count
        self.most = max(self.most, total)
        self.is_short = total > SHORT * limit
        self.is_alarmed = total > (CALM * limit if self.is_alarmed else limit)
        self.is_exhausted = total > limit + EXCESS_BYTES
        self._set_windows()

    def expect(self, copies: int, size: int) -> bool:
        """Count copies that are about to enter queues, with the size of all their bodies and properties.

        Return whether memory may be short before the turn ends.
        """
        self.expected += copies * MESSAGE_BYTES + size
        if not self.is_short and self.total + self.expected > SHORT * self.limit:
            self.is_short = True
            self._set_windows()
        return self.is_short

    def _set_windows(self) -> None:
        if self.is_short:
            self.window_bytes = 0 if self.is_alarmed else int(SHORT_WINDOW * self.limit) // max(1, self._queue_count)
            self.window_messages = self.window_bytes // MESSAGE_BYTES
        else:
            self.window_bytes, self.window_messages = WINDOW_BYTES, WINDOW_MESSAGES

    def require_room_for_topology(self) -> None:
        """Raise if exchanges, queues and bindings take so much memory that little is left for messages."""
        if self.topology > self.limit // 2:
            raise ResourceError(
                f"exchanges, queues and bindings take {self.topology} bytes of memory: expected at most half of the memory "
                f"limit of {self.limit} bytes"
            )

    def require_room_for_channel(self) -> None:
        if self.is_exhausted:
            raise ResourceError(f"the broker holds {self.total} bytes, and its memory limit is {self.limit} bytes")


def memory_of(exchanges: Iterable[Exchange], queues: Iterable[Queue], bindings: Iterable[Binding]) -> int:
    """Return the bytes that parts of the topology take."""
    return (
        sum([EXCHANGE_BYTES + memory_of_table(exchange.arguments) for exchange in exchanges])
        + sum([QUEUE_BYTES + memory_of_table(queue.arguments) for queue in queues])
        + sum([BINDING_BYTES + memory_of_table(binding.arguments) for binding in bindings])
    )


def memory_of_table(table: Mapping[str, FieldValue]) -> int:
    """Return the bytes that a decoded table takes."""
    return DECODED * len(str(table)) if table else 0
