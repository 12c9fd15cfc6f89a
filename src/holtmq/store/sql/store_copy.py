"""Copies everything in a store to an empty one: first messages and streams, then the topology and the accounts.

The copy is made in transactions of some messages each, which also note how far it has come. If it is interrupted, the next
call continues there. Until its last transaction, the destination has a mark, with which nobody else can open it. A copy that
was complete already is compared with its source in full: its last answer may have been lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

from holtmq.errors import StoreError
from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.sql.copy_mark import COMPONENT, read_mark, remove_mark, set_mark
from holtmq.store.sql.sql_database import Connection

T = TypeVar("T")
MOST_AT_ONCE, MOST_BYTES = 2000, 16 * 1024 * 1024
"""Messages in one transaction."""
TABLES = {
    "exchanges": "vhost, name, type, durable, auto_delete, internal, arguments",
    "queues": "id, vhost, name, durable, auto_delete, exclusive, arguments, has_old_limit",
    "bindings": "id, vhost, source, destination_type, destination, routing_key, arguments, created_at, metadata",
    "policies": "vhost, name, pattern, apply_to, priority, definition",
    "parameters": "component, vhost, name, value",
    "users": "name, password_hash, hashing, tags",
    "permissions": '"user", vhost, configure, write, read',
    "topic_permissions": '"user", vhost, exchange, write, read',
    "stream_publishers": "queue_id, publisher, last_id",
    "stream_positions": "queue_id, name, next_offset",
}
"""What is copied at the end, in one transaction."""
SET_VHOST = "INSERT INTO vhosts (name, metadata) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET metadata = excluded.metadata"
PRIME = 1_000_000_007
"""Sums of ids are taken of remainders, which do not overflow."""
MEASURE_DELIVERIES = f"""
SELECT queue_id, state, count(*), sum(attempts), sum(message_id % {PRIME}), sum(coalesce(due_at, 0) % {PRIME})
FROM deliveries GROUP BY queue_id, state ORDER BY queue_id, state
"""
MEASURE_STREAMS = f"""
SELECT queue_id, count(*), sum(number), sum(size), sum(first_offset % {PRIME})
FROM stream_chunks GROUP BY queue_id ORDER BY queue_id
"""
CHUNK_COLUMNS = "queue_id, first_offset, number, size, total_size, total_chunks, first_at, last_at"
NEXT_CHUNK = f"""
SELECT {CHUNK_COLUMNS}, header, content FROM stream_chunks JOIN stream_contents ON stream_contents.id = chunk_id
WHERE queue_id > ? OR (queue_id = ? AND first_offset > ?) ORDER BY queue_id, first_offset LIMIT 1
"""
ADD_CONTENT = "INSERT INTO stream_contents (header, content) VALUES (?, ?) RETURNING id"
ADD_CHUNK = f"INSERT INTO stream_chunks ({CHUNK_COLUMNS}, chunk_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What is in the destination: by vhost and name, the number of messages in each state, or in a stream."""

    queues: dict[tuple[str, str], dict[int, int]]
    streams: dict[tuple[str, str], int]
    was_complete: bool = False
    """Whether an earlier call has copied everything."""

    @property
    def messages(self) -> int:
        return sum(sum(states.values()) for states in self.queues.values()) + sum(self.streams.values())


def copy_store(source: EmbeddedStore, target: EmbeddedStore, progress: Callable[[int, int], None]) -> CopyReport:
    """Copy a store to an empty one, or go on with a copy that was interrupted. Nobody else may have them open.

    A copy that is complete already stays as it is.
    """
    with source.database.transaction() as connection:
        source.messages.index_arrivals(connection)
    if read_mark(source.database) is not None:
        raise StoreError(f"{source.database.path} is an unfinished copy; finish that copy first, from where it was made")
    measure = _measure(source)
    total = sum(row[2] for row in measure["deliveries"]) + sum(row[1] for row in measure["streams"])
    if _is_complete(source, target, measure):
        progress(total, total)
        return _report(target, was_complete=True)
    mark = _begin(source, target, measure)
    progress(mark["done"], total)
    _copy_messages(source, target, mark, lambda: progress(mark["done"], total))
    _copy_streams(source, target, mark, lambda: progress(mark["done"], total))
    with target.database.transaction() as connection:
        _copy_tables(source, connection)
        target.messages.continue_ids(connection)
        found = _measure(target)
        if found != measure:
            raise StoreError(
                f"{target.database.path} is not what {source.database.path} is ({_difference(measure, found)}); nothing of it "
                "can be used: remove it, and start the copy again"
            )
    return _report(target)


def _is_complete(source: EmbeddedStore, target: EmbeddedStore, measure: dict[str, Any]) -> bool:
    """Return whether the destination has everything already, and nothing else. What is equal in number is compared in full."""
    if not any(measure["tables"].values()) or read_mark(target.database) is not None or _measure(target) != measure:
        return False
    return _tables(source) == _tables(target) and all(
        ours == theirs
        for contents in (_messages, _stream_chunks)
        for ours, theirs in zip_longest(contents(source), contents(target))
    )


