"""What the broker needs of the outside: an outlet to each client, and for a queue, the vhost around it.

The broker's journal is a port of the store (`store.journal_port`). The time is passed to the broker with each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from holtmq.broker.memory import MemoryBudget
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.errors import StoreError
from holtmq.queueing.dead_letter import DeathReason
from holtmq.steps import Steps
from holtmq.store.chunk import LoggedMessage
from holtmq.store.journal_port import JournalPort
from holtmq.store.records import StoredRow

if TYPE_CHECKING:
    from collections import deque

    from holtmq.broker.chores import Chore
    from holtmq.broker.consumer import Consumer
    from holtmq.broker.lane import Lane
    from holtmq.broker.queue import MessageQueue
    from holtmq.broker.served_queue import ServedQueue
    from holtmq.broker.stream_row import StreamRow

T = TypeVar("T")


class Outlet(Protocol):
    """The way to a client: what a channel sends to it. `protocol` implements it."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads fast enough to be sent more messages."""

    def deliver(
        self, consumer: Consumer, first_tag: int, messages: Sequence[QueuedMessage], redelivered: Collection[int]
    ) -> None:
        """Send messages with consecutive delivery tags; `redelivered` has the ids of those delivered before."""

    def deliver_row(self, consumer: Consumer, first_tag: int, row: StreamRow) -> None:
        """Send messages of a stream with consecutive delivery tags."""

    def confirm(self, tag: int, *, multiple: bool) -> None:
        """Confirm a published message, or all up to it."""

    def refuse(self, tag: int) -> None:
        """Tell the publisher that its message was rejected (basic.nack)."""

    def give_back(self, message: QueuedMessage) -> None:
        """Return a mandatory message that could not be routed."""

    def cancel(self, consumer: Consumer) -> None:
        """Tell the client that a consumer was cancelled because its queue was deleted."""

    def fail(self) -> None:
        """Close the connection when the turn ends, because of an internal error. Deliver nothing more to it."""


class NoOutlet:
    """The outlet of a channel that is closed: whatever is sent there is dropped."""

    is_writable = False

    def deliver(
        self, consumer: Consumer, first_tag: int, messages: Sequence[QueuedMessage], redelivered: Collection[int]
    ) -> None: ...
    def deliver_row(self, consumer: Consumer, first_tag: int, row: StreamRow) -> None: ...
    def confirm(self, tag: int, *, multiple: bool) -> None: ...
    def refuse(self, tag: int) -> None: ...
    def give_back(self, message: QueuedMessage) -> None: ...
    def cancel(self, consumer: Consumer) -> None: ...
    def fail(self) -> None: ...


class QueueHost(Protocol):
    """What a queue needs of its vhost."""

    @property
    def journal(self) -> JournalPort: ...
    @property
    def now_ms(self) -> int: ...
    @property
    def memory(self) -> MemoryBudget: ...
    @property
    def on_disk_id(self) -> int:
        """The newest message in the batches that are on disk."""

    @property
    def sealed_id(self) -> int:
        """The newest message in the batch that is being written. Newer ones are in the one that is being collected."""

    def mark_later(self, queue: MessageQueue, lane: Lane) -> None:
        """Call the queue's `mark` before the journal's batch ends."""

    def mark_wanted(self, lane: Lane) -> None:
        """Update the lane when the journal has committed the mark that it wants."""

    def wake(self, queue: ServedQueue) -> None:
        """Call the queue's `dispatch` before the turn ends."""

    def dispatch(self, queue: ServedQueue) -> None:
        """Call the queue's `dispatch` now, and contain its errors."""

    def deliver_in_steps(self, queue: ServedQueue, begin: Callable[[], Steps[None]]) -> Chore:
        """Let a queue deliver messages in steps: for as long as there is time, and the rest between turns."""

    def free_in_steps(self, queue: MessageQueue, messages: deque[QueuedMessage]) -> None:
        """Free messages that have left a queue."""

    def delivery_failed(self, consumer: Consumer) -> None:
        """Report the exception that is being handled, and close the connection of the consumer."""

    def starve(self, queue: ServedQueue) -> None:
        """Wake the queue when the journal has committed more messages."""

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        """Read from the store, and call `then` with the result, or with the error that prevents it. That may be later.

        `read` may run in another thread: it uses nothing but the journal.
        """

    def read_failed(self, queue: ServedQueue, error: StoreError, *, is_new: bool) -> None:
        """Report that messages of the queue cannot be read from the file."""

    def schedule(self, queue: ServedQueue, at_ms: int) -> None:
        """Call the queue's `on_time` at the given time."""

    def is_committed(self, batch: int) -> bool:
        """Return whether all changes up to this batch of the journal are on disk."""

    def restore(self, logged: LoggedMessage) -> QueuedMessage:
        """Turn a stored message into a queued one."""

    def restore_all(self, logged: Sequence[LoggedMessage]) -> list[QueuedMessage]:
        """Turn stored messages into queued ones."""

    def origin(self, names: tuple[str, str]) -> Origin:
        """Return the origin of messages with this exchange and routing key."""

    def restore_row(self, row: StoredRow) -> QueuedMessage:
        """Turn a message that has a row of its own into a queued one."""

    @property
    def is_burying(self) -> bool:
        """Whether messages had better not die now, because dead letters of others are entering many queues."""

    def bury(self, message: QueuedMessage, queue: MessageQueue, reason: DeathReason, then: Callable[[], None]) -> None:
        """Dead-letter a message of a queue with a dead-letter exchange. Call `then` when the letter is in all its queues."""

    def doom(self, queue: ServedQueue) -> None:
        """Delete a queue, now or soon. From now on nobody finds it."""

    def unsettled(self, queue: MessageQueue) -> Sequence[QueuedMessage]:
        """Return the queue's unacknowledged messages."""
