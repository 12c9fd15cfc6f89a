"""The values that pass between a store and its users, independent of the store's technology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from holtmq.store.checksum import checksum, json_checksum
from holtmq.topology import Topology

Durability: TypeAlias = Literal["full", "normal", "off"]
"""What a call that returned survives: `full` a power cut, `normal` and `off` a killed process."""
ID_CLOCK_BITS = 20
"""Message ids only grow. They start at the time of arrival in milliseconds, shifted left by this number of bits."""


class DeliveryState(IntEnum):
    """The state of a message in a queue. The API shows a delayed message as ready."""

    READY = 0
    LOCKED = 1
    DONE = 2
    FAILED = 3
    DEAD = 4
    DELAYED = 5
    DAMAGED = 6


@dataclass(slots=True)
class NewMessage:
    """A message to be stored. Its properties are JSON, or AMQP's encoding in `raw_properties`."""

    key_id: int
    routing_key: str
    body: bytes
    exchange: str = ""
    priority: int = 0
    headers: str | None = None
    properties: str | None = None
    due_at: int | None = None
    """When a delayed message becomes available."""
    expires_at: int | None = None
    raw_properties: bytes | None = None

    def row(self, queue_id: int | None, now_ms: int) -> tuple[object, ...]:
        exchange, headers, properties, body, raw = (
            self.exchange, self.headers, self.properties, self.body, self.raw_properties
        )  # fmt: skip
        if raw is None:
            number = json_checksum(exchange, self.routing_key, headers, properties, body)
        else:
            number = checksum(exchange, self.routing_key, raw, body)
        return (
            now_ms << ID_CLOCK_BITS, queue_id, exchange, self.key_id, self.priority, now_ms, self.due_at,
            self.expires_at, headers, properties, body, raw, number,
        )  # fmt: skip


class QueueHead(NamedTuple):
    """The first ready message of a queue."""

    message_id: int
    expires_at: int | None


class StoredMessage(NamedTuple):
    """A message in a queue, as stored."""

    id: int
    routing_key: str
    exchange: str
    priority: int
    state: int
    attempts: int
    created_at: int
    due_at: int | None
    expires_at: int | None
    locked_at: int | None
    settled_at: int | None
    headers: str | None
    properties: str | None
    body: bytes
    raw_properties: bytes | None
    """AMQP's encoding of headers and properties, if the broker wrote the message or it is a dead letter."""
    checksum: int | None

    def as_damaged(self) -> StoredMessage:
        """Return a damaged message with what can be shown of it. Damage may have changed the type of any value."""
        values: dict[str, Any] = {"routing_key": self.routing_key or "", "exchange": self.exchange or ""}
        values["body"] = self.body if isinstance(self.body, bytes) else b""
        values["created_at"] = self.created_at if isinstance(self.created_at, int) else 0
        return self._replace(state=DeliveryState.DAMAGED, headers=None, properties=None, raw_properties=None, **values)


class StoredRow(NamedTuple):
    """A message that has a row of its own. One of the embedded library has JSON instead of `raw_properties`."""

    id: int
    exchange: str
    routing_key: str
    priority: int
    expires_at: int | None
    attempts: int
    headers: str | None
    properties: str | None
    raw_properties: bytes | None
    body: bytes
    checksum: int | None = None


class DueMessage(NamedTuple):
    """A delayed message that has become available."""

    queue_id: int
    row: StoredRow
    damage: str | None
    """What is wrong with it if it is damaged."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """The stored state of a queue."""

    id: int
    counts: dict[int, int]
    """Ready messages by priority."""
    size: int
    """Bytes of their bodies."""
    delivered_to: dict[int, int]
    """By priority: the id up to which messages may have been delivered before the broker stopped."""
    next_expiry: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    topology: Topology
    queues: Mapping[tuple[str, str], QueueState]
    """By vhost and name."""
    last_id: int
    """The highest message id so far."""
    next_queue_id: int
    damaged: int
    """Number of damaged messages that were found."""
