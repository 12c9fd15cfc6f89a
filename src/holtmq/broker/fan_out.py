"""Messages on their way to several queues, which they enter some at a time.

The order of a queue is that of the ids of its messages, and a message is in one batch of the journal. If another message was
published meanwhile, or another batch was begun, the queues that are left therefore get a message of their own, with a new id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holtmq.broker.memory import MESSAGE_BYTES
from holtmq.broker.publication import Destination
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.routing.route import Entry
from holtmq.steps import Steps
from holtmq.wire.content import Content, Properties, sizes_of

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker

COPIES_IN_STEP = 100
"""Copies that are made in one step if the turn has none left."""


class FanOut:
    """Messages that differ in nothing but their body. Queues that are deleted before they have a message are left out."""

    __slots__ = (
        "_at",
        "_batch",
        "_broker",
        "_contents",
        "_destinations",
        "_done",
        "_entries",
        "_is_stored",
        "_is_taken",
        "_message",
        "_origin",
        "_properties",
        "_sizes",
        "memory",
    )

    def __init__(
        self,
        broker: Broker,
        origin: Origin,
        properties: Properties,
        contents: Iterable[Content],
        destinations: Sequence[Destination],
        entries: Mapping[str, Entry],
        done: Callable[[bool, bool], object],
    ) -> None:
        """`done` is called for each message, with whether all queues took it, and whether the journal has it."""
        self._broker = broker
        self._origin = origin
        self._properties = properties
        self._contents = deque(contents)
        self._sizes = deque(sizes_of(properties.raw, self._contents))
        self._destinations = destinations
        self._entries = entries
        self._done = done
        self.memory = sum(map(len, self._contents)) + MESSAGE_BYTES * len(self._contents)
        """Bytes that the messages take until they are in their queues."""
        self._at = 0
        """Number of queues that have the first message."""
        self._message: QueuedMessage | None = None
        """The first message, as the last queue has it."""
        self._batch = 0
        """The batch of the journal that has it."""
        self._is_taken, self._is_stored = True, False

    @property
    def has_more(self) -> bool:
        return bool(self._contents)

    def go_on(self) -> Steps[None]:
        """Put all messages into the queues that are left."""
        while self._contents:
            self.put_some()
            yield

    def put_some(self) -> None:
        """Put messages into queues: few if each has many queues, otherwise as many as this turn has left."""
        broker, destinations = self._broker, self._destinations
        left = max(COPIES_IN_STEP, broker.copies_of(len(destinations)))
        while self._contents and left > 0:
            some = destinations[self._at : self._at + left]
            self._at += len(some)
            left -= max(1, len(some))
            broker.copied(len(some))
            self._put(some)
            if self._at >= len(destinations):
                self._end_message()

    def _put(self, destinations: Sequence[Destination]) -> None:
        broker, entries, message = self._broker, self._entries, self._message
        broker.expect(destinations, self._properties, self._sizes[0])
        if message is None or self._batch != broker.journal.batch:
            message = self._next_message()
        for destination in destinations:
            if destination.is_deleted:
                continue
            if message.id != broker.last_id:
                message = self._next_message()
            try:
                self._is_taken &= destination.put(message, entries.get(destination.name))
            except Exception:  # noqa: BLE001  # contained: it is reported
                self._is_taken = False
                broker.internal_errors.report("publishing to many queues", f"queue {destination.name!r}")

    def _next_message(self) -> QueuedMessage:
        """Return a message for the next queues."""
        broker = self._broker
        if self._message is not None and self._message.stored:
            self._is_stored = True
        broker.last_id += 1
        self._message = message = QueuedMessage(
            broker.last_id, self._origin, self._properties, self._contents[0], self._sizes[0], len(self._destinations)
        )
        self._batch = broker.journal.batch
        return message

    def _end_message(self) -> None:
        is_taken, is_stored = self._is_taken, self._is_stored or bool(self._message and self._message.stored)
        self._contents.popleft()
        self._sizes.popleft()
        self._message, self._at = None, 0
        self._is_taken, self._is_stored = True, False
        self._done(is_taken, is_stored)
