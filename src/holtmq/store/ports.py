"""What the broker asks of whoever keeps its state beyond the process. Without sockets or files of its own, it sees only this.

Whatever is handed over goes into a batch; when a batch is on disk, the broker is told so (`Broker.committed`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.store.records import StoredRow
from holtmq.topology import Binding, Exchange, Parameter, Policy, Queue, Removal


class StorableOrigin(Protocol):
    exchange: str
    routing_key: str


class StorableProperties(Protocol):
    raw: bytes
    is_persistent: bool


class StorableMessage(Protocol):
    """What the journal has to know of a broker's message."""

    id: int
    size: int
    copies: int
    stored: int

    @property
    def origin(self) -> StorableOrigin: ...
    @property
    def properties(self) -> StorableProperties: ...
    @property
    def body(self) -> bytes: ...


class JournalPort(Protocol):
    @property
    def batch(self) -> int:
        """The number of the batch that is being collected."""

    @property
    def has_changes(self) -> bool:
        """Whether the batch that is being collected has anything in it."""

    def add(self, message: StorableMessage, queue_id: int, priority: int, expires_at: int | None, *, is_paged: bool) -> None:
        """A message that came to a queue. A paged one is forgotten by the queue, which will ask for it by `read`."""

    def remove(self, message: StorableMessage, queue_id: int) -> None:
        """A message that left a queue for good."""

    def returned(self, message: StorableMessage, queue_id: int, count: int) -> None:
        """Record that a message was requeued, for the `count`th time."""

    def read(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> Sequence[StoredRow]:
        """Messages of a queue as far as they are on disk, in their order, a few at a time."""

    def read_one(self, queue_id: int, message_id: int) -> Sequence[StoredRow]:
        """A message that `read` gave before and that was not removed since."""

    def purge(self, queue_id: int, but: Collection[int]) -> None:
        """All messages of a queue leave it, but those of these ids."""

    def forget_queue(self, queue_id: int) -> None:
        """A queue is gone, and whatever the file has of it."""

    def next_due(self, after_ms: int) -> int | None:
        """When the first message becomes ready that the embedded library put with a delay, of those after a time."""

    def take_due(self, after_ms: int, now_ms: int) -> Sequence[tuple[int, StoredRow]]:
        """Messages that become ready between two times, with the ids of their queues."""

    def delivered(self, queue_id: int, up_to: int) -> None:
        """Messages up to this id may have been seen by a consumer."""

    def add_exchange(self, exchange: Exchange) -> None: ...
    def add_queue(self, queue: Queue) -> int:
        """Keep a queue if it is durable; its id, by which its messages are filed."""

    def add_binding(self, binding: Binding) -> None: ...
    def remove_parts(self, removal: Removal) -> None: ...
    def set_policy(self, policy: Policy) -> None: ...
    def remove_policy(self, vhost: str, name: str) -> None: ...
    def set_vhost(self, name: str, metadata: str) -> None:
        """Add a vhost, or say something else of it, in JSON."""

    def set_parameter(self, parameter: Parameter) -> None: ...
    def remove_parameter(self, parameter: Parameter) -> None: ...
    def remove_vhost(self, name: str) -> None: ...
    def set_user(self, user: User) -> None: ...
    def remove_user(self, name: str) -> None: ...
    def set_permission(self, permission: Permission | TopicPermission) -> None: ...
    def remove_permission(self, permission: Permission | TopicPermission) -> None: ...
