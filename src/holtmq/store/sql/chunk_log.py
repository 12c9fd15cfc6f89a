"""The broker's log in a store: messages in chunks, and for each queue which of them it still has.

Messages of a batch that go to the same queues become a chunk, a row of `log_chunks`. Each of these queues gets a slice of it,
a row of `log_slices`, with a bit for every message that has left. When a slice is empty it is deleted, and the chunk with the
last of its slices. A chunk of which little is left is rewritten without the rest.

Changes are made within the caller's transaction. The state of chunks in memory follows them, and returns to what it was if
the transaction is rolled back. Reading uses a connection of its own, and only sees what is committed. One thread may read while
another one writes.
"""

from __future__ import annotations

import json
import time
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate, chain, islice
from operator import attrgetter
from typing import NamedTuple, TypeAlias
from weakref import WeakValueDictionary

from holtmq.errors import StoreLostError
from holtmq.steps import Steps
from holtmq.store.chunk import (
    UNWRITTEN,
    Chunk,
    DamagedChunkError,
    Ids,
    Page,
    PagePart,
    PageRequest,
    Reading,
    Slice,
    UnpackedChunk,
    bits_of,
    decode_expiries,
    encode_expiries,
    pack,
)
from holtmq.store.journal_port import StorableMessage
from holtmq.store.log_port import Alone, Gone, LogPort, Shared
from holtmq.store.row_port import RowPort
from holtmq.store.sql.sql_database import Connection, Cursor, JournalDatabase

SEGMENT_BYTES = 256 * 1024
SEGMENT_MESSAGES = 2000
"""Messages are packed in segments of this size. Chunks of one queue overlap only within a segment."""
DELETED_AT_ONCE = 10
"""Number of slices of a purged or deleted queue that are removed in one step."""
ADDED_AT_ONCE = 100
"""Number of slices of a message to many queues that are added in one step."""
SPARSE = 4
"""A chunk is rewritten if less than one in this many of its bytes is left."""
LEAST_COMPACTED_BYTES = 16 * 1024
HEADER_BYTES = 40
"""What a small message takes beyond its body."""
SETTLED_S = 1.0
"""A chunk that is sparse for a shorter time is probably empty soon."""
COMPACTED_AT_ONCE = 8
CHUNK_BYTES = 900
"""What a chunk with messages in memory takes by itself, measured and rounded up."""

ADD_CHUNK = "INSERT INTO log_chunks VALUES (?, ?, ?, ?)"
ADD_SLICE = "INSERT INTO log_slices VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
THIS_SLICE = "WHERE queue_id = ? AND priority = ? AND first_id = ? AND chunk_id = ?"
UPDATE_SLICE = f"UPDATE log_slices SET number = ?, size = ?, gone = ?, expiries = ?, returns = ? {THIS_SLICE}"
DELETE_SLICE = f"DELETE FROM log_slices {THIS_SLICE}"
DELETE_CHUNK = "DELETE FROM log_chunks WHERE id = ?"
DELETE_SHARED_CHUNK = """
DELETE FROM log_chunks
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM log_slices WHERE is_shared = 1 AND chunk_id = ?1)
"""
COLUMNS = """
SELECT priority, first_id, chunk_id, last_id, number, size, is_shared, is_transient, gone, expiries, returns, queue_id
FROM log_slices
"""
NEXT_SLICES = f"""{COLUMNS}
WHERE queue_id = ? AND priority = ? AND first_id >= ? AND last_id > ? ORDER BY first_id, chunk_id
"""
THIS_CHUNK = f"{COLUMNS} WHERE queue_id = ? AND chunk_id = ?"
READ_CHUNK = "SELECT header, content FROM log_chunks WHERE id = ?"
SLICES_OF_CHUNK = f"{COLUMNS} WHERE is_shared = 1 AND chunk_id = ?"
DELETE_SOME = f"""
DELETE FROM log_slices WHERE queue_id = ?1 AND (queue_id, priority, first_id, chunk_id) IN (
    SELECT queue_id, priority, first_id, chunk_id FROM log_slices
    WHERE queue_id = ?1 AND chunk_id NOT IN ({{kept}})
    LIMIT {DELETED_AT_ONCE}
)
RETURNING chunk_id, is_shared
"""
TOTALS = """
SELECT queue_id, priority, is_transient, sum(number), sum(size), min(next_expiry), max(last_id)
FROM log_slices GROUP BY queue_id, priority, is_transient
"""

