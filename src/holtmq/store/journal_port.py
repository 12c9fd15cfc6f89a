"""The ports of the store: what the broker requires of whatever keeps its state on disk.

Changes are collected in a batch. When a batch is on disk, the server calls `Broker.committed`. A method that reads raises
StoreError if it cannot. The broker never waits for one: it lets `StoreReads` call `fetch`, `read_one`, `id_ahead`,
`stream_chunk`, `stream_offset_at`, `due` and `next_due`, if possible in another thread, one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.store.chunk import Chunk, LoggedMessage, Page, PageRequest, Reading, Unwritten
from holtmq.store.records import DueMessage
from holtmq.store.stream_chunk import StreamChunk
from holtmq.store.stream_port import StreamChange, StreamExtent
from holtmq.topology import Binding, Exchange, Parameter, Policy, Queue, Removal


class StorableOrigin(Protocol):
    exchange: str
    routing_key: str


class StorableProperties(Protocol):
    raw: bytes
    is_persistent: bool


class StorableMessage(Protocol):
    """What a journal needs to know of a broker's message."""

    id: int
    size: int
    copies: int
    content: bytes
    stored: Chunk | Unwritten | None
    """The chunk of the log that has the message, if it is stored."""

    @property
    def origin(self) -> StorableOrigin: ...
    @property
    def properties(self) -> StorableProperties: ...


class JournalPort(Protocol):
    """Keeps declarations, accounts and messages. Changes are durable once their batch is committed."""

    @property
    def batch(self) -> int:
        """The number of the batch that is being collected."""

    @property
    def has_changes(self) -> bool:
        """Whether the batch that is being collected has any changes."""

    @property
    def size(self) -> int:
        """Bytes of message bodies that wait to be written."""

    @property
    def memory(self) -> int:
        """Bytes that the journal keeps in memory besides the bodies of messages that it has not written."""

    @property
    def damaged(self) -> int:
        """The number of damaged messages found so far."""

    @property
    def change_count(self) -> int:
        """The number of changes so far, other than of single messages."""

    @property
    def declared_batch(self) -> int:
        """The number of the last batch with such a change."""

    def add(self, message: StorableMessage, queue_id: int, priority: int, expires_at: int | None) -> None:
        """Store a message that entered a queue."""

    def add_all(self, messages: Sequence[StorableMessage], queue_id: int, size: int) -> None:
        """Store messages without priority and expiry that entered a queue. `size` is that of all bodies together."""

    def remove(self, message: StorableMessage, queue_id: int) -> None:
        """Remove a message that left a queue for good."""

    def returned(self, message: StorableMessage, queue_id: int, count: int) -> None:
        """Record that a message was requeued, for the `count`th time."""

    def request_page(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> PageRequest:
        """Return a request for the next messages of a queue that are on disk, up to the limits or a little more."""

    def fetch(self, request: PageRequest) -> Page:
        """Read a page, which `attach` then takes."""

    def attach(self, page: Page) -> Reading:
        """Return the messages of a page, in order. Since the request, the queue must not have been purged."""

    def read_one(self, message: StorableMessage) -> tuple[bytes, str | None]:
        """Return the content of a message that is on disk, and what is wrong with it if it is damaged."""

    def set_aside(self, queue_id: int, queue: str, message: LoggedMessage) -> None:
        """Keep a message of this queue that is damaged from being read again, and report it."""

    def set_chunk_aside(self, queue_id: int, queue: str, chunk_id: int, number: int, damage: str) -> None:
        """Do the same with a chunk that cannot be unpacked, and that has this number of messages of the queue."""

    def id_ahead(self, queue_id: int, priority: int, after_id: int, number: int) -> int | None:
        """Return the id of a message that is at least this many places after an id, or the last one on disk."""

    def begin_stream(
        self, queue_id: int, chunk_bytes: int, max_bytes: int | None = None, since_ms: int | None = None
    ) -> StreamChange:
        """Let the batch change a stream: append messages in chunks, then remove the first chunks that are too many or too old.

        Call it once in each batch, and add the messages to what it returns for as long as that is open.
        """

    def stream_chunk(self, queue_id: int, offset: int) -> StreamChunk | None:
        """Return the chunk of a stream with this offset, or the first one after it, if it is on disk."""

    def recover_stream(self, queue_id: int) -> None:
        """Read what a stream has on disk, when the broker starts."""

    def stream_extent(self, queue_id: int) -> StreamExtent:
        """Return what a stream has on disk, without reading: it is known from the last batch that changed the stream."""

    def stream_offset_at(self, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the first message at or after a time."""

    def purge(self, queue_id: int, but: Collection[StorableMessage]) -> None:
        """Remove all messages of a queue except these."""

    def forget_queue(self, queue_id: int) -> None:
        """Remove everything that is stored of a deleted queue."""

    def next_due(self, after_ms: int) -> int | None:
        """Return when the next delayed message after this time becomes available. Only the embedded library delays messages."""

    def due(self, after_ms: int, now_ms: int) -> Sequence[DueMessage]:
        """Return the delayed messages that become available between two times."""

    def set_row_aside(self, queue_id: int, queue: str, message_id: int, damage: str) -> None:
        """Keep a delayed message that is damaged from being delivered, and report it."""

    def take_in(self, message: StorableMessage, queue_id: int, expires_at: int | None) -> None:
        """Store a delayed message that entered its queue, instead of its row."""

    def together(self) -> AbstractContextManager[None]:
        """Return a context for removals that must not be written before the additions of the same batch."""

    def delivered(self, queue_id: int, priority: int, up_to: int) -> None:
        """Record that messages of a priority up to this id may have been delivered."""

    def forget_delivered(self, but: Mapping[tuple[int, int], int]) -> None:
        """Record that every unacknowledged message was requeued, so that no delivery is in doubt.

        `but` are the marks to keep, by queue and priority.
        """

    def add_exchange(self, exchange: Exchange) -> None: ...
    def add_queue(self, queue: Queue) -> int:
        """Store a queue if it is durable. Return the id under which its messages are stored."""

    def add_binding(self, binding: Binding) -> None: ...
    def remove_parts(self, removal: Removal) -> None: ...
    def set_policy(self, policy: Policy) -> None: ...
    def remove_policy(self, vhost: str, name: str) -> None: ...
    def set_vhost(self, name: str, metadata: str) -> None:
        """Store a vhost with its metadata as JSON."""

    def set_parameter(self, parameter: Parameter) -> None: ...
    def remove_parameter(self, parameter: Parameter) -> None: ...
    def remove_vhost(self, name: str) -> None: ...
    def set_user(self, user: User) -> None: ...
    def remove_user(self, name: str) -> None: ...
    def set_permission(self, permission: Permission | TopicPermission) -> None: ...
    def remove_permission(self, permission: Permission | TopicPermission) -> None: ...
