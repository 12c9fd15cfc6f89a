"""Messages and their deliveries in a SQLite file: append, claim, settle. The rules of queues are the caller's.

A put appends one row to `messages` and nothing else. Deliveries and their indexes are made for many messages at once, by
the first reader (`index_arrivals`). Methods take the connection of the caller's transaction, and the time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from holtmq.errors import NotAStoreError
from holtmq.queueing.terms import Terms
from holtmq.store.checksum import damage_of, json_checksum
from holtmq.store.message_port import MANY_KEYS
from holtmq.store.records import ID_CLOCK_BITS, DeliveryState, NewMessage, QueueHead, StoredMessage
from holtmq.store.sql.copied_message import CopiedDelivery, CopiedMessage
from holtmq.store.sql.damage import report
from holtmq.store.sql.keys import Frontier, KeyPattern, RoutingKeys
from holtmq.store.sqlite.damaged_text import reading_damaged_text
from holtmq.store.sqlite.database import SqliteDatabase

LOOK_AHEAD = 4000
LOOK_STEP = 10


NEXT_ID = "max(?, (SELECT coalesce(max(id), 0) + 1 FROM messages), (SELECT indexed_to + 1 FROM state))"
APPEND = f"INSERT INTO messages VALUES ({NEXT_ID}, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, 0, ?)"
# An exchange is never null: where topology or keys are of another version the statement fails, and nothing is written.
CURRENT_EXCHANGE = "(SELECT ? FROM state WHERE topology_version = ? AND keys_version = ?)"
APPEND_IF_CURRENT = f"INSERT INTO messages VALUES ({NEXT_ID}, ?, {CURRENT_EXCHANGE}, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, 0, ?)"
APPEND_PLAIN = f"""
INSERT INTO messages VALUES (
    {NEXT_ID.replace("?", f"?1 << {ID_CLOCK_BITS}")},
    ?2, (SELECT '' FROM state WHERE topology_version = ?3 AND keys_version = ?4), ?5, 0, ?1,
    NULL, NULL, NULL, ?6, ?7, NULL, NULL, 0, ?8
)
"""
DELIVER = "INSERT OR IGNORE INTO deliveries VALUES (?, ?, ?, ?, ?, 0, ?, ?, NULL, NULL)"
# A row that was damaged may have a value of any type. It must not keep the others from being indexed.
INDEX_ARRIVALS = """
INSERT INTO deliveries
SELECT id, CAST(queue_id AS INTEGER), CASE WHEN due_at IS NULL THEN 0 ELSE 5 END, ifnull(CAST(priority AS INTEGER), 0),
    ifnull(CAST(key_id AS INTEGER), 0), ifnull(CAST(attempts AS INTEGER), 0), CAST(due_at AS INTEGER),
    CAST(expires_at AS INTEGER), NULL, NULL
FROM messages WHERE id > ? AND queue_id IS NOT NULL
"""
MARK_INDEXED = """
UPDATE state SET indexed_to = ?,
    order_version = order_version + EXISTS (SELECT 1 FROM messages WHERE id > ? AND priority > 0 AND queue_id IS NOT NULL)
"""
CHANGE_ORDER = "UPDATE state SET order_version = order_version + 1"
READY_IN_ORDER = """
SELECT message_id, key_id, priority FROM deliveries INDEXED BY ready
WHERE queue_id = ? AND state = 0 ORDER BY priority DESC, message_id LIMIT ?
"""
READY_AFTER = """
SELECT * FROM (
    SELECT message_id, key_id, priority FROM deliveries INDEXED BY ready
    WHERE queue_id = ? AND state = 0 AND priority = ? AND message_id > ? ORDER BY message_id LIMIT ?
)
UNION ALL
SELECT * FROM (
    SELECT message_id, key_id, priority FROM deliveries INDEXED BY ready
    WHERE queue_id = ? AND state = 0 AND priority < ? ORDER BY priority DESC, message_id LIMIT ?
)
LIMIT ?
"""
FIRST_OF_KEYS = """
SELECT heads.message_id, heads.priority FROM json_each(?) AS wanted CROSS JOIN deliveries AS heads
ON heads.queue_id = ? AND heads.message_id IN (
    SELECT message_id FROM deliveries INDEXED BY ready_by_key WHERE queue_id = ? AND state = 0 AND key_id = wanted.value
    ORDER BY priority DESC, message_id LIMIT ?
)
ORDER BY heads.priority DESC, heads.message_id LIMIT ?
"""
READ = """
SELECT message_id, routing_keys.key, exchange, deliveries.priority, state, deliveries.attempts, created_at, deliveries.due_at,
       deliveries.expires_at, locked_at, settled_at, headers, properties, body, raw_properties, checksum
