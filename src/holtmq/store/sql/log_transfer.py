"""A store that changes hands: the broker keeps messages in chunks of its log, the embedded library each in a row of its own.

Whoever opens the store brings the messages into its own form first: `pack_rows` for the broker, `unpack_log` for the library.
Each transaction moves some messages as a whole, so a crash in between loses nothing, and the next start continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from holtmq.queueing.stored_properties import raw_properties_of
from holtmq.steps import complete
from holtmq.store.checksum import checksum, damage_of
from holtmq.store.chunk import Chunk, DamagedChunkError, UnpackedChunk, Unwritten
from holtmq.store.log_port import Place, Shared
from holtmq.store.records import StoredRow
from holtmq.store.row_port import RowPort, UnpackedDelivery, UnpackedMessage
from holtmq.store.sql.chunk_log import COLUMNS, READ_CHUNK, SLICES_OF_CHUNK, ChunkLog, SliceRow
from holtmq.store.sql.damage import name_of_queue, report, report_chunk
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.sql_database import Connection, SqlDatabase
from holtmq.wire.content import body_of, make_content
from holtmq.wire.content import raw_properties_of as raw_properties_in

log = logging.getLogger(__name__)

ROWS_AT_ONCE, BYTES_AT_ONCE = 5000, 16 * 1024 * 1024
"""Messages that are packed in one transaction."""
CHUNKS_AT_ONCE = 20
LOG = -2
"""Stands for the log in `serialize`."""
PROGRESS_S = 2.0


class _Origin:
    __slots__ = ("exchange", "routing_key")

    def __init__(self, exchange: str, routing_key: str) -> None:
        self.exchange = exchange
        self.routing_key = routing_key


class _Properties:
    is_persistent = True

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


class _Message:
    """A message with a row of its own, to be packed."""

    def __init__(self, row: StoredRow, origin: _Origin) -> None:
        raw = raw_properties_of(row)
        self.id = row.id
        self.size = len(row.body)
        self.copies = 1
        self.content = make_content(raw, row.body)
        self.origin = origin
        self.properties = _Properties(raw)
        self.stored: Chunk | Unwritten | None = None


def pack_rows(database: SqlDatabase, chunks: ChunkLog, rows: RowPort) -> int:
    """Move ready messages from their rows into the log. Return the number of damaged ones, which stay where they are."""
    progress = _Progress(database.path, "moved into the broker's log")
    after_id = damaged = 0
    while True:
        with database.transaction() as connection:
            up_to = rows.next_batch(connection, after_id, ROWS_AT_ONCE, BYTES_AT_ONCE)
            if up_to is None:
                break
            packed, set_aside_now = _pack_some(connection, chunks, rows, after_id, up_to)
        chunks.committed()
        progress.add(packed)
        damaged += set_aside_now
        after_id = up_to
    progress.end()
    return damaged


def _pack_some(connection: Connection, chunks: ChunkLog, rows: RowPort, after_id: int, up_to: int) -> tuple[int, int]:
    """Pack messages between two ids. Return how many there were, and how many are damaged."""
    damaged = 0
    origins: dict[tuple[str, str], _Origin] = {}
    entries: dict[int, Shared] = {}
    attempts: list[tuple[_Message, int, int]] = []
    for _, group in groupby(rows.ready(connection, after_id, up_to), lambda entry: entry[1].id):
        copies = list(group)
        row = copies[0][1]
        damage = damage_of(row)
        if damage is not None:
            damaged += 1
            for queue_id, _row in copies:
                report(row.id, name_of_queue(connection, queue_id), damage)
                rows.set_aside(connection, row.id, queue_id)
            continue
        origin = origins.setdefault((row.exchange, row.routing_key), _Origin(row.exchange, row.routing_key))
        message = _Message(row, origin)
        places: dict[int, Place] = {queue_id: (copy.priority, copy.expires_at) for queue_id, copy in copies}
        entries[message.id] = (message, places)
        attempts += [(message, queue_id, copy.attempts) for queue_id, copy in copies if copy.attempts]
    complete(chunks.append({}, entries))
    for message, queue_id, count in attempts:
        assert isinstance(message.stored, Chunk)
        chunks.returned(message.stored, queue_id, {message.id: count})
    rows.drop_ready(connection, after_id, up_to)
    return len(entries), damaged


def unpack_log(database: SqlDatabase, keys: RoutingKeys, rows: RowPort) -> None:
    """Move all messages from the broker's log into rows of their own."""
    with database.lock() as connection:
        if connection.execute("SELECT 1 FROM log_chunks LIMIT 1").fetchone() is None:
            return
    progress = _Progress(database.path, "taken from the broker's log")
    while True:
        with database.transaction() as connection:
            database.serialize(LOG)
            keys.forget()  # another process may have removed some since the last transaction
            number = _unpack_some(connection, keys, rows)
            if number is None:
                connection.execute("DELETE FROM log_chunks")
                rows.unpacked(connection)
                break
        progress.add(number)
    progress.end()


