"""Streams in a store: an index row and a row of content for each chunk of messages.

Appending costs little per message in batches. Small appends, such as those of a process that appends one message at a time,
make small chunks, which are merged every few messages until they have a reasonable size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from holtmq.steps import Steps
from holtmq.store.chunk import DamagedChunkError
from holtmq.store.sql.chunk_log import SEGMENT_BYTES, SEGMENT_MESSAGES
from holtmq.store.sql.damage import name_of_queue, report_stream
from holtmq.store.sql.sql_database import Connection, Cursor, SqlDatabase
from holtmq.store.stream_chunk import StreamChunk, pack_stream_chunk
from holtmq.store.stream_port import StreamEntry, StreamExtent, StreamMessage, StreamPort, StreamReading

SMALL_BYTES, SMALL_MESSAGES = 32 * 1024, 200
"""Chunks at the end of a stream that are smaller are merged with what is appended."""
MERGED_EVERY = 32
"""Messages after which small chunks are merged. To merge them at each append would rewrite a message a hundred times."""
CACHED_BYTES = 16 * 1024 * 1024
"""Memory for chunks that readers share."""
READ_BYTES = 1024 * 1024
REMOVED_AT_ONCE = 10
"""Chunks that are removed in one step."""
NAMES_AT_ONCE = 100
"""Publishers that are looked up or noted in one step, or names of publishers and readers that are removed."""

COLUMNS = "first_offset, number, size, total_size, total_chunks, first_at, last_at, chunk_id"
FIRST = f"SELECT {COLUMNS} FROM stream_chunks WHERE queue_id = ? ORDER BY first_offset LIMIT ?"
LAST_FEW = f"SELECT {COLUMNS} FROM stream_chunks WHERE queue_id = ? ORDER BY first_offset DESC LIMIT ?"
LAST = LAST_FEW.replace("LIMIT ?", "LIMIT 1")
ENDS = f"SELECT * FROM ({FIRST}) AS head UNION ALL SELECT * FROM ({LAST}) AS tail"
AT_OFFSET = f"SELECT {COLUMNS} FROM stream_chunks WHERE queue_id = ? AND first_offset <= ? ORDER BY first_offset DESC LIMIT 1"
AT_TIME = f"SELECT {COLUMNS} FROM stream_chunks WHERE queue_id = ? AND last_at >= ? ORDER BY last_at, first_offset LIMIT 1"
# No row if the chunk was removed or rewritten meanwhile. Null, which is damage, if the store has lost its content.
CONTENT = """
SELECT header, content
FROM stream_chunks LEFT JOIN stream_contents ON stream_contents.id = chunk_id
WHERE queue_id = ? AND first_offset = ? AND number = ?
"""
ADD_CHUNK = "INSERT INTO stream_chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
ADD_CONTENT = "INSERT INTO stream_contents (header, content) VALUES (?, ?) RETURNING id"
REPLACE_CONTENT = "UPDATE stream_contents SET header = ?, content = ? WHERE id = ?"
REMOVE_CHUNK = "DELETE FROM stream_chunks WHERE queue_id = ? AND first_offset = ?"
REMOVE_CONTENT = "DELETE FROM stream_contents WHERE id = ?"
REMOVE_PUBLISHERS = """
DELETE FROM stream_publishers
WHERE queue_id = ? AND publisher IN (SELECT publisher FROM stream_publishers WHERE queue_id = ? LIMIT ?)
"""
REMOVE_POSITIONS = REMOVE_PUBLISHERS.replace("stream_publishers", "stream_positions").replace("publisher", "name")
NOTE_PUBLISHER = (
    "INSERT INTO stream_publishers VALUES (?, ?, ?) ON CONFLICT (queue_id, publisher) DO UPDATE SET last_id = excluded.last_id"
)
NOTE_POSITION = """
INSERT INTO stream_positions VALUES (?, ?, ?) ON CONFLICT (queue_id, name) DO UPDATE SET next_offset = excluded.next_offset
"""


class ChunkRow(NamedTuple):
    """Where a chunk is."""

    first_offset: int
    number: int
    size: int
    total_size: int
    total_chunks: int
    first_at: int
    last_at: int
    chunk_id: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.number

    @property
    def is_small(self) -> bool:
        return self.number < SMALL_MESSAGES and self.size < SMALL_BYTES


class StreamLog(StreamPort):
    """The streams of a file. Changes use the database's connection, within a transaction of the caller's.

    Without a connection for reading of its own, reading uses the database's, too, and the caller has its lock.
    """

    def __init__(self, database: SqlDatabase, reader: Connection | None = None) -> None:
        self._database = database
        self._own_reader = reader
        self._cache: OrderedDict[tuple[int, int, int], StreamChunk] = OrderedDict()
        """Chunks by stream, first offset and number of messages, the least recently used first."""
        self._cached_bytes = 0
        self._reported: set[tuple[int, int]] = set()
        self.damaged = 0
        """The number of damaged messages found so far."""
        if reader is None or reader is database.connection:
            database.on_rollback.append(self._forget_cache)

    @property
    def memory(self) -> int:
        """Bytes of the chunks in memory."""
        return self._cached_bytes

    def append(self, stream: int, entries: Sequence[StreamEntry], most_bytes: int = SEGMENT_BYTES) -> Steps[list[int | None]]:
        self._database.serialize(stream)
        kept, is_kept = yield from self._without_duplicates(stream, entries)
        if not kept:
            return [None] * len(entries)
        last = self._row(self._database.connection, LAST, stream)
        first_offset = last.next_offset if last is not None else 0
        yield from self._append(stream, last, kept, most_bytes)
        if is_kept is None:
            return list(range(first_offset, first_offset + len(kept)))
        offsets = iter(range(first_offset, first_offset + len(kept)))
        return [next(offsets) if is_one_kept else None for is_one_kept in is_kept]

    def _append(self, stream: int, last: ChunkRow | None, entries: Sequence[StreamEntry], most_bytes: int) -> Steps[None]:
        offset, total_size, total_chunks, last_at = 0, 0, 0, 0
        replaced: int | None = None
        if last is not None:
            offset, total_size, total_chunks, last_at = last.next_offset, last.total_size, last.total_chunks, last.last_at
            if (offset + len(entries)) // MERGED_EVERY > offset // MERGED_EVERY and (small := self._small_end(stream)):
                first = small[0][0]
                entries = [*chain.from_iterable(stored for _, stored in small), *entries]
                offset, total_size, total_chunks = first.first_offset, first.total_size - first.size, first.total_chunks - 1
                last_at, replaced = first.first_at, first.chunk_id
                self._execute(REMOVE_CHUNK, stream, first.first_offset)
                for row, _ in small[1:]:
                    self._remove(stream, row)
        # A clock that was set back must not hide messages from those who look for a time.
        times = list(accumulate([entry.timestamp_ms for entry in entries], max, initial=last_at))[1:]
        for start, end in _segments(entries, most_bytes):
            header, content = pack_stream_chunk(offset, entries[start:end], times[start:end])
            if replaced is not None:
                self._execute(REPLACE_CONTENT, header, content, replaced)
                chunk_id: int | None = replaced
                replaced = None
            else:
                (chunk_id,) = self._execute(ADD_CONTENT, header, content).fetchone()
            number, size = end - start, len(header) + len(content)
            total_size, total_chunks = total_size + size, total_chunks + 1
            place = (stream, offset, number, size, total_size, total_chunks, times[start], times[end - 1], chunk_id)
            self._execute(ADD_CHUNK, *place)
            offset += number
            yield

    def _small_end(self, stream: int) -> list[tuple[ChunkRow, list[StreamEntry]]]:
        """Return the small chunks at the end of a stream, with their messages.

        A damaged chunk is not among them, nor any before it: a new checksum would hide the damage.
        """
        found: list[tuple[ChunkRow, list[StreamEntry]]] = []
        for row in map(ChunkRow._make, self._execute(LAST_FEW, stream, MERGED_EVERY).fetchall()):
            if not row.is_small:
                break
            header, content = self._execute(CONTENT, stream, row.first_offset, row.number).fetchone()
            try:
                entries = StreamChunk(row.first_offset, row.number, header or b"", content or b"").entries()
            except DamagedChunkError:
                break
            found.append((row, entries))
        return found[::-1]

    def _without_duplicates(
        self, stream: int, entries: Sequence[StreamEntry]
    ) -> Steps[tuple[Sequence[StreamEntry], list[bool] | None]]:
        """Leave out what numbered publishers have sent before. Return the rest, and which entries it has if not all."""
        if not any(entry.publisher is not None for entry in entries):
            return entries, None
        last_ids: dict[str, int | None] = {}
        changed: dict[str, int] = {}
        is_kept = []
        for entry in entries:
            publisher, number = entry.publisher, entry.publishing_id
            if publisher is None:
                is_kept.append(True)
                continue
            if publisher not in last_ids:
                if len(last_ids) % NAMES_AT_ONCE == NAMES_AT_ONCE - 1:
                    yield
                last_ids[publisher] = self._last_id(self._database.connection, stream, publisher)
            before = last_ids[publisher]
            is_new = before is None or number > before
            is_kept.append(is_new)
            if is_new:
                last_ids[publisher] = changed[publisher] = number
        for noted, (publisher, number) in enumerate(changed.items(), 1):
            self._execute(NOTE_PUBLISHER, stream, publisher, number)
            if noted % NAMES_AT_ONCE == 0:
                yield
        return [entry for entry, is_one_kept in zip(entries, is_kept, strict=True) if is_one_kept], is_kept

    def chunk(self, stream: int, offset: int) -> StreamChunk | None:
        reader = self._reader
        while True:
            row = self._row(reader, AT_OFFSET, stream, offset)
            if row is None:
                row = self._row(reader, FIRST, stream, 1)
            if row is None or offset >= row.next_offset:
                return None
            key = (stream, row.first_offset, row.number)
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                return known
            stored = reader.execute(CONTENT, key).fetchone()
            if stored is not None:
                header, content = stored
                chunk = StreamChunk(row.first_offset, row.number, header or b"", content or b"")
                self._report(stream, chunk)
                self._keep(key, chunk)
                return chunk

    def _keep(self, key: tuple[int, int, int], chunk: StreamChunk) -> None:
        self._cache[key] = chunk
        self._cached_bytes += chunk.size
        while self._cached_bytes > CACHED_BYTES and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.size

    def _forget_cache(self) -> None:
        """Drop the chunks in memory, among which may be those of a transaction that is rolled back."""
        self._cache.clear()
        self._cached_bytes = 0

    def _report(self, stream: int, chunk: StreamChunk) -> None:
        """Log what is damaged in a chunk, once."""
        if chunk.is_intact or (stream, chunk.first_offset) in self._reported:
            return
        self._reported.add((stream, chunk.first_offset))
        queue = name_of_queue(self._reader, stream)
        if chunk.damage is not None:
            self.damaged += chunk.number
            report_stream(chunk.first_offset, chunk.number, queue, chunk.damage)
            return
        for place in range(chunk.number):
            if (damage := chunk.damage_of(place)) is not None:
                self.damaged += 1
                report_stream(chunk.first_offset + place, 1, queue, damage)

    def read(self, stream: int, offset: int, limit: int, most_bytes: int = READ_BYTES) -> StreamReading:
        messages: list[StreamMessage] = []
        while len(messages) < limit and most_bytes > 0 and (chunk := self.chunk(stream, offset)) is not None:
            for message in chunk.messages(offset):
                messages.append(message)
                most_bytes -= len(message.body)
                if len(messages) >= limit or most_bytes <= 0:
                    return StreamReading(messages, message.offset + 1)
            offset = chunk.next_offset
        return StreamReading(messages, offset)

    def find(self, stream: int, timestamp_ms: int) -> int:
        row = self._row(self._reader, AT_TIME, stream, timestamp_ms)
        if row is None:
            return self.extent(stream).next_offset
        if row.first_at >= timestamp_ms:
            return row.first_offset
        chunk = self.chunk(stream, row.first_offset)
        return row.first_offset if chunk is None else chunk.place_from(timestamp_ms)

    def extent(self, stream: int) -> StreamExtent:
        return self.extent_in(self._reader, stream)

    def extent_in(self, connection: Connection, stream: int) -> StreamExtent:
        """Return what a stream holds as a connection sees it."""
        rows = connection.execute(ENDS, (stream, 1, stream)).fetchall()  # one statement: others may append and trim
        if not rows:
            return StreamExtent()
        first, last = map(ChunkRow._make, rows)
        return StreamExtent(
            first.first_offset,
            last.next_offset,
            last.total_size - first.total_size + first.size,
            last.total_chunks - first.total_chunks + 1,
            first.first_at,
            last.last_at,
        )

    def trim(self, stream: int, max_bytes: int | None, since_ms: int | None) -> Steps[int]:
        connection, removed = self._database.connection, 0
        last = self._row(connection, LAST, stream)
        while last is not None:
            rows = [ChunkRow(*row) for row in connection.execute(FIRST, (stream, REMOVED_AT_ONCE))]
            for row in rows:
                size = last.total_size - row.total_size + row.size
                is_excess = max_bytes is not None and size > max_bytes
                is_old = since_ms is not None and row.last_at < since_ms
                if row.first_offset == last.first_offset or not (is_excess or is_old):
                    return removed
                self._remove(stream, row)
                removed += row.number
            yield
        return removed

    def forget(self, stream: int) -> Steps[None]:
        connection = self._database.connection
        while rows := connection.execute(FIRST, (stream, REMOVED_AT_ONCE)).fetchall():
            for row in rows:
                self._remove(stream, ChunkRow(*row))
            yield
        for remove in (REMOVE_PUBLISHERS, REMOVE_POSITIONS):
            while self._execute(remove, stream, stream, NAMES_AT_ONCE).rowcount:
                yield

    def _remove(self, stream: int, row: ChunkRow) -> None:
        self._execute(REMOVE_CHUNK, stream, row.first_offset)
        self._execute(REMOVE_CONTENT, row.chunk_id)

    def last_publishing_id(self, stream: int, publisher: str) -> int | None:
        return self._last_id(self._reader, stream, publisher)

    def _last_id(self, connection: Connection, stream: int, publisher: str) -> int | None:
        query = "SELECT last_id FROM stream_publishers WHERE queue_id = ? AND publisher = ?"
        found = connection.execute(query, (stream, publisher)).fetchone()
        return found[0] if found else None

    def position(self, stream: int, name: str) -> int | None:
        query = "SELECT next_offset FROM stream_positions WHERE queue_id = ? AND name = ?"
        found = self._reader.execute(query, (stream, name)).fetchone()
        return found[0] if found else None

    def positions(self, stream: int) -> dict[str, int]:
        return dict(self._reader.execute("SELECT name, next_offset FROM stream_positions WHERE queue_id = ?", (stream,)))

    def set_position(self, stream: int, name: str, next_offset: int) -> None:
        self._execute(NOTE_POSITION, stream, name, next_offset)

    def forget_position(self, stream: int, name: str) -> None:
        self._execute("DELETE FROM stream_positions WHERE queue_id = ? AND name = ?", stream, name)

    @property
    def _reader(self) -> Connection:
        return self._own_reader or self._database.connection

    def _row(self, connection: Connection, query: str, *parameters: int) -> ChunkRow | None:
        found = connection.execute(query, parameters).fetchone()
        return ChunkRow(*found) if found else None

    def _execute(self, statement: str, *parameters: object) -> Cursor:
        return self._database.connection.execute(statement, parameters)


def _segments(entries: Sequence[StreamEntry], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Divide messages into chunks, as start and end. One that is larger than a chunk has its own."""
    ends = list(accumulate([len(entry.body) + len(entry.raw_properties) for entry in entries]))
    start = written = 0
    while start < len(entries):
        end = min(start + SEGMENT_MESSAGES, max(start + 1, bisect_right(ends, written + most_bytes)))
        yield start, end
        start, written = end, ends[end - 1]