FROM deliveries LEFT JOIN messages ON messages.id = message_id LEFT JOIN routing_keys ON routing_keys.id = messages.key_id
WHERE deliveries.queue_id = ?
"""
READ_ONE = READ + " AND message_id = ?"
READ_FIRST = (
    READ.replace("deliveries.queue_id = ?", "deliveries.queue_id = ?1")
    + """
AND state = 0 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE queue_id = ?1 AND due_at <= ?2)
ORDER BY deliveries.priority DESC, message_id LIMIT 1
"""
)
ATTEMPTS = 5
"""Its place in a row of READ."""
LOCK = "UPDATE deliveries SET state = 1, attempts = ?, due_at = ?, locked_at = ? WHERE message_id = ? AND queue_id = ?"
FREE_MESSAGE = "DELETE FROM messages WHERE id = ? AND NOT EXISTS (SELECT 1 FROM deliveries WHERE message_id = ?)"
LONG_DONE = "SELECT message_id FROM deliveries WHERE queue_id = ? AND state = 2 AND settled_at < ? LIMIT 10"
MEASURE = """
SELECT count(*), coalesce(sum(length(body)), 0)
FROM deliveries JOIN messages ON messages.id = message_id WHERE deliveries.queue_id = ? AND state = 0
"""
HEAD = """
SELECT message_id, expires_at FROM deliveries INDEXED BY ready
WHERE queue_id = ? AND state = 0 AND priority = ? ORDER BY message_id LIMIT 1
"""
QUEUES_WITH_EXPIRED = """
SELECT DISTINCT queue_id FROM deliveries INDEXED BY expiring WHERE expires_at IS NOT NULL AND expires_at < ? AND state = 0
"""
NEXT_EXPIRY = """
SELECT min(expires_at) FROM deliveries INDEXED BY expiring WHERE expires_at IS NOT NULL AND expires_at >= ? AND state = 0
"""
MINE = "WHERE message_id = ? AND queue_id = ? AND state = 1 AND attempts = ?"
REMOVE_MINE = f"DELETE FROM deliveries {MINE}"
GIVE_BACK_MINE = f"UPDATE deliveries SET state = 0, attempts = attempts - 1, due_at = NULL, locked_at = NULL {MINE}"
HIGHEST_PRIORITY = 255
CONTENTS = """
SELECT messages.id, key, created_at, exchange, headers, properties, raw_properties, body, checksum
FROM messages LEFT JOIN routing_keys ON routing_keys.id = key_id WHERE messages.id > ? ORDER BY messages.id
"""
DELIVERIES = """
SELECT queue_id, state, priority, attempts, due_at, expires_at, locked_at, settled_at
FROM deliveries WHERE message_id = ? ORDER BY queue_id
"""
RESTORE_CONTENT = """
INSERT INTO messages (id, exchange, key_id, priority, created_at, headers, properties, body, raw_properties, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class SqliteMessageStore:
    def __init__(self, database: SqliteDatabase, keys: RoutingKeys) -> None:
        self._database = database
        self._keys = keys
        self._measured: dict[int, tuple[tuple[int, int], int, int]] = {}
        """By queue: when it was measured, its ready messages and their bytes."""
        database.on_rollback.append(self.forget)

    def append_alone(self, message: NewMessage, queue_id: int, now_ms: int, versions: tuple[int, int]) -> int | None:
        """Put a message into a queue, as a transaction of its own. Return None if the topology or the keys have changed."""
        clock_id, queue, exchange, *others = message.row(queue_id, now_ms)
        return self._insert(APPEND_IF_CURRENT, (clock_id, queue, exchange, *versions, *others))

    def append_plain(
        self,
        key_id: int,
        key: str,
        properties: str | None,
        body: bytes,
        queue_id: int,
        now_ms: int,
        versions: tuple[int, int],
    ) -> int | None:
        """Put a message without headers, priority, expiry and delay into a queue, as `append_alone`.

        It is as fast as can be (benchmarks/embedded.py). Binding a parameter takes as long as storing it.
        """
        number = json_checksum("", key, None, properties, body)
        return self._insert(APPEND_PLAIN, (now_ms, queue_id, *versions, key_id, properties, body, number))

    def _insert(self, statement: str, values: tuple[object, ...]) -> int | None:
        if not self._database.waits_for_disk:
            return self._database.insert_alone(statement, values)

        def insert(connection: sqlite3.Connection) -> int | None:
            try:
                return connection.execute(statement, values).lastrowid
            except sqlite3.IntegrityError:
                return None

        return self._database.together(insert)

    def append(self, connection: sqlite3.Connection, message: NewMessage, queue_id: int, now_ms: int) -> int:
        message_id = connection.execute(APPEND, message.row(queue_id, now_ms)).lastrowid
        assert message_id is not None
        self.index_arrivals(connection)
        return message_id

    def append_many(
        self,
        connection: sqlite3.Connection,
        contents: Sequence[tuple[int, str | None, bytes, int]],
        queue_id: int,
        now_ms: int,
        expires_at: int | None,
    ) -> range:
        """Put messages (key id, properties, body, checksum) into a queue, in order, with consecutive ids.

        The arguments are plain tuples instead of `NewMessage` for the sake of bulk loads (benchmarks/embedded.py).
        """
        if not contents:
            return range(0)
        key_id, properties, body, checksum = contents[0]
        first = (queue_id, "", key_id, 0, now_ms, None, expires_at, None, properties, body, None, checksum)
        first_id = connection.execute(APPEND, (now_ms << ID_CLOCK_BITS, *first)).lastrowid
        assert first_id is not None
        # Values shared by all rows are part of the statement, as integers of our own: fewer parameters to bind for each row.
        same = int(queue_id), int(now_ms), "NULL" if expires_at is None else int(expires_at)
        statement = "INSERT INTO messages VALUES (NULL, {}, '', ?, 0, {}, NULL, {}, NULL, ?, ?, NULL, NULL, 0, ?)".format(*same)
        connection.executemany(statement, contents[1:])  # a null id is the last one plus one
        self.index_arrivals(connection)
        return range(first_id, first_id + len(contents))

    def publish(
        self,
        connection: sqlite3.Connection,
        message: NewMessage,
        deliveries: Iterable[tuple[int, Terms]],
        now_ms: int,
    ) -> int:
        """Put a message into several queues, each with its own priority and expiry. The body is stored once."""
        message_id = connection.execute(APPEND, message.row(None, now_ms)).lastrowid
        assert message_id is not None
        state = DeliveryState.READY if message.due_at is None else DeliveryState.DELAYED
        rows = [
            (message_id, queue_id, state, terms.priority, message.key_id, message.due_at, terms.expires_at)
            for queue_id, terms in deliveries
        ]
        connection.executemany(DELIVER, rows)
        if any(row[3] for row in rows):
            connection.execute(CHANGE_ORDER)
        return message_id

    def skip_id(self, connection: sqlite3.Connection, now_ms: int) -> int:
        """Return an id for a message that is stored elsewhere. No other message gets it."""
        self.index_arrivals(connection)
        (message_id,) = connection.execute(f"SELECT {NEXT_ID}", (now_ms << ID_CLOCK_BITS,)).fetchone()
        connection.execute("UPDATE state SET indexed_to = ?", (message_id,))
        return int(message_id)

    def index_arrivals(self, connection: sqlite3.Connection) -> None:
        """Create the deliveries of messages that were only appended so far."""
        indexed_to, newest = connection.execute("SELECT indexed_to, (SELECT max(id) FROM messages) FROM state").fetchone()
        if newest is None or newest <= indexed_to:
            return
        try:
            connection.execute(INDEX_ARRIVALS, (indexed_to,))
        except sqlite3.IntegrityError as error:
            raise NotAStoreError(
                f"{self._database.path} is damaged: a message has another id than the one it was stored with ({error}); "
                "check the system log for disk errors, and restore a backup"
            ) from error
        connection.execute(MARK_INDEXED, (newest, indexed_to))

    def release_due(
        self, connection: sqlite3.Connection, queue_id: int, now_ms: int, delivery_limit: int | None
    ) -> tuple[int, list[int]]:
        """Make delayed messages and those with an expired lease ready.

        Return their number, and the ids of those over the delivery limit.
        """
        due = connection.execute("SELECT 1 FROM deliveries WHERE queue_id = ? AND due_at <= ? LIMIT 1", (queue_id, now_ms))
        if due.fetchone() is None:
            return 0, []
        exhausted = connection.execute(
            "SELECT message_id FROM deliveries WHERE queue_id = ? AND due_at <= ? AND state = 1 AND attempts > ?",
            (queue_id, now_ms, delivery_limit if delivery_limit is not None else 2**62),
        ).fetchall()
        released = connection.execute(
            "UPDATE deliveries SET state = 0, due_at = NULL, locked_at = NULL WHERE queue_id = ? AND due_at <= ?",
            (queue_id, now_ms),
        ).rowcount
        connection.execute(CHANGE_ORDER)
        return released, [message_id for (message_id,) in exhausted]

    def next_due(self, queue_id: int) -> int | None:
        """Return when the next delayed message becomes ready, or the next lease expires."""
        query = "SELECT min(due_at) FROM deliveries WHERE queue_id = ? AND due_at IS NOT NULL"
        with self._database.lock() as connection:
            return connection.execute(query, (queue_id,)).fetchone()[0]  # type: ignore[no-any-return]

    def claim_first(self, queue_id: int, patterns: Sequence[str] | None, now_ms: int, lease_until: int) -> StoredMessage | None:
        """Lock the first message, if it is indexed as ready and none is to be released before it. Not with patterns."""
        if patterns is not None:
            return None
        connection = self._database.connection  # of the caller's transaction
        with reading_damaged_text(connection):
            row = connection.execute(READ_FIRST, (queue_id, now_ms)).fetchone()
        if row is None:
            return None
        connection.execute(LOCK, (row[ATTEMPTS] + 1, lease_until, now_ms, row[0], queue_id))
        return self._verified(queue_id, _locked(row, now_ms, lease_until))

    def claim(
        self,
        connection: sqlite3.Connection,
        queue_id: int,
        patterns: Sequence[str] | None,
        limit: int,
        now_ms: int,
        lease_until: int,
        *,
        keeps_retried_apart: bool = False,
    ) -> list[StoredMessage]:
        """Lock the first ready messages, in order; with patterns, only those whose key matches one of them.

        With `keeps_retried_apart`, a message that was delivered before is not claimed together with others: if it kills its
        consumer again, that does not count as an attempt for them.
        """
        ids = self.find_ready(connection, queue_id, patterns, limit)
        rows = self._rows(connection, queue_id, ids)
        if keeps_retried_apart:
            rows = list(takewhile(lambda row: row[ATTEMPTS] == 0, rows)) or rows[:1]
        # To read rows and change them by their keys takes less than to let SQLite return what it has changed.
        connection.executemany(LOCK, [(row[ATTEMPTS] + 1, lease_until, now_ms, row[0], queue_id) for row in rows])
        return [self._verified(queue_id, _locked(row, now_ms, lease_until)) for row in rows]

    def find_ready(
        self, connection: sqlite3.Connection, queue_id: int, patterns: Sequence[str] | None, limit: int
    ) -> list[int]:
        """Return the ids of the first ready messages. With patterns the list may be incomplete, but not empty if any match."""
        if patterns is None:
            return [row[0] for row in connection.execute(READY_IN_ORDER, (queue_id, limit))]
        pattern = self._keys.matching(patterns)
        if not pattern.key_ids:
            return []
        if len(pattern.key_ids) < MANY_KEYS:
            return [message_id for message_id, _ in _first_of_keys(connection, queue_id, pattern, limit)]
        return self._scan_ready(connection, queue_id, pattern, limit)

    def first_ready(self, connection: sqlite3.Connection, queue_id: int) -> int | None:
        found = connection.execute(READY_IN_ORDER, (queue_id, 1)).fetchone()
        return found[0] if found else None

    def _scan_ready(self, connection: sqlite3.Connection, queue_id: int, pattern: KeyPattern, limit: int) -> list[int]:
        """Scan the ready messages in order, starting where the previous scan stopped finding matches.

        If none is found within `LOOK_AHEAD`, look up each key: the cost of that does not depend on the queue's length.
        """
        (order_version,) = connection.execute("SELECT order_version FROM state").fetchone()
        frontier = pattern.frontiers.get(queue_id)
        if frontier is None or frontier.order_version != order_version:
            frontier = Frontier(order_version, HIGHEST_PRIORITY, 0)
        found: list[int] = []
        seen, step = 0, max(LOOK_STEP, limit)
        while seen < LOOK_AHEAD and not found:
            same_priority = (queue_id, frontier.priority, frontier.message_id, step)
            below = (queue_id, frontier.priority, step, step)
            rows = connection.execute(READY_AFTER, same_priority + below).fetchall()
            found = [message_id for message_id, key_id, _ in rows if key_id in pattern.as_set]
            seen += len(rows)
            if len(rows) < step and not found:
                return []
            step *= 4
            last, _, priority = rows[-1]
            if not found:
                frontier = Frontier(order_version, priority, last)
        if not found:
            firsts = _first_of_keys(connection, queue_id, pattern, 1)
            if not firsts:
                return []
            ((first, priority),) = firsts
            found, frontier = [first], Frontier(order_version, priority, first - 1)
        pattern.frontiers[queue_id] = frontier
        return found[:limit]

    def read(self, queue_id: int, message_ids: Sequence[int]) -> list[StoredMessage]:
        """Return messages of a queue by their ids, in that order, without those that do not exist.

        One that is found to be damaged is set aside, and returned in this state.
        """
        with self._database.lock() as connection:
            rows = self._rows(connection, queue_id, message_ids)
        return [self._verified(queue_id, StoredMessage(*row)) for row in rows]

    def _rows(self, connection: sqlite3.Connection, queue_id: int, message_ids: Sequence[int]) -> list[tuple[Any, ...]]:
        with reading_damaged_text(connection):
            rows = [connection.execute(READ_ONE, (queue_id, message_id)).fetchone() for message_id in message_ids]
        return [row for row in rows if row is not None]

    def find(
        self, queue_id: int, states: Sequence[DeliveryState], limit: int, locked_before_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a queue in the given states, oldest first."""
        query = (
            READ + " AND state IN (SELECT value FROM json_each(?)) AND (? IS NULL OR locked_at < ?) ORDER BY message_id LIMIT ?"
        )
        parameters = (queue_id, json.dumps(states), locked_before_ms, locked_before_ms, limit)
        with self._database.lock() as connection, reading_damaged_text(connection):
            rows = connection.execute(query, parameters).fetchall()
        return [self._verified(queue_id, StoredMessage(*row)) for row in rows]

    def _verified(self, queue_id: int, stored: StoredMessage) -> StoredMessage:
        damage = damage_of(stored)
        if damage is None:
            return stored
        if stored.state != DeliveryState.DAMAGED:
            with self._database.transaction() as connection:
                now_ms = int(self._database.clock() * 1000)
                self.set_state(connection, queue_id, stored.id, DeliveryState.DAMAGED, settled_at=now_ms)
                (queue,) = connection.execute("SELECT name FROM queues WHERE id = ?", (queue_id,)).fetchone()
            report(stored.id, queue, damage)
        return stored.as_damaged()

    def count(self, queue_id: int) -> dict[DeliveryState, int]:
        """Return the number of messages of a queue in each state."""
        with self._database.lock() as connection:
            rows = connection.execute("SELECT state, count(*) FROM deliveries WHERE queue_id = ? GROUP BY state", (queue_id,))
            return {DeliveryState(state): number for state, number in rows}

    def measure(self, connection: sqlite3.Connection, queue_id: int) -> tuple[int, int]:
        """Return the number of ready messages of a queue and the bytes of their bodies.

        A queue with a length limit is measured at every put. The result is kept until something changes the file.
        """
        known = self._measured.get(queue_id)
        if known is not None and known[0] == self._change_mark(connection):
            return known[1], known[2]
        count, size = connection.execute(MEASURE, (queue_id,)).fetchone()
        self.remember_measure(connection, queue_id, count, size)
        return count, size

    def remember_measure(self, connection: sqlite3.Connection, queue_id: int, count: int, size: int) -> None:
        """Keep the measure of a queue as it is after the changes that the caller has just made."""
        self._measured[queue_id] = (self._change_mark(connection), count, size)

    def grow_measure(self, connection: sqlite3.Connection, queue_id: int, count: int, size: int) -> None:
        """Add messages to a measure that was taken in this transaction, before the caller added just these messages."""
        _, known_count, known_size = self._measured[queue_id]
        self.remember_measure(connection, queue_id, known_count + count, known_size + size)

    def _change_mark(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """Return a value that changes with every change of the file, by this process or another."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        return version, connection.total_changes

    def forget(self) -> None:
        """Discard all cached measures, because a transaction was rolled back."""
        self._measured.clear()

    def head(self, connection: sqlite3.Connection, queue_id: int, priority: int) -> QueueHead | None:
        """Return the first ready message of a priority."""
        row = connection.execute(HEAD, (queue_id, priority)).fetchone()
        return QueueHead(*row) if row else None

    def queues_with_expired(self, connection: sqlite3.Connection, now_ms: int) -> list[int]:
        """Return the ids of the queues that have ready messages whose TTL has passed."""
        return [queue_id for (queue_id,) in connection.execute(QUEUES_WITH_EXPIRED, (now_ms,))]

    def next_expiry(self, now_ms: int) -> int | None:
        """Return the time at which the next ready message of any queue expires."""
        with self._database.lock() as connection:
            return connection.execute(NEXT_EXPIRY, (now_ms,)).fetchone()[0]  # type: ignore[no-any-return]

    def remove_all_mine(self, connection: sqlite3.Connection, queue_id: int, locked: Sequence[tuple[int, int]]) -> set[int]:
        mine = set()
        for message_id, attempts in locked:
            if connection.execute(REMOVE_MINE, (message_id, queue_id, attempts)).rowcount == 1:
                connection.execute(FREE_MESSAGE, (message_id, message_id))
                mine.add(message_id)
        return mine

    def give_back_mine(self, connection: sqlite3.Connection, queue_id: int, locked: Iterable[tuple[int, int]]) -> None:
        """Make messages that the caller has locked (id, attempts) ready again, as if they had not been claimed."""
        connection.executemany(GIVE_BACK_MINE, [(message_id, queue_id, attempts) for message_id, attempts in locked])
        connection.execute(CHANGE_ORDER)

    def is_mine(self, connection: sqlite3.Connection, queue_id: int, message_id: int, attempts: int) -> bool:
        """Return whether the caller still holds the lock of a message."""
        row = connection.execute(f"SELECT 1 FROM deliveries {MINE}", (message_id, queue_id, attempts)).fetchone()
        return row is not None

    def hold(self, connection: sqlite3.Connection, queue_id: int, message_id: int) -> None:
        """Do nothing: a transaction keeps all others out."""

    def settle_mine(
        self,
        connection: sqlite3.Connection,
        queue_id: int,
        message_id: int,
        attempts: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> bool:
        """Change the state of a message that the caller has locked. Return False if the caller no longer holds the lock."""
        changed = connection.execute(
            f"UPDATE deliveries SET state = ?, due_at = ?, settled_at = ? {MINE}",
            (state, due_at, settled_at, message_id, queue_id, attempts),
        )
        if state == DeliveryState.READY:
            connection.execute(CHANGE_ORDER)
        return changed.rowcount == 1

    def remove(self, connection: sqlite3.Connection, queue_id: int, message_id: int) -> None:
        connection.execute("DELETE FROM deliveries WHERE message_id = ? AND queue_id = ?", (message_id, queue_id))
        connection.execute(FREE_MESSAGE, (message_id, message_id))

    def set_state(
        self,
        connection: sqlite3.Connection,
        queue_id: int,
        message_id: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> None:
        connection.execute(
            "UPDATE deliveries SET state = ?, due_at = ?, settled_at = ?, locked_at = NULL "
            "WHERE message_id = ? AND queue_id = ?",
            (state, due_at, settled_at, message_id, queue_id),
        )
        connection.execute(CHANGE_ORDER)

    def delete(
        self,
        connection: sqlite3.Connection,
        queue_id: int,
        states: Sequence[DeliveryState],
        settled_before_ms: int | None = None,
    ) -> int:
        """Remove the messages of a queue in the given states, optionally only those settled before a time."""
        removed = connection.execute(
            "DELETE FROM deliveries WHERE queue_id = ? AND state IN (SELECT value FROM json_each(?)) "
            "AND (? IS NULL OR settled_at < ?) RETURNING message_id",
            (queue_id, json.dumps(states), settled_before_ms, settled_before_ms),
        ).fetchall()
        connection.executemany(FREE_MESSAGE, [(message_id, message_id) for (message_id,) in removed])
        return len(removed)

    def forget_done(self, connection: sqlite3.Connection, queue_id: int, settled_before_ms: int) -> None:
        """Remove a few messages that were acknowledged before this time. Called at every acknowledgement, it keeps up."""
        for (message_id,) in connection.execute(LONG_DONE, (queue_id, settled_before_ms)).fetchall():
            self.remove(connection, queue_id, message_id)

    def export(self, after_id: int) -> Iterator[CopiedMessage]:
        """Iterate over all messages with higher ids, in their order. Nobody else uses the store meanwhile."""
        with self._database.lock() as connection:
            for row in connection.execute(CONTENTS, (after_id,)):
                deliveries = connection.execute(DELIVERIES, (row[0],)).fetchall()
                yield CopiedMessage._make((*row, tuple(map(CopiedDelivery._make, deliveries))))

    def restore(self, connection: sqlite3.Connection, messages: Sequence[CopiedMessage]) -> None:
        """Add messages as they are, with their ids, to a store that does not have them."""
        contents, deliveries = [], []
        for message in messages:
            key_id = 0 if message.key is None else self._keys.intern(message.key)
            contents.append((
                message.id, message.exchange, key_id, 0, message.created_at, message.headers, message.properties, message.body,
                message.raw_properties, message.checksum,
            ))  # fmt: skip
            deliveries += [(message.id, each[0], each.state, each.priority, key_id, *each[3:]) for each in message.deliveries]
        connection.executemany(RESTORE_CONTENT, contents)
        connection.executemany("INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", deliveries)

    def continue_ids(self, connection: sqlite3.Connection) -> None:
        """Mark all messages as indexed. SQLite continues after the highest ids by itself."""
        connection.execute("UPDATE state SET indexed_to = max(indexed_to, (SELECT ifnull(max(id), 0) FROM messages))")

    def remove_unused(self, connection: sqlite3.Connection) -> None:
        """Do nothing: what no queue has any more is removed at once."""


def _locked(row: tuple[Any, ...], now_ms: int, lease_until: int) -> StoredMessage:
    """Return a message that was ready when it was read, and is locked now."""
    message_id, key, exchange, priority, _, attempts, created_at, _, expires_at, _, settled_at, *content = row
    known = (message_id, key, exchange, priority, DeliveryState.LOCKED, attempts + 1, created_at, lease_until, expires_at)
    return StoredMessage(*known, now_ms, settled_at, *content)


def _first_of_keys(connection: sqlite3.Connection, queue_id: int, pattern: KeyPattern, limit: int) -> list[tuple[int, int]]:
    """Return the first ready messages with one of the keys, and their priorities. The cost does not depend on the backlog."""
    return connection.execute(FIRST_OF_KEYS, (pattern.as_json, queue_id, queue_id, limit, limit)).fetchall()
