"""A handle to a stream of a HoltMQ file: append, read from any place, follow under a name.

Reading changes nothing and does not wait for those who write. An append or a commit is a transaction, or a part of yours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from holtmq.body import Content, encode
from holtmq.embedded.follower import Follower
from holtmq.embedded.intake import stream_entry
from holtmq.embedded.key_filter import key_filter
from holtmq.embedded.persistent import persistent, repeatable
from holtmq.embedded.queue_handle import Key, Patterns, as_key, as_patterns
from holtmq.embedded.stream_record import StreamRecord
from holtmq.errors import InvalidValueError, NotFoundError, PositionLostError
from holtmq.queueing.argument_values import LARGEST, is_integer
from holtmq.queueing.stream_offset import StreamStart
from holtmq.store.records import NewMessage
from holtmq.store.sql.declarations import to_text
from holtmq.store.sql.sql_database import Connection
from holtmq.store.stream_port import StreamEntry, StreamExtent
from holtmq.table import FieldValue, Table, describe, require_short_string

if TYPE_CHECKING:
    from holtmq.embedded.embedded_broker import EmbeddedBroker

Start: TypeAlias = Literal["first", "last", "next"] | int | datetime
"""A place in a stream: its first message, its last, the next to come, an offset, or the first message since a time."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StreamHandle:
    """A stream of an open file, as returned by `EmbeddedBroker.declare_stream`. Handles hold no state besides the name."""

    def __init__(self, name: str, owner: EmbeddedBroker) -> None:
        self.name = name
        self._owner = owner
        self._log = owner.streams

    @property
    def database(self) -> Any:
        return self._owner.database

    @overload
    def append(self, content: Content, routing_key: Key = "", *, headers: None = None) -> int: ...
    @overload
    def append(self, content: Content, routing_key: Key = "", *, headers: Mapping[str, FieldValue] | None) -> int | None: ...
    def append(self, content: Content, routing_key: Key = "", *, headers: Mapping[str, FieldValue] | None = None) -> int | None:
        """Append a message and return its offset. When the call returns, the message is in the file.

        With the headers `x-publisher` and `x-publishing-id`, a message whose id is not higher than the last one of this
        publisher is a duplicate: it is not appended, and the call returns None.
        """
        (offset,) = self._append([(content, routing_key, headers)])
        return offset

    def append_many(self, messages: Iterable[tuple[Content, Key]]) -> range:
        """Append messages, each with its routing key, and return their offsets. Either all are appended or none is."""
        offsets = self._append([(content, key, None) for content, key in messages])
        if not offsets:
            return range(0)
        first, last = offsets[0], offsets[-1]
        assert first is not None
        assert last is not None
        return range(first, last + 1)

    def read(self, start: Start = "first", pattern: Patterns = None, *, limit: int | None = None) -> Iterator[StreamRecord]:
        """Return the messages from a place in the stream up to its present end, but at most `limit`.

        With a pattern (or several), only messages whose routing key matches. If the message at an offset was removed by
        retention, reading starts with the first message that is left.
        """
        if limit is not None and (not is_integer(limit) or limit < 0):
            raise InvalidValueError(f"a limit must be an integer of at least 0, got {describe(limit)}")
        matches, place = key_filter(as_patterns(pattern)), as_start(start)
        with self._reading() as stream:
            offset, end = self._resolve(stream, place), self._log.extent(stream).next_offset
        return islice(self._records(stream, offset, end, matches), limit)

    def follow(
        self,
        name: str | None = None,
        pattern: Patterns = None,
        *,
        start: Start = "first",
        wait_s: float | None = None,
        auto_commit: bool = True,
    ) -> Follower:
        """Return an iterator over the messages of the stream, which waits for new ones at the end.

        The position of a `name` is kept in the file. The iteration continues there, or begins at `start` if the name is
        new. The position moves past a message when the loop asks for the next one: if the loop ends before, or the process
        dies, the message is read again. With `auto_commit=False` only `commit` moves it. Without a name, the iteration
        begins at `start`, and nothing is kept.

        `wait_s` is the longest time to wait for a message before the iteration ends. 0 ends it at the end of the stream;
        None, the default, never.

        The iteration raises `PositionLostError` if retention has removed messages after the position, or if the position
        was moved by another follower or by `seek`.
        """
        if wait_s is not None and not wait_s >= 0:
            raise InvalidValueError(f"wait_s must be at least 0 seconds, or None to wait without end, got {wait_s}")
        matches, place = key_filter(as_patterns(pattern)), as_start(start)
        with self._reading() as stream:
            known = None if name is None else self._log.position(stream, _checked_name(name))
            offset = self._resolve(stream, place) if known is None else known
        if name is not None and known is None:
            offset = self._begin(name, place)
        return Follower(self, stream, name, offset, matches, wait_s=wait_s, auto_commit=auto_commit)

    @persistent
    def commit(self, name: str, message: StreamRecord | int) -> None:
        """Move a position past a message of this stream, given as such or by its offset.

        Raise `PositionLostError` if it is past the message already, because another follower of this name has committed it.
        In a transaction, the result of the message is then not stored again.
        """
        if isinstance(message, StreamRecord) and message.stream != self.name:
            raise InvalidValueError(f"expected a message of stream {self.name!r} to commit, got one of {message.stream!r}")
        offset = message.offset if isinstance(message, StreamRecord) else message
        with self._writing() as stream:
            extent, known = self._log.extent(stream), self._log.position(stream, _checked_name(name))
            if not is_integer(offset) or not 0 <= offset < extent.next_offset:
                raise InvalidValueError(
                    f"stream {self.name!r} has offsets up to {extent.next_offset - 1}, got {describe(offset)} to commit"
                )
            if known is not None and known > offset:
                raise PositionLostError(
                    f"position {name!r} of stream {self.name!r} is at offset {known} already, past the message at offset "
                    f"{offset}: it was committed by another follower of this name, or before; seek moves a position back"
                )
            self._log.set_position(stream, name, offset + 1)

    @repeatable
    def seek(self, name: str, start: Start) -> int:
        """Move a position to any place of the stream, and return its offset. Whoever follows under this name starts again.

        The place may be the end of the stream, but not after it.
        """
        place = as_start(start)
        with self._writing() as stream:
            offset = self._resolve_position(stream, name, place)
            self._log.set_position(stream, _checked_name(name), offset)
        return offset

    @repeatable
    def forget(self, name: str) -> None:
        """Remove a position. The name is then new again."""
        with self._writing() as stream:
            self._log.forget_position(stream, name)

    @repeatable
    def position(self, name: str) -> int | None:
        """Return the offset of the next message for a name, or None if the name is new."""
        with self._reading() as stream:
            return self._log.position(stream, name)

    @repeatable
    def positions(self) -> dict[str, int]:
        """Return the offset of the next message for each name."""
        with self._reading() as stream:
            return dict(self._log.positions(stream))

    @repeatable
    def extent(self) -> StreamExtent:
        """Return what the stream holds: its first and its next offset, messages, bytes and times."""
        with self._reading() as stream:
            return self._log.extent(stream)

    def size(self) -> int:
        """Return the number of messages."""
        return self.extent().number

    @repeatable
    def last_publishing_id(self, publisher: str) -> int | None:
        """Return the highest `x-publishing-id` of a publisher so far, or None if it has none."""
        with self._reading() as stream:
            return self._log.last_publishing_id(stream, publisher)

    def __repr__(self) -> str:
        return f"StreamHandle({self.name!r} in {self._owner.path})"

    def listen(self) -> int:
        """Return a mark for `wait`: whatever happens after it wakes the caller."""
        return self._owner.bell.listen()

    def wait(self, mark: int, longest_s: float | None) -> None:
        """Wait until something has changed in the file since the mark. The caller must check again."""
        self._owner.bell.wait(mark, longest_s)

    def wake(self) -> None:
        """Wake all waiting callers, which then check again."""
        self._owner.bell.ring()

    @repeatable
    def read_some(self, stream: int, offset: int, matches: Callable[[str], bool]) -> tuple[int, list[StreamRecord], int]:
        """Read a chunk of messages from an offset on. Return where it starts, what matches, and where the next one starts.

        It starts later than asked if messages were removed by retention. At the end of the stream, it has no message.
        """
        with self._reading() as current:
            if current != stream:
                raise NotFoundError(f"stream {self.name!r} was deleted while it was read; another one has its name now")
            chunk = self._log.chunk(stream, offset)
        if chunk is None:
            return offset, [], offset
        start = max(offset, chunk.first_offset)
        if chunk.damage is not None or not any(matches(key) for _, key in chunk.origins):
            return start, [], chunk.next_offset
        found = [StreamRecord(each, self.name) for each in chunk.messages(start) if matches(each.routing_key)]
        return start, found, chunk.next_offset

    @persistent
    def move(self, stream: int, name: str, expected: int, offset: int) -> None:
        """Move a position from where its follower knows it to be. It does not wait for the disk.

        A power cut may undo it, so that messages are read again.
        """
        with self._owner.database.lazy_transaction():
            self._owner.database.serialize(stream)
            found = self._log.position(stream, name)
            if found == expected:
                self._log.set_position(stream, name, offset)
                return
        now = "removed" if found is None else f"moved to {found}"
        raise PositionLostError(
            f"position {name!r} of stream {self.name!r} was at offset {expected} and was {now} by another follower of this "
            "name, or by a call of commit, seek or forget: give each follower a name of its own, or follow again to continue"
        )

    def _records(self, stream: int, offset: int, end: int, matches: Callable[[str], bool]) -> Iterator[StreamRecord]:
        while offset < end:
            _, records, next_offset = self.read_some(stream, offset, matches)
            if next_offset == offset:
                return
            offset = next_offset
            for record in records:
                if record.offset >= end:
                    return
                yield record

    def _append(self, messages: Sequence[tuple[Content, Key, Mapping[str, FieldValue] | None]]) -> list[int | None]:
        owner, now = self._owner, self._owner.now_ms()
        entries = [_entry(content, as_key(key), headers, now) for content, key, headers in messages]

        def append(_: Connection) -> list[int | None]:
            owner.catch_up()
            return owner.intake.append(*owner.stream_of(self.name), entries, now)

        offsets: list[int | None] = owner.database.together(append)
        owner.bell.ring()
        return offsets

    @repeatable
    def _begin(self, name: str, place: StreamStart) -> int:
        """Make a position, unless another process has made it meanwhile, and return its offset."""
        with self._writing() as stream:
            offset = self._log.position(stream, name)
            if offset is None:
                offset = self._resolve_position(stream, name, place)
                self._log.set_position(stream, name, offset)
        return offset

    def _resolve_position(self, stream: int, name: str, place: StreamStart) -> int:
        """Return the offset for a position. After the end, it would skip messages that are appended later."""
        offset, end = self._resolve(stream, place), self._log.extent(stream).next_offset
        if offset > end:
            raise InvalidValueError(
                f"the next message of stream {self.name!r} gets offset {end}: expected at most that for position {name!r}, "
                f"got {offset}"
            )
        return offset

    def _resolve(self, stream: int, place: StreamStart) -> int:
        return place.offset(self._log.extent(stream), partial(self._log.find, stream))

    @contextmanager
    def _reading(self) -> Iterator[int]:
        """Lock the connection, and return the id of the stream."""
        with self._owner.database.lock():
            yield self._owner.stream_of(self.name)[0]

    @contextmanager
    def _writing(self) -> Iterator[int]:
        """Begin a transaction, and return the id of the stream."""
        with self._owner.database.transaction():
            self._owner.catch_up()
            stream = self._owner.stream_of(self.name)[0]
            self._owner.database.serialize(stream)
            yield stream


def as_start(value: object) -> StreamStart:
    """Return a place in a stream, before it is looked up."""
    match value:
        case "first" | "last" | "next":
            return StreamStart(value)
        case datetime() if value.tzinfo is not None:
            return StreamStart("time", -((EPOCH - value) // timedelta(milliseconds=1)))  # rounded up
        case int() if not isinstance(value, bool) and 0 <= value <= LARGEST:
            return StreamStart("offset", value)
    raise InvalidValueError(
        "a place in a stream must be 'first', 'last', 'next', an offset of at least 0, or a datetime with a time zone, "
        f"got {describe(value)}"
    )


def _checked_name(name: object) -> str:
    if name == "":
        raise InvalidValueError("the name of a position must not be empty")
    require_short_string(name, "the name of a position")
    return str(name)


def _entry(content: Content, key: str, headers: Mapping[str, FieldValue] | None, now_ms: int) -> StreamEntry:
    require_short_string(key, "a routing key")
    properties, body = encode(content)
    own = to_text(Table.of(headers)) if headers else None
    return stream_entry(NewMessage(0, key, body, headers=own, properties=properties), now_ms)
