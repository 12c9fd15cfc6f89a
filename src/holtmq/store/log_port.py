"""The port of the log: messages in the order of their ids, packed into chunks, each in any number of queues.

A log belongs to a store that has transactions. Changes are made within the current one, in steps of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from holtmq.steps import Steps
from holtmq.store.chunk import Chunk, Page, PageRequest, Reading
from holtmq.store.journal_port import StorableMessage

Place: TypeAlias = tuple[int, int | None]
"""Priority and expiry of a message in a queue."""
Alone: TypeAlias = tuple[StorableMessage, int, int, int | None]
"""A message for one queue, with the queue's id, priority and expiry."""
Shared: TypeAlias = tuple[StorableMessage, Mapping[int, Place]]
"""A message for several queues, with priority and expiry in each."""
Gone: TypeAlias = tuple[Chunk, int, int]
"""A chunk, a queue, and a message that has left it."""


class LogPort(Protocol):
    def append(self, alone: Mapping[int, Alone], shared: Mapping[int, Shared], late: Collection[Alone] = ()) -> Steps[None]:
        """Add messages, given by their ids. Afterwards, each knows its chunk.

        Late messages are older than others of their queue that are in the log already.
        """

    def remove(self, gone: Iterable[Gone]) -> Steps[None]:
        """Remove messages from queues."""

    def returned(self, chunk: Chunk, queue_id: int, counts: Mapping[int, int]) -> None:
        """Record how often messages of a chunk have returned to a queue, by message id."""

    def purge(self, queue_id: int, but: Iterable[StorableMessage] = ()) -> Steps[None]:
        """Remove all messages of a queue except these, which are in memory."""

    def forget(self, queue_id: int) -> Steps[None]:
        """Remove all messages of a queue that no longer exists."""

    def compact(self) -> Steps[None]:
        """Rewrite some of the chunks of which little is left."""

    def committed(self) -> None:
        """Note that the transaction is committed."""

    def rolled_back(self) -> None:
        """Return to the state before the transaction."""

    def read(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> Reading:
        """Return the next messages of a queue after an id: those of one chunk at least, and more up to the limits."""

    def request(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> PageRequest:
        """Return a request for the next messages of a queue after an id."""

    def attach(self, page: Page) -> Reading:
        """Return the messages of a page that was read."""

    def read_one(self, chunk: Chunk, message_id: int) -> tuple[bytes, str | None]:
        """Return the content of a message, and what is wrong with it, if anything."""

    def id_ahead(self, queue_id: int, priority: int, after_id: int, number: int) -> int | None:
        """Return an id that is at least this many messages after another one, or the last one in the log."""
