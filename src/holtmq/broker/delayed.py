"""Delayed messages that the embedded library has left in the store: each enters its queue when it becomes available.

They are read when the next one is due. Nobody waits for that: a message that is read late is delivered late.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from holtmq.broker.queue import READ_AGAIN_MS, MessageQueue
from holtmq.errors import StoreError
from holtmq.steps import Steps
from holtmq.store.journal_port import JournalPort
from holtmq.store.records import DueMessage

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker


class DelayedMessages:
    """The delayed messages of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.next_at: int | None = None
        """When to read those that are due. None if there are none, or while they are being read."""
        self._released_to = 0
        self._cannot_read = False

    def watch(self) -> None:
        """Find out when the first one becomes available, when the broker starts."""
        self.next_at = self._broker.journal.next_due(self._released_to)

    def release(self) -> None:
        """Read those that are due, and let them enter their queues."""
        self.next_at = None
        broker = self._broker
        broker.reads.ask(partial(_find_due, broker.journal, self._released_to, broker.now_ms), self._due_found)

    def _due_found(self, answer: _Due | StoreError) -> None:
        if isinstance(answer, StoreError):
            self.next_at = self._broker.now_ms + READ_AGAIN_MS
            self._broker.read_failed("delayed messages", answer, is_new=not self._cannot_read)
            self._cannot_read = True
            return
        self._cannot_read = False
        self._released_to, self.next_at = answer.up_to_ms, answer.next_at
        if answer.messages:
            waiting = deque(answer.messages)
            self._broker.chores.add("releasing delayed messages", "all queues", lambda: self._admit(waiting))

    def _admit(self, waiting: deque[DueMessage]) -> Steps[None]:
        """Let messages enter their queues, unless these were deleted meanwhile. There may be very many."""
        queues = {queue.id: queue for queue in self._broker.message_queues()}
        while waiting:
            due = waiting.popleft()
            queue = queues.get(due.queue_id)
            if queue is not None and not queue.is_deleted:
                self._enter(queue, due)
            yield

    def _enter(self, queue: MessageQueue, due: DueMessage) -> None:
        if due.damage is None:
            queue.admit(due.row)
        else:
            self._broker.journal.set_row_aside(queue.id, queue.name, due.row.id, due.damage)


class _Due(NamedTuple):
    """Delayed messages that are available, up to a time, and when the next one will be."""

    messages: Sequence[DueMessage]
    up_to_ms: int
    next_at: int | None


def _find_due(journal: JournalPort, after_ms: int, now_ms: int) -> _Due:
    """Read the messages that are due. Another thread may do so."""
    return _Due(journal.due(after_ms, now_ms), now_ms, journal.next_due(now_ms))
