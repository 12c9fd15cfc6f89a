"""The values that pass between a store and those who use it; the same whatever the store is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, NamedTuple, TypeAlias

from holtmq.topology import Topology

Durability: TypeAlias = Literal["full", "normal", "off"]
"""What a call that returned survives: `full` a power cut, `normal` and `off` a killed process."""
ID_CLOCK_BITS = 20
"""Ids only grow, and tell the time of arrival: they start at the clock's milliseconds shifted by this."""
IN_MEMORY, ALONE, SHARED = 0, 1, 2
"""Where a broker has filed a message: nowhere; as one row that names its only queue; or with a row for each queue."""


class DeliveryState(IntEnum):
    """Where a message stands in a queue. To the user a delayed message is a ready one that is not to be had yet."""

    READY = 0
    LOCKED = 1
    DONE = 2
    FAILED = 3
    DEAD = 4
    DELAYED = 5


@dataclass(slots=True)
class NewMessage:
    """A message on its way into the file."""

    key_id: int
    body: bytes
    exchange: str = ""
    priority: int = 0
    headers: str | None = None
    properties: str | None = None
    due_at: int | None = None
    expires_at: int | None = None

    def row(self, queue_id: int | None, now_ms: int) -> tuple[object, ...]:
        return (
            now_ms << ID_CLOCK_BITS, queue_id, self.exchange, self.key_id, self.priority, now_ms, self.due_at,
            self.expires_at, self.headers, self.properties, self.body,
        )  # fmt: skip


class ClaimedMessage(NamedTuple):
    """A message that was locked for the caller; `attempts` is what proves it when the message is settled."""

    message_id: int
    attempts: int
    expires_at: int | None


class StoredMessage(NamedTuple):
    """A message in a queue, as it stands in the file."""

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
    """What a broker that wrote the message has instead of headers and properties."""


class StoredRow(NamedTuple):
    """A message of a queue as the file has it. One that the embedded library put has JSON instead of AMQP's own bytes."""

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


@dataclass(frozen=True, slots=True)
class QueueState:
    """What the file has of a queue."""

    id: int
    counts: dict[int, int]
    """Ready messages by priority."""
    size: int
    """The bytes of their bodies, where the queue has a limit to them."""
    delivered_to: int
    next_expiry: int | None


@dataclass(frozen=True, slots=True)
class Recovered:
    topology: Topology
    queues: Mapping[tuple[str, str], QueueState]
    """By vhost and name."""
    last_id: int
    """The highest id of a message so far."""
    next_queue_id: int
