"""A message on its way to many queues, which it enters a few at a time.

The order of a queue is that of the ids of its messages, and a message is in one batch of the journal. If another message was
published meanwhile, or another batch was begun, the queues that are left therefore get a message of their own, with a new id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holtmq.broker.memory import MESSAGE_BYTES
from holtmq.broker.publication import Destination
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.routing.route import Entry
from holtmq.steps import Steps
from holtmq.wire.content import Content, Properties

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker

QUEUES_AT_ONCE = 100
"""Number of queues that a message enters in one step."""


class FanOut:
    """One message and the queues that do not have it yet. A queue that is deleted meanwhile is left out."""

    __slots__ = (
        "_at",
        "_broker",
        "_content",
        "_destinations",
        "_entries",
        "_origin",
        "_part",
        "_properties",
        "_size",
        "is_stored",
        "is_taken",
    )

    def __init__(
        self,
        broker: Broker,
        origin: Origin,
        properties: Properties,
        content: Content,
        size: int,
        destinations: Sequence[Destination],
        entries: Mapping[str, Entry],
    ) -> None:
        self.is_taken = True
        """Whether no queue has rejected the message so far."""
        self.is_stored = False
        """Whether the journal has the message for one of its queues."""
        self._broker = broker
        self._origin = origin
        self._properties = properties
        self._content = content
        self._size = size
        self._destinations = destinations
        self._at = 0
        self._entries = entries
        self._part: tuple[int, QueuedMessage] | None = None
        """The message for the queues of the last step, and its batch."""

    def go_on(self) -> Steps[None]:
        """Put the message into the queues that are left. It is known afterwards whether all of them took it."""
        while self.has_more:
            self.put_some()
            yield

    @property
    def memory(self) -> int:
        """Bytes that the message takes until it is in all its queues."""
        return MESSAGE_BYTES + len(self._content)

    @property
    def has_more(self) -> bool:
        return self._at < len(self._destinations)

    def put_some(self) -> None:
        """Put the message into the next queues."""
        broker, some = self._broker, self._destinations[self._at : self._at + QUEUES_AT_ONCE]
        self._at += QUEUES_AT_ONCE
        broker.expect(some, self._properties, self._size)
        for destination in some:
            if destination.is_deleted:
                continue
            try:
                self.is_taken &= destination.put(self._message(), self._entries.get(destination.name))
            except Exception:  # noqa: BLE001  # contained: it is reported
                self.is_taken = False
                broker.internal_errors.report("publishing to many queues", f"queue {destination.name!r}")
        self.is_stored |= self._part is not None and self._part[1].stored is not None

    def _message(self) -> QueuedMessage:
        """Return the message for the next queue."""
        broker = self._broker
        if self._part is not None:
            batch, message = self._part
            if message.id == broker.last_id and batch == broker.journal.batch:
                return message
            self.is_stored |= message.stored is not None
        broker.last_id += 1
        copies = len(self._destinations)
        message = QueuedMessage(broker.last_id, self._origin, self._properties, self._content, self._size, copies)
        self._part = broker.journal.batch, message
        return message
