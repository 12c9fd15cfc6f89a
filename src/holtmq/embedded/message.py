"""A message as the user holds it: what it says, how it stands, and the ways to settle it."""

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

StateName: TypeAlias = Literal["ready", "locked", "done", "failed", "dead"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message in a queue. `ack`, `fail`, `retry` and `extend` are for whoever popped it, until its lease runs out."""

    id: int
    """Grows with the order of arrival; its upper bits are the time of arrival."""
    body: bytes
    routing_key: str
    exchange: str
    headers: Table
    properties: Table
    priority: int
    state: StateName
    attempts: int
    """How often it was claimed, this time included."""
    created_at: datetime
    locked_at: datetime | None
    lease_until: datetime | None
    """Until when it is locked; of a delayed message, from when on it can be had."""
    expires_at: datetime | None
    settled_at: datetime | None
    queue: QueueHandle = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    def ack(self) -> None:
        """The work is done: the message is gone, or kept as done for as long as the queue retains."""
        self.queue.ack(self)

    def fail(self) -> None:
        """The work can't be done: the message is kept as failed, until somebody retries it or prunes it."""
        self.queue.fail(self)

    def retry(self, delay_s: float = 0) -> None:
        """The work is to be done again, not before `delay_s`; a message that was tried too often is dead instead."""
        self.queue.retry(self, delay_s=delay_s)

    def extend(self, lease_s: float) -> Message:
        """Keep the message locked for `lease_s` from now on."""
        return self.queue.extend(self, lease_s)


def message_of(stored: StoredMessage, queue: QueueHandle) -> Message:
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
    """Headers and other properties, as the embedded library wrote them or as a broker did."""
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
}


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
