"""The port of messages that have a row each, as the embedded library keeps them: append, claim, settle.

A method that is given a connection works within the caller's transaction. The rules of queues are the caller's, and so is the
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from holtmq.queueing.terms import Terms
from holtmq.store.records import DeliveryState, NewMessage, QueueHead, StoredMessage
from holtmq.store.sql.copied_message import CopiedMessage

MANY_KEYS = 50
"""A pattern that matches at least this many keys scans ready messages in order before it looks up each key."""

SETTLED_AT_ONCE = 500
"""Messages that one statement acknowledges, at most."""


class MessageStorePort(Protocol):
    def append_alone(self, message: NewMessage, queue_id: int, now_ms: int, versions: tuple[int, int]) -> int | None:
        """Put a message into a queue, as a transaction of its own. Return None if the topology or the keys have changed."""

    def append_plain(
        self, key_id: int, key: str, properties: str | None, body: bytes, queue_id: int, now_ms: int, versions: tuple[int, int]
    ) -> int | None:
        """Put a message without headers, priority, expiry and delay into a queue, as `append_alone`."""

    def append(self, connection: Any, message: NewMessage, queue_id: int, now_ms: int) -> int:
        """Put a message into a queue and return its id."""

    def append_many(
        self,
        connection: Any,
        contents: Sequence[tuple[int, str | None, bytes, int]],
        queue_id: int,
        now_ms: int,
        expires_at: int | None,
    ) -> Sequence[int]:
        """Put messages (key id, properties, body, checksum) into a queue, in order. Return their ids."""

    def publish(self, connection: Any, message: NewMessage, deliveries: Iterable[tuple[int, Terms]], now_ms: int) -> int:
        """Put a message into several queues, each with its own priority and expiry. The body is stored once."""

    def skip_id(self, connection: Any, now_ms: int) -> int:
        """Return an id for a message that is stored elsewhere. No other message gets it."""

    def index_arrivals(self, connection: Any) -> None:
        """Create the deliveries of messages that were only appended so far."""

    def release_due(self, connection: Any, queue_id: int, now_ms: int, delivery_limit: int | None) -> tuple[int, list[int]]:
        """Make delayed messages and those with an expired lease ready.

        Return their number, and the ids of those over the delivery limit.
        """

    def next_due(self, queue_id: int) -> int | None:
        """Return when the next delayed message becomes ready, or the next lease expires."""

    def claim_first(self, queue_id: int, patterns: Sequence[str] | None, now_ms: int, lease_until: int) -> StoredMessage | None:
        """Lock the first message that matches, if that is all there is to do. A power cut may undo it."""

    def claim(
        self,
        connection: Any,
        queue_id: int,
        patterns: Sequence[str] | None,
        limit: int,
        now_ms: int,
        lease_until: int,
        *,
        keeps_retried_apart: bool = False,
    ) -> list[StoredMessage]:
        """Lock the first ready messages, in order; with patterns, only those whose key matches one of them.

        With `keeps_retried_apart`, a message that was delivered before is not claimed together with others: if it kills its
        consumer again, that does not count as an attempt for them.
        """

    def find_ready(self, connection: Any, queue_id: int, patterns: Sequence[str] | None, limit: int) -> list[int]:
        """Return the ids of the first ready messages. With patterns the list may be incomplete, but not empty if any match."""

    def first_ready(self, connection: Any, queue_id: int) -> int | None:
        """Return the first ready message, which no other process can claim until the transaction ends."""

    def read(self, queue_id: int, message_ids: Sequence[int]) -> list[StoredMessage]:
        """Return messages of a queue by their ids, in that order, without those that do not exist.

        One that is found to be damaged is set aside, and returned in this state.
        """

    def find(
        self, queue_id: int, states: Sequence[DeliveryState], limit: int, locked_before_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a queue in the given states, oldest first."""

    def count(self, queue_id: int) -> dict[DeliveryState, int]:
        """Return the number of messages of a queue in each state."""

    def measure(self, connection: Any, queue_id: int) -> tuple[int, int]:
        """Return the number of ready messages of a queue and the bytes of their bodies.

        Until the transaction ends, no other process adds to a queue with a limit.
        """

    def remember_measure(self, connection: Any, queue_id: int, count: int, size: int) -> None:
        """Note the measure of a queue as it is after the changes that the caller has just made."""

    def grow_measure(self, connection: Any, queue_id: int, count: int, size: int) -> None:
        """Add messages to a measure that was taken in this transaction, before the caller added just these messages."""

    def head(self, connection: Any, queue_id: int, priority: int) -> QueueHead | None:
        """Return the first ready message of a priority."""

    def queues_with_expired(self, connection: Any, now_ms: int) -> list[int]:
        """Return the ids of the queues that have ready messages whose TTL has passed."""

    def next_expiry(self, now_ms: int) -> int | None:
        """Return the time at which the next ready message of any queue expires."""

    def remove_all_mine(self, connection: Any, queue_id: int, locked: Sequence[tuple[int, int]]) -> set[int]:
        """Remove messages (id, attempts) that the caller has locked. Return the ids of those that it had locked."""

    def give_back_mine(self, connection: Any, queue_id: int, locked: Iterable[tuple[int, int]]) -> None:
        """Make messages that the caller has locked (id, attempts) ready again, as if they had not been claimed."""

    def is_mine(self, connection: Any, queue_id: int, message_id: int, attempts: int) -> bool:
        """Return whether the caller still holds the lock of a message."""

    def hold(self, connection: Any, queue_id: int, message_id: int) -> None:
        """Keep other processes from changing a message until the transaction ends."""

    def settle_mine(
        self,
        connection: Any,
        queue_id: int,
        message_id: int,
        attempts: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> bool:
        """Change the state of a message that the caller has locked. Return False if the caller no longer holds the lock."""

    def remove(self, connection: Any, queue_id: int, message_id: int) -> None: ...
    def set_state(
        self,
        connection: Any,
        queue_id: int,
        message_id: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> None: ...
    def delete(
        self, connection: Any, queue_id: int, states: Sequence[DeliveryState], settled_before_ms: int | None = None
    ) -> int:
        """Remove the messages of a queue in the given states, optionally only those settled before a time."""

    def forget_done(self, connection: Any, queue_id: int, settled_before_ms: int) -> None:
        """Remove a few messages that were acknowledged before this time. Called at every acknowledgement, it keeps up."""

    def export(self, after_id: int) -> Iterator[CopiedMessage]:
        """Iterate over all messages with higher ids, in their order. Nobody else uses the store meanwhile."""

    def restore(self, connection: Any, messages: Sequence[CopiedMessage]) -> None:
        """Add messages as they are, with their ids, to a store that does not have them."""

    def continue_ids(self, connection: Any) -> None:
        """Let new messages, queues and bindings have higher ids than those that were added with theirs."""

    def remove_unused(self, connection: Any) -> None:
        """Remove what no queue has any more."""