def _tables(store: EmbeddedStore) -> list[set[Any]]:
    queries = ["SELECT name, metadata FROM vhosts", *(f"SELECT {columns} FROM {table}" for table, columns in TABLES.items())]
    with store.database.lock() as connection:
        return [set(connection.execute(query).fetchall()) for query in queries]


def _messages(store: EmbeddedStore) -> Iterator[Any]:
    return store.messages.export(0)


def _stream_chunks(store: EmbeddedStore) -> Iterator[Any]:
    return _chunks(store, 0, -1)


def _begin(source: EmbeddedStore, target: EmbeddedStore, measure: dict[str, Any]) -> dict[str, Any]:
    """Return how far an interrupted copy has come, or the beginning of one."""
    mark = read_mark(target.database)
    held = _measure(target)
    if any(held["tables"].values()) or (mark is None and (held["deliveries"] or held["streams"])):
        raise StoreError(f"{target.database.path} has content of its own; expected an empty file or schema to copy to")
    if mark is None:
        return {"measure": measure, "done": 0, "message": 0, "chunk": [0, -1]}
    if mark["measure"] != measure:
        raise StoreError(
            f"{target.database.path} holds a copy that was interrupted, and {source.database.path} is not its source or has "
            "changed since; remove the destination and start again"
        )
    return mark


def _copy_messages(source: EmbeddedStore, target: EmbeddedStore, mark: dict[str, Any], noted: Callable[[], None]) -> None:
    found = source.messages.export(mark["message"])
    for batch in _batches(found, lambda message: len(message.body)):
        with target.database.transaction() as connection:
            target.messages.restore(connection, batch)
            mark["message"] = batch[-1].id
            mark["done"] += sum(len(message.deliveries) for message in batch)
            set_mark(connection, mark)
        noted()


def _copy_streams(source: EmbeddedStore, target: EmbeddedStore, mark: dict[str, Any], noted: Callable[[], None]) -> None:
    for batch in _batches(_chunks(source, *mark["chunk"]), lambda row: len(row[-1])):
        with target.database.transaction() as connection:
            for *place, header, content in batch:
                (chunk_id,) = connection.execute(ADD_CONTENT, (header, content)).fetchone()
                connection.execute(ADD_CHUNK, (*place, chunk_id))
            mark["chunk"] = list(batch[-1][:2])
            mark["done"] += len(batch)
            set_mark(connection, mark)
        noted()


def _chunks(source: EmbeddedStore, queue_id: int, first_offset: int) -> Iterator[Any]:
    while True:
        with source.database.lock() as connection:
            row = connection.execute(NEXT_CHUNK, (queue_id, queue_id, first_offset)).fetchone()
        if row is None:
            return
        yield row
        queue_id, first_offset, *_ = row


def _copy_tables(source: EmbeddedStore, connection: Connection) -> None:
    remove_mark(connection)
    with source.database.lock() as reading:
        connection.executemany(SET_VHOST, reading.execute("SELECT name, metadata FROM vhosts").fetchall())
        for table, columns in TABLES.items():
            marks = ", ".join("?" * len(columns.split(",")))
            rows = reading.execute(f"SELECT {columns} FROM {table}").fetchall()
            connection.executemany(f"INSERT INTO {table} ({columns}) VALUES ({marks})", rows)
    connection.execute("UPDATE state SET topology_version = topology_version + 1")


def _measure(store: EmbeddedStore) -> dict[str, Any]:
    """Return what two equal stores have in common, and what tells two that are not equal apart."""
    with store.database.lock() as connection:
        tables = {}
        for table in TABLES:
            which = f" WHERE component <> '{COMPONENT}'" if table == "parameters" else ""
            ((tables[table],),) = connection.execute(f"SELECT count(*) FROM {table}{which}").fetchall()
        return {
            "tables": tables,
            "deliveries": [list(row) for row in connection.execute(MEASURE_DELIVERIES).fetchall()],
            "streams": [list(row) for row in connection.execute(MEASURE_STREAMS).fetchall()],
        }


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    part = next(part for part in expected if expected[part] != found[part])
    return f"{part}: {found[part]}, expected {expected[part]}"


def _report(store: EmbeddedStore, *, was_complete: bool = False) -> CopyReport:
    with store.database.lock() as connection:
        names = {row[0]: (row[1], row[2]) for row in connection.execute("SELECT id, vhost, name FROM queues").fetchall()}
        queues: dict[tuple[str, str], dict[int, int]] = {}
        for queue_id, state, number, *_ in connection.execute(MEASURE_DELIVERIES).fetchall():
            queues.setdefault(names[queue_id], {})[state] = number
        streams = {names[row[0]]: row[2] for row in connection.execute(MEASURE_STREAMS).fetchall()}
    empty: dict[tuple[str, str], dict[int, int]] = {
        name: {} for name in names.values() if name not in queues and name not in streams
    }
    return CopyReport({**queues, **empty}, streams, was_complete)


def _batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    batch: list[T] = []
    size = 0
    for item in items:
        batch.append(item)
        size += size_of(item)
        if len(batch) >= MOST_AT_ONCE or size >= MOST_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