def _unpack_some(connection: Connection, keys: RoutingKeys, rows: RowPort) -> int | None:
    """Unpack some chunks and return the number of their messages, or None if there are no more."""
    connection.execute("DELETE FROM log_slices WHERE is_transient = 1 OR queue_id NOT IN (SELECT id FROM queues)")
    number, found = 0, _slices(connection, f"{COLUMNS} LIMIT {CHUNKS_AT_ONCE}")
    if not found:
        return None
    for chunk_id, first in {row.chunk_id: row for row in reversed(found)}.items():
        slices = _slices(connection, SLICES_OF_CHUNK, chunk_id) if first.is_shared else [first]
        number += _unpack(connection, keys, rows, chunk_id, slices)
        for row in slices:
            place = (row.queue_id, row.priority, row.first_id, chunk_id)
            connection.execute(
                "DELETE FROM log_slices WHERE queue_id = ? AND priority = ? AND first_id = ? AND chunk_id = ?", place
            )
        connection.execute("DELETE FROM log_chunks WHERE id = ?", (chunk_id,))
    return number


def _slices(connection: Connection, query: str, *parameters: int) -> list[SliceRow]:
    return [SliceRow(*row) for row in connection.execute(query, parameters)]


def _unpack(connection: Connection, keys: RoutingKeys, rows: RowPort, chunk_id: int, slices: Sequence[SliceRow]) -> int:
    header, content = connection.execute(READ_CHUNK, (chunk_id,)).fetchone()
    try:
        unpacked = UnpackedChunk(header, content)
    except DamagedChunkError as error:
        for row in slices:
            report_chunk(row.number, name_of_queue(connection, row.queue_id), str(error))
            rows.keep_damaged(connection, row.first_id, row.queue_id, "", keys.intern(""), header + content)
        return 0
    messages: dict[int, UnpackedMessage] = {}
    deliveries: list[UnpackedDelivery] = []
    contents, origins = unpacked.contents, unpacked.origins()
    for row in slices:
        for place, expires_at, attempts in _left(row, unpacked):
            message_id, message_content, (exchange, key) = unpacked.ids[place], contents[place], origins[place]
            key_id = keys.intern(key)
            damage = None if unpacked.is_intact else unpacked.damage(place)
            if damage is not None:
                report(message_id, name_of_queue(connection, row.queue_id), damage)
                rows.keep_damaged(connection, message_id, row.queue_id, exchange, key_id, message_content)
                continue
            if message_id not in messages:
                raw, body = raw_properties_in(message_content), body_of(message_content)
                number = checksum(exchange, key, raw, body)
                messages[message_id] = UnpackedMessage(message_id, exchange, key, key_id, raw, body, number)
            deliveries.append(UnpackedDelivery(message_id, row.queue_id, row.priority, attempts, expires_at))
    rows.unpack(connection, messages.values(), deliveries)
    return len(messages)


def _left(row: SliceRow, unpacked: UnpackedChunk) -> Iterator[tuple[int, int | None, int]]:
    """Yield the messages that a queue still has: place, expiry and attempts."""
    piece = row.slice()
    for place, message_id in enumerate(unpacked.ids):
        if not piece.gone >> place & 1:
            yield place, (piece.expiries[place] or None) if piece.expiries else None, piece.returns.get(message_id, 0)


class _Progress:
    """Logs how many messages were moved, if it takes a while."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._number = 0
        self._next = time.monotonic() + PROGRESS_S
        self._is_shown = False

    def add(self, number: int) -> None:
        self._number += number
        if time.monotonic() >= self._next:
            self._show()

    def end(self) -> None:
        if self._is_shown:
            self._show()

    def _show(self) -> None:
        log.info("%s: %d messages %s", self._path, self._number, self._what)
        self._next, self._is_shown = time.monotonic() + PROGRESS_S, True
