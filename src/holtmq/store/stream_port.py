"""The port of streams: messages in the order of their offsets, which stay until retention removes them.

Offsets start at 0 and have no gaps. Changes are made within the caller's transaction, in steps of a few milliseconds, and
offsets are assigned there, so that several processes can append. A stream is known by the id of its queue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holtmq.steps import Steps

if TYPE_CHECKING:
    from holtmq.store.stream_chunk import StreamChunk


class StreamEntry(NamedTuple):
    """A message to append to a stream."""

    exchange: str
    routing_key: str
    raw_properties: bytes
    """AMQP's encoding of properties and headers."""
    body: bytes
    timestamp_ms: int
    publisher: str | None = None
    """A publisher that numbers its messages. One whose number is not higher than the publisher's last is a duplicate."""
    publishing_id: int = 0


ENTRY_BYTES = 300
"""What an entry with small properties takes in memory beyond its body, measured and rounded up."""


@dataclass(slots=True)
class StreamChange:
    """What a batch appends to a stream, and what retention removes from it then. While it is open, entries may be added."""

    chunk_bytes: int = 0
    max_bytes: int | None = None
    since_ms: int | None = None
    entries: list[StreamEntry] = field(default_factory=list)
    size: int = 0
    """Bytes of the bodies."""
    heavy: int = 0
    """Bytes of the properties that are large."""
    is_open: bool = True

    @property
    def overhead(self) -> int:
        """What the entries take in memory beyond their bodies."""
        return ENTRY_BYTES * len(self.entries) + self.heavy


class StreamMessage(NamedTuple):
    """A message of a stream."""

    offset: int
    timestamp_ms: int
    """When it was appended; never earlier than the message before it."""
    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """What a stream holds."""

    first_offset: int = 0
    next_offset: int = 0
    """The offset of the next message to be appended."""
    size: int = 0
    """Bytes in the file."""
    chunks: int = 0
    first_at: int | None = None
    last_at: int | None = None
    """When the first and the last message were appended; None if the stream is empty."""

    @property
    def number(self) -> int:
        """The number of messages."""
        return self.next_offset - self.first_offset


class StreamReading(NamedTuple):
    """Messages that were read, and the offset at which the next reading starts."""

    messages: Sequence[StreamMessage]
    next_offset: int


class StreamPort(Protocol):
    def append(self, stream: int, entries: Sequence[StreamEntry], most_bytes: int = ...) -> Steps[list[int | None]]:
        """Append messages in chunks of at most `most_bytes`. Return their offsets, None for duplicates."""

    def chunk(self, stream: int, offset: int) -> StreamChunk | None:
        """Return the chunk with this offset, or the first one after it. None if there is no such message yet.

        Chunks are shared by readers that ask for the same one. A damaged one is reported.
        """

    def read(self, stream: int, offset: int, limit: int, most_bytes: int = ...) -> StreamReading:
        """Return messages from an offset on: one at least if there is any, and more up to the limits.

        What retention has removed is skipped, and so are damaged messages, which are reported.
        """

    def find(self, stream: int, timestamp_ms: int) -> int:
        """Return the offset of the first message at or after a time, or the next offset if there is none."""

    def extent(self, stream: int) -> StreamExtent:
        """Return what a stream holds. The cost does not depend on how much that is."""

    def trim(self, stream: int, max_bytes: int | None, since_ms: int | None) -> Steps[int]:
        """Remove the first chunks while the stream is larger than `max_bytes`, or they are older than `since_ms`.

        The last chunk stays. Return the number of messages removed.
        """

    def forget(self, stream: int) -> Steps[None]:
        """Remove all that is stored of a stream that no longer exists."""

    def last_publishing_id(self, stream: int, publisher: str) -> int | None:
        """Return the highest number of a publisher so far."""

    def position(self, stream: int, name: str) -> int | None:
        """Return the next offset of a named reader, or None if it has none yet."""

    def positions(self, stream: int) -> Mapping[str, int]:
        """Return the next offset of each named reader."""

    def set_position(self, stream: int, name: str, next_offset: int) -> None: ...
    def forget_position(self, stream: int, name: str) -> None: ...
