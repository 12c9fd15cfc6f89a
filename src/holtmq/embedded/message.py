"""A message as the embedded library returns it: its content, its state, and the ways to settle it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from holtmq.errors import FrameError
from holtmq.store.records import DeliveryState, StoredMessage
from holtmq.store.sql.declarations import from_text
from holtmq.table import FieldValue, Table
from holtmq.wire.content import Properties

if TYPE_CHECKING:
    from holtmq.embedded.queue_handle import QueueHandle

StateName: TypeAlias = Literal["ready", "locked", "done", "failed", "dead", "damaged"]
SHOWN_BYTES = 100
"""Bytes of a body that `repr` shows."""


class Message:
    """A message in a queue. The caller that popped it can settle it until the lease expires.

    Its values are read-only. Those that need decoding are decoded on demand: most consumers look at few of them.
    """

    __slots__ = ("_headers", "_properties", "_stored", "queue")

    def __init__(self, stored: StoredMessage, queue: QueueHandle, more_headers: Mapping[str, FieldValue] | None = None) -> None:
        self._stored = stored
        self._headers: Table | None = None
        self._properties: Table | None = None
        self.queue = queue
        """The queue that the message is in."""
        if more_headers:
            self._headers = Table.of({**self.headers, **more_headers})

    @property
    def id(self) -> int:
        """Ids grow in the order of arrival. The upper bits are the time of arrival."""
        return self._stored.id

    @property
    def body(self) -> bytes:
        return self._stored.body

    @property
    def routing_key(self) -> str:
        return self._stored.routing_key

    @property
    def exchange(self) -> str:
        return self._stored.exchange

    @property
    def headers(self) -> Table:
        if self._headers is None:
            self._decode()
        return self._headers  # type: ignore[return-value]

    @property
    def properties(self) -> Table:
        if self._properties is None:
            self._decode()
        return self._properties  # type: ignore[return-value]

    @property
    def priority(self) -> int:
        return self._stored.priority

    @property
    def state(self) -> StateName:
        return STATE_NAMES[DeliveryState(self._stored.state)]

    @property
    def attempts(self) -> int:
        """Number of deliveries, including this one."""
        return self._stored.attempts

    @property
    def created_at(self) -> datetime:
        return moment(self._stored.created_at)

    @property
    def locked_at(self) -> datetime | None:
        return _moment_or_none(self._stored.locked_at)

    @property
    def lease_until(self) -> datetime | None:
        """When the lease expires; for a delayed message, when it becomes available."""
        return _moment_or_none(self._stored.due_at)

    @property
    def expires_at(self) -> datetime | None:
        return _moment_or_none(self._stored.expires_at)

    @property
    def settled_at(self) -> datetime | None:
        return _moment_or_none(self._stored.settled_at)

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

    def __eq__(self, other: object) -> bool:
        return self._stored == other._stored if isinstance(other, Message) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._stored.id)

    def __repr__(self) -> str:
        about = f"id={self.id}, routing_key={self.routing_key!r}, state={self.state!r}, attempts={self.attempts}"
        return f"Message({about}, body={shown(self.body)!r})"

    def _decode(self) -> None:
        headers, self._properties = _properties_of(self._stored)
        self._headers = headers if self._headers is None else self._headers


def _properties_of(stored: StoredMessage) -> tuple[Table, Table]:
    """Return headers and other properties, written by the embedded library (JSON) or the broker (AMQP)."""
    if stored.raw_properties is None:
        return from_text(stored.headers), from_text(stored.properties)
    return decoded_properties(stored.raw_properties)


def decoded_properties(raw: bytes) -> tuple[Table, Table]:
    """Return headers and other properties of a message from AMQP's encoding. Headers that cannot be decoded are empty."""
    properties = Properties(raw)
    others = Table.of(properties.without_headers())
    try:
        return Table.of(properties.headers), others
    except FrameError:  # an AMQP client gave a header a name that is not UTF-8
        return Table.of(None), others


def shown(body: bytes) -> bytes:
    """Return as much of a body as `repr` shows."""
    return body if len(body) <= SHOWN_BYTES else body[:SHOWN_BYTES] + b"..."


STATE_NAMES: dict[DeliveryState, StateName] = {
    DeliveryState.READY: "ready",
    DeliveryState.DELAYED: "ready",
    DeliveryState.LOCKED: "locked",
    DeliveryState.DONE: "done",
    DeliveryState.FAILED: "failed",
    DeliveryState.DEAD: "dead",
    DeliveryState.DAMAGED: "damaged",
}


def moment(milliseconds: int) -> datetime:
    """Return a time that is stored in milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _moment_or_none(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else moment(milliseconds)