Lanes: TypeAlias = tuple[tuple[int, int], ...]
"""Queues, each with a priority."""


class Totals(NamedTuple):
    """What a queue has in the log, with one priority."""

    queue_id: int
    priority: int
    is_transient: int
    number: int
    size: int
    next_expiry: int | None
    last_id: int


class SliceRow(NamedTuple):
    priority: int
    first_id: int
    chunk_id: int
    last_id: int
    number: int
    size: int
    is_shared: int
    is_transient: int
    gone: bytes | None
    expiries: bytes | None
    returns: str | None
    queue_id: int

    def slice(self) -> Slice:
        gone = int.from_bytes(self.gone, "little") if self.gone else 0
        piece = Slice(self.priority, self.first_id, self.last_id, self.number, self.size, gone)
        piece.expiries = decode_expiries(self.expiries) if self.expiries else None
        piece.returns = {int(key): count for key, count in json.loads(self.returns).items()} if self.returns else {}
        return piece


class ChunkLog(LogPort):
    def __init__(self, database: JournalDatabase, reader: Connection, rows: RowPort) -> None:
        self._database = database
        self._rows = rows
        self._reader = reader
        self._next_id = 1
        self._chunks: WeakValueDictionary[int, Chunk] = WeakValueDictionary()
        """Chunks with messages in memory."""
        self._ends: dict[int, dict[int, tuple[int, int]]] = {}
        """By queue and priority: where the last reading ended, and the first id of its last chunks."""
        self._undo: list[tuple[Slice, tuple[int, int, int]]] = []
        """The state of slices before the transaction."""
        self._undo_compaction: list[tuple[Chunk, Ids, Sequence[int], list[tuple[Slice, Sequence[int] | None]]]] = []
        self._written: list[Sequence[StorableMessage]] = []
        """The messages that were added in the transaction."""
        self._changed: list[Chunk] = []
        """Chunks that were changed in the transaction."""
        self._commits = 0
        self._readings: deque[int] = deque()
        """The number of commits before each of the pages that are being read, the first one first."""
        self._held: deque[tuple[int, Sequence[Chunk]]] = deque()
        """Chunks that were changed while a page was read, by the number of the commit."""
        self._sparse: dict[Chunk, float] = {}
        """Chunks of which little is left, with the time since when."""
        self._settled: list[Chunk] = []
        """Those that the next batch compacts."""
        self._unpacked: tuple[int, UnpackedChunk] | None = None
        """The chunk that `read_one` has read last."""

    def open(self) -> None:
        self._next_id = self._execute("SELECT coalesce(max(id), 0) + 1 FROM log_chunks").fetchone()[0]

    @property
    def memory(self) -> int:
        """Bytes in memory, beyond the messages themselves."""
        return CHUNK_BYTES * len(self._chunks)

    def totals(self) -> list[Totals]:
        """Return what each queue has in the log. This reads slices, not messages."""
        return [Totals(*row) for row in self._execute(TOTALS)]

    def append(
        self,
        alone: Mapping[int, Alone],
        shared: Mapping[int, Shared],
        late: Collection[Alone] = (),
    ) -> Steps[None]:
        """Add messages, given by their ids. Afterwards, each knows its chunk.

        Late messages are older than others of their queue that are in the log already.
        """
        entries: Iterable[Alone | Shared] = alone.values()
        ids = list(alone)
        if shared or ids != sorted(ids):  # messages that were paged out are older than those before them
            entries = [(alone.get(message_id) or shared[message_id]) for message_id in sorted((*alone, *shared))]
        for segment in _segments(entries):
            for (lanes, is_persistent), group in _by_queues(segment):
                yield from self._add_chunk(lanes, group, is_persistent=is_persistent)
                yield
        for entry in late:  # each in a chunk of its own, so that no chunk spans all that came in between
            message, queue_id, priority, _ = entry
            yield from self._add_chunk(((queue_id, priority),), [entry], is_persistent=message.properties.is_persistent)
            yield

    def _add_chunk(self, lanes: Lanes, group: Sequence[Alone | Shared], *, is_persistent: bool) -> Steps[None]:
        messages = [entry[0] for entry in group]
        ids = _as_ids([message.id for message in messages])
        sizes = array("I", [message.size for message in messages])
        numbers = {origin: number for number, origin in enumerate({message.origin for message in messages})}
        origins = [(origin.exchange, origin.routing_key) for origin in numbers]
        origin_numbers = [numbers[message.origin] for message in messages] if len(origins) > 1 else ()
        header, content = pack(ids, [message.content for message in messages], origins, origin_numbers)
        is_transient = not is_persistent or all(queue_id < 0 for queue_id, _ in lanes)
        chunk = Chunk(self._next_id, ids, sizes, is_shared=len(lanes) > 1, is_transient=is_transient)
        self._next_id += 1
        self._execute(ADD_CHUNK, (chunk.id, int(is_transient), header, content))
        size = sum(sizes)
        for number, (queue_id, priority) in enumerate(lanes, 1):
            piece = chunk.slices[queue_id] = Slice(priority, ids[0], ids[-1], len(ids), size)
            piece.expiries = _expiries(group, queue_id)
            self._add_slice(chunk, queue_id, piece)
            if number % ADDED_AT_ONCE == 0:
                yield
        self._chunks[chunk.id] = chunk
        self._written.append(messages)
        for message in messages:
            message.stored = chunk

    def _add_slice(self, chunk: Chunk, queue_id: int, piece: Slice) -> None:
        next_expiry = min([expiry for expiry in piece.expiries if expiry]) if piece.expiries else None
        self._execute(ADD_SLICE, (
            queue_id, piece.priority, piece.first_id, chunk.id, piece.last_id, piece.number, piece.size, next_expiry,
            int(chunk.is_shared), int(chunk.is_transient), None,
            encode_expiries(piece.expiries) if piece.expiries else None, None,
        ))  # fmt: skip

    def remove(self, gone: Iterable[Gone]) -> Steps[None]:
        groups: dict[tuple[Chunk, int], list[int]] = {}
        place = None
        for chunk, queue_id, message_id in gone:
            if place is None or place[0] is not chunk or place[1] != queue_id:  # mostly the same as for the message before
                place = (chunk, queue_id)
                ids = groups.setdefault(place, [])
            ids.append(message_id)
        for (chunk, queue_id), ids in groups.items():
            self._undo.append((chunk.slices[queue_id], chunk.slices[queue_id].state))
            self._write_slice(chunk, queue_id, chunk.remove(queue_id, ids))
            yield

    def _write_slice(self, chunk: Chunk, queue_id: int, piece: Slice) -> None:
        self._changed.append(chunk)
        if piece.number == 0:
            self._sparse.pop(chunk, None)
            self._execute(DELETE_SLICE, (queue_id, piece.priority, piece.first_id, chunk.id))
            self._execute(DELETE_SHARED_CHUNK if chunk.is_shared else DELETE_CHUNK, (chunk.id,))
            return
        if SPARSE * piece.number <= len(chunk.ids):
            self._sparse.setdefault(chunk, time.monotonic())
        self._execute(UPDATE_SLICE, (
            piece.number, piece.size, piece.gone.to_bytes((piece.gone.bit_length() + 7) // 8, "little") or None,
            encode_expiries(piece.expiries) if piece.expiries else None,
            json.dumps(piece.returns) if piece.returns else None, queue_id, piece.priority, piece.first_id, chunk.id,
        ))  # fmt: skip

    def returned(self, chunk: Chunk, queue_id: int, counts: Mapping[int, int]) -> None:
        piece = chunk.slices.get(queue_id)
        if piece is not None and piece.number:
            piece.returns.update(counts)
            self._write_slice(chunk, queue_id, piece)

    def purge(self, queue_id: int, but: Iterable[StorableMessage] = ()) -> Steps[None]:
        kept: dict[Chunk, list[int]] = {}
        for message in but:
            if isinstance(message.stored, Chunk) and queue_id in message.stored.slices:
                kept.setdefault(message.stored, []).append(message.id)
        delete = DELETE_SOME.format(kept=", ".join(str(chunk.id) for chunk in kept) or "-1")
        while deleted := self._execute(delete, (queue_id,)).fetchall():
            for chunk_id, is_shared in deleted:
                self._execute(DELETE_SHARED_CHUNK if is_shared else DELETE_CHUNK, (chunk_id,))
                chunk = self._chunks.get(chunk_id)
                if chunk is not None and queue_id in chunk.slices:
                    self._undo.append((chunk.slices[queue_id], chunk.slices[queue_id].state))
                    chunk.keep_only(queue_id, ())
            yield
        for chunk, ids in kept.items():
            self._undo.append((chunk.slices[queue_id], chunk.slices[queue_id].state))
            self._write_slice(chunk, queue_id, chunk.keep_only(queue_id, ids))
            yield

    def forget(self, queue_id: int) -> Steps[None]:
        self._ends.pop(queue_id, None)
        return self.purge(queue_id)

    def forget_transient(self) -> None:
        """Remove the messages that do not outlive a broker."""
        self._execute("DELETE FROM log_slices WHERE is_transient = 1")
        self._execute("DELETE FROM log_chunks WHERE is_transient = 1")

    def settle(self) -> bool:
        """Choose the chunks that the next batch compacts, and return whether there are any. To compact them is to read them."""
        before = time.monotonic() - SETTLED_S
        self._settled = [chunk for chunk, since in self._sparse.items() if since <= before][:COMPACTED_AT_ONCE]
        return bool(self._settled)

    def compact(self) -> Steps[None]:
        settled, self._settled = self._settled, []
        for chunk in settled:
            if self._sparse.pop(chunk, None) is not None:
                self._compact(chunk)
                yield

    def _compact(self, chunk: Chunk) -> None:
        for row in map(SliceRow._make, self._execute(SLICES_OF_CHUNK, (chunk.id,)).fetchall()):
            chunk.slices.setdefault(row.queue_id, row.slice())
        pieces = {queue_id: piece for queue_id, piece in list(chunk.slices.items()) if piece.number}
        everything = (1 << len(chunk.ids)) - 1
        left = 0
        for piece in pieces.values():
            left |= everything & ~piece.gone
        places = bits_of(left)
        total, rest = _weight(chunk.sizes), _weight([chunk.sizes[place] for place in places])
        if not places or total < LEAST_COMPACTED_BYTES or SPARSE * rest > total:
            return
        stored = self._execute(READ_CHUNK, (chunk.id,)).fetchone()
        if stored is None:
            return  # it was written in a transaction that was rolled back
        unpacked = UnpackedChunk(*stored)
        if not unpacked.is_intact:
            return  # a new checksum would hide the damage
        self._undo_compaction.append((chunk, chunk.ids, chunk.sizes, [(piece, piece.expiries) for piece in pieces.values()]))
        chunk.ids = _as_ids([chunk.ids[place] for place in places])
        chunk.sizes = array("I", [chunk.sizes[place] for place in places])
        header, content = unpacked.repack(places)
        self._execute("UPDATE log_chunks SET header = ?, content = ? WHERE id = ?", (header, content, chunk.id))
        for queue_id, piece in pieces.items():
            self._undo.append((piece, piece.state))
            gone = [new for new, old in enumerate(places) if piece.gone >> old & 1]
            piece.gone = sum([1 << place for place in gone])
            piece.expiries = [piece.expiries[place] for place in places] if piece.expiries else None
            self._write_slice(chunk, queue_id, piece)
        self._sparse.pop(chunk, None)

    def committed(self) -> None:
        self._commits += 1
        changed, self._changed = self._changed, []
        if self._readings:
            self._held.append((self._commits, changed))
        self._undo.clear()
        self._undo_compaction.clear()
        self._written.clear()

    def rolled_back(self) -> None:
        for piece, state in reversed(self._undo):
            piece.gone, piece.number, piece.size = state
        for chunk, ids, sizes, expiries in reversed(self._undo_compaction):
            chunk.ids, chunk.sizes = ids, sizes
            for piece, old in expiries:
                piece.expiries = old
        for message in chain.from_iterable(self._written):
            message.stored = UNWRITTEN
        self.committed()

    def read(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> Reading:
        return self.attach(self.fetch(self._reader, self.request(queue_id, priority, after_id, limit, most_bytes)))

    def request(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> PageRequest:
        end, floor = self._ends.get(queue_id, {}).get(priority, (0, 0))
        return PageRequest(queue_id, priority, floor if end == after_id else 0, after_id, limit, most_bytes)

    def fetch(self, reader: Connection, request: PageRequest) -> Page:
        """Read the chunks of a page. Another thread may do so, with a reader of its own, between `hold` and `release`."""
        place = (request.queue_id, request.priority, request.floor_id, request.after_id)
        page, number, size = Page(request, []), 0, 0
        with self._database.snapshot(reader):
            for rows in _chains(map(SliceRow._make, self._database.rows(reader, NEXT_SLICES, place))):
                page.groups.append([_fetch_part(reader, row) for row in rows])
                number += sum([row.number for row in rows])
                size += sum([row.size for row in rows])
                if number >= request.limit or size >= request.most_bytes:
                    break
        return page

    def attach(self, page: Page) -> Reading:
        """Return the messages of a page. They share their chunks with those that are in memory already."""
        request = page.request
        reading, floor = Reading([], request.after_id, request.after_id), request.floor_id
        for group in page.groups:
            for part in group:
                self._attach_part(part, reading)
            if len(group) > 1:
                reading.messages.sort(key=attrgetter("id"))
            reading.end_id, floor = max([part.last_id for part in group]), group[0].first_id
        self._ends.setdefault(request.queue_id, {})[request.priority] = (reading.end_id, floor)
        return reading

    def _attach_part(self, part: PagePart, reading: Reading) -> None:
        unpacked, piece = part.content, part.slice
        if isinstance(unpacked, DamagedChunkError):
            reading.lost.append((part.chunk_id, part.queue_id, part.number, str(unpacked)))
            return
        chunk = self._chunks.get(part.chunk_id)
        if chunk is None:
            chunk = Chunk(part.chunk_id, unpacked.ids, unpacked.sizes, is_shared=part.is_shared, is_transient=part.is_transient)
            self._chunks[chunk.id] = chunk
        chunk.slices.setdefault(part.queue_id, piece)
        messages = unpacked.messages(chunk, piece)
        if part.first_id <= reading.after_id:
            messages = [message for message in messages if message.id > reading.after_id]
        reading.messages += messages
        reading.is_plain &= unpacked.is_intact and not piece.expiries and not piece.returns

    def hold(self) -> None:
        """Keep all chunks that change in memory from now on: a page that is being read may have them as they were before."""
        self._readings.append(self._commits)

    def release(self) -> None:
        """Note that the first of the pages that are being read was attached, or dropped."""
        self._readings.popleft()
        while self._held and not (self._readings and self._held[0][0] > self._readings[0]):
            self._held.popleft()

    def read_one(self, chunk: Chunk, message_id: int) -> tuple[bytes, str | None]:
        if self._unpacked is None or self._unpacked[0] != chunk.id or message_id not in self._unpacked[1].ids:
            stored = self._reader.execute(READ_CHUNK, (chunk.id,)).fetchone()
            if stored is None:  # a broker that does not know yet that another one has its database
                raise StoreLostError(f"{self._database.path}: chunk {chunk.id} was removed by another process")
            self._unpacked = chunk.id, UnpackedChunk(*stored)
        unpacked = self._unpacked[1]
        place = unpacked.place_of(message_id)
        if sum(chunk.sizes) > SEGMENT_BYTES:
            self._unpacked = None  # it is not worth its memory
        return unpacked.contents[place], None if unpacked.is_intact else unpacked.damage(place)

    def id_ahead(self, queue_id: int, priority: int, after_id: int, number: int) -> int | None:
        end, floor = self._ends.get(queue_id, {}).get(priority, (0, 0))
        found = None
        place = (queue_id, priority, floor if end == after_id else 0, after_id)
        with self._snapshot() as reader:
            for row in map(SliceRow._make, self._database.rows(reader, NEXT_SLICES, place)):
                found, number = row.last_id, number - row.number
                if number <= 0:
                    break
        return found

    def set_chunk_aside(self, chunk_id: int, queue_id: int, key_id: int) -> None:
        """Keep a chunk that cannot be unpacked where an operator finds it, as one message."""
        connection = self._database.connection
        for row in map(SliceRow._make, connection.execute(THIS_CHUNK, (queue_id, chunk_id)).fetchall()):
            header, content = connection.execute(READ_CHUNK, (chunk_id,)).fetchone()
            self._rows.keep_damaged(connection, row.first_id, queue_id, "", key_id, header + content)
            connection.execute(DELETE_SLICE, (queue_id, row.priority, row.first_id, chunk_id))
            connection.execute(DELETE_SHARED_CHUNK if row.is_shared else DELETE_CHUNK, (chunk_id,))

    def _execute(self, statement: str, parameters: tuple[object, ...] = ()) -> Cursor:
        return self._database.connection.execute(statement, parameters)

    def _snapshot(self) -> AbstractContextManager[Connection]:
        """Let slices and chunks be read as of the same commit."""
        return self._database.snapshot(self._reader)


def _fetch_part(reader: Connection, row: SliceRow) -> PagePart:
    content: UnpackedChunk | DamagedChunkError
    try:
        content = UnpackedChunk(*reader.execute(READ_CHUNK, (row.chunk_id,)).fetchone())
    except DamagedChunkError as error:
        content = error
    return PagePart(
        row.queue_id, row.chunk_id, row.first_id, row.last_id, row.number, row.slice(), bool(row.is_shared),
        bool(row.is_transient), content,
    )  # fmt: skip


def _segments(entries: Iterable[Alone | Shared]) -> Iterator[Sequence[Alone | Shared]]:
    """Divide messages into segments. One that is larger than a segment has its own."""
    remaining = iter(entries)
    while block := list(islice(remaining, SEGMENT_MESSAGES)):
        ends = list(accumulate([len(entry[0].content) for entry in block]))
        start = written = 0
        while start < len(block):
            end = max(start + 1, bisect_right(ends, written + SEGMENT_BYTES))
            yield block[start:end]
            start, written = end, ends[end - 1]


def _by_queues(segment: Sequence[Alone | Shared]) -> Iterable[tuple[tuple[Lanes, bool], Sequence[Alone | Shared]]]:
    """Group messages by the queues that they are in."""
    groups: dict[tuple[Lanes, bool], list[Alone | Shared]] = {}
    kinds = {entry[1:3] if len(entry) == 4 else None for entry in segment}
    persistent = {entry[0].properties.is_persistent for entry in segment}
    if len(kinds) == len(persistent) == 1 and (kind := kinds.pop()) is not None:  # usually all are for the same queue
        return [(((kind,), persistent.pop()), segment)]
    for entry in segment:
        if len(entry) == 4:
            lanes: Lanes = ((entry[1], entry[2]),)
        else:
            lanes = tuple([(queue_id, priority) for queue_id, (priority, _) in entry[1].items()])
        groups.setdefault((lanes, entry[0].properties.is_persistent), []).append(entry)
    return groups.items()


def _chains(rows: Iterable[SliceRow]) -> Iterator[list[SliceRow]]:
    """Group slices, sorted by their first ids, so that no two groups overlap."""
    group: list[SliceRow] = []
    end = 0
    for row in rows:
        if group and row.first_id > end:
            yield group
            group = []
        group.append(row)
        end = max(end, row.last_id)
    if group:
        yield group


def _as_ids(ids: Sequence[int]) -> Ids:
    return range(ids[0], ids[-1] + 1) if ids[-1] - ids[0] == len(ids) - 1 else array("Q", ids)


def _weight(sizes: Sequence[int]) -> int:
    """Return about how many bytes messages with bodies of these sizes take."""
    return sum(sizes) + HEADER_BYTES * len(sizes)


def _expiries(group: Sequence[Alone | Shared], queue_id: int) -> list[int] | None:
    expiries = [(entry[3] if len(entry) == 4 else entry[1][queue_id][1]) or 0 for entry in group]
    return expiries if any(expiries) else None
