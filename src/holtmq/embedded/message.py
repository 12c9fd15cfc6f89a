"""A message as the embedded library returns it: its content, its state, and the ways to settle it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holtmq.store.records import DeliveryState, StoredMessage
from holtmq.store.sqlite.declarations import from_text
from holtmq.table import Table
from holtmq.wire.content import Properties

if TYPE_CHECKING:
    from holtmq.embedded.queue_handle import QueueHandle

StateName: TypeAlias = Literal["ready", "locked", "done", "failed", "dead", "damaged"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a queue. The caller that popped it can settle it until the lease expires."""

    id: int
    """Ids grow in the order of arrival. The upper bits are the time of arrival."""
    body: bytes
    routing_key: str
    exchange: str
    headers: Table
    properties: Table
    priority: int
    state: StateName
    attempts: int
    """Number of deliveries, including this one."""
    created_at: datetime
    locked_at: datetime | None
    lease_until: datetime | None
    """When the lease expires; for a delayed message, when it becomes available."""
    expires_at: datetime | None
    settled_at: datetime | None
    queue: QueueHandle = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The body, decoded as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body, decoded as JSON."""
        return json.loads(self.body)

    def ack(self) -> None:
        """Acknowledge the message: remove it, or keep it as done if the queue has a retention."""
        self.queue.ack(self)

    def fail(self) -> None:
        """Mark the message as failed. It stays in the queue until it is retried or pruned."""
        self.queue.fail(self)

    def reject(self) -> None:
        """Reject the message: it goes to the queue's dead-letter exchange, or is dropped if there is none."""
        self.queue.reject(self)

    def retry(self, delay_s: float = 0) -> None:
        """Return the message to the queue, available after `delay_s`. At the delivery limit it is dead-lettered instead."""
        self.queue.retry(self, delay_s=delay_s)

    def extend(self, lease_s: float) -> Message:
        """Extend the lease to `lease_s` from now, and return the message with the new lease."""
        return self.queue.extend(self, lease_s)


def message_of(stored: StoredMessage, queue: QueueHandle) -> Message:
    """Return a stored message as the library's users see it."""
    state = DeliveryState(stored.state)
    headers, properties = _properties_of(stored)
    return Message(
        stored.id,
        stored.body,
        stored.routing_key,
        stored.exchange,
        headers,
        properties,
        stored.priority,
        STATE_NAMES[state],
        stored.attempts,
        _moment(stored.created_at),
        _moment(stored.locked_at) if stored.locked_at is not None else None,
        _moment(stored.due_at) if stored.due_at is not None else None,
        _moment(stored.expires_at) if stored.expires_at is not None else None,
        _moment(stored.settled_at) if stored.settled_at is not None else None,
        queue,
    )


def _properties_of(stored: StoredMessage) -> tuple[Table, Table]:
    """Return headers and other properties, written by the embedded library (JSON) or the broker (AMQP)."""
    if stored.raw_properties is None:
        return from_text(stored.headers), from_text(stored.properties)
    properties = Properties(stored.raw_properties).to_dict()
    headers = properties.pop("headers", None)
    return Table.of(headers), Table.of(properties)


STATE_NAMES: dict[DeliveryState, StateName] = {
    DeliveryState.READY: "ready",
    DeliveryState.DELAYED: "ready",
    DeliveryState.LOCKED: "locked",
    DeliveryState.DONE: "done",
    DeliveryState.FAILED: "failed",
    DeliveryState.DEAD: "dead",
    DeliveryState.DAMAGED: "damaged",
}


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
