"""Messages and their deliveries in PostgreSQL: append, claim, settle. The rules of queues are the caller's.

Workers take messages side by side: what one is about to lock, the others skip. A put, a pop and an acknowledgement are a
statement each. Methods take the connection of the caller's transaction, and the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any

from holtmq.queueing.terms import Terms
from holtmq.store.checksum import damage_of
from holtmq.store.message_port import MANY_KEYS, SETTLED_AT_ONCE
from holtmq.store.postgres.postgres_connection import PostgresConnection
from holtmq.store.postgres.postgres_database import PostgresDatabase
from holtmq.store.postgres.statements import load
from holtmq.store.records import DeliveryState, NewMessage, QueueHead, StoredMessage
from holtmq.store.sql.copied_message import CONTENT_COLUMNS, CopiedDelivery, CopiedMessage
from holtmq.store.sql.damage import name_of_queue, report
from holtmq.store.sql.keys import KeyPattern, RoutingKeys

SQL = load("statements.sql")
FIRST_STEP, GROWTH = 10, 4
"""Ready messages that are looked at in one statement, and how much that grows from one statement to the next."""
FAR = 3400
"""Ready messages that are looked at, in order, before each key is looked up."""
NEAR = 200
"""Those that are looked at before a transaction begins, in which it all starts again, unless the last match was further."""
AMONG = 8
"""Messages of which a statement claims the first that no other process is about to lock."""
TRIES = (4, 64, 1024)
"""How many times as many messages are looked up as are wanted, because other processes may be about to lock the first ones."""


class PostgresMessageStore:
    def __init__(self, database: PostgresDatabase, keys: RoutingKeys) -> None:
        self._database = database
        self._keys = keys
        self._measured: dict[int, tuple[int, int, int]] = {}
        """By queue: its measure, and the number of statements that had been executed when it was true."""

    def append_alone(self, message: NewMessage, queue_id: int, now_ms: int, versions: tuple[int, int]) -> int | None:
        """Put a message into a queue, as a transaction of its own. Return None if the topology or the keys have changed."""
        values = (*_values(message, queue_id, now_ms), *versions)
        rows = self._database.together(lambda connection: connection.fetch(SQL["append"], *values), is_single=True)
        return rows[0][0] if rows else None

    def append_plain(
        self, key_id: int, key: str, properties: str | None, body: bytes, queue_id: int, now_ms: int, versions: tuple[int, int]
    ) -> int | None:
        """Put a message without headers, priority, expiry and delay into a queue, as `append_alone`."""
        return self.append_alone(NewMessage(key_id, key, body, properties=properties), queue_id, now_ms, versions)

    def append(self, connection: PostgresConnection, message: NewMessage, queue_id: int, now_ms: int) -> int:
        ((message_id,),) = connection.fetch(SQL["append"], *_values(message, queue_id, now_ms), None, None)
        return int(message_id)

    def append_many(
        self,
        connection: PostgresConnection,
        contents: Sequence[tuple[int, str | None, bytes, int]],
        queue_id: int,
        now_ms: int,
        expires_at: int | None,
    ) -> Sequence[int]:
        """Put messages (key id, properties, body, checksum) into a queue, in order."""
        if not contents:
            return range(0)
        columns = map(list, zip(*contents, strict=True))
        found = connection.fetch(SQL["append_many"], queue_id, now_ms, expires_at, *columns)
        return [message_id for (message_id,) in found]

    def publish(
        self, connection: PostgresConnection, message: NewMessage, deliveries: Iterable[tuple[int, Terms]], now_ms: int
    ) -> int:
        """Put a message into several queues, each with its own priority and expiry. The body is stored once."""
        targets = list(deliveries)
        if len(targets) == 1:
            ((queue_id, (expires_at, priority)),) = targets
            alone = NewMessage(
                message.key_id, message.routing_key, message.body, message.exchange, priority, message.headers,
                message.properties, message.due_at, expires_at, message.raw_properties,
            )  # fmt: skip
            return self.append(connection, alone, queue_id, now_ms)
        exchange, headers, properties, raw, checksum = _values(message, 0, now_ms)[-5:]
        ((message_id,),) = connection.fetch(
            SQL["share"], len(targets), message.key_id, exchange, headers, properties, raw, message.body, checksum
        )
        state = DeliveryState.READY if message.due_at is None else DeliveryState.DELAYED
        for queue_id, (expires_at, priority) in targets:
            connection.change(
                SQL["deliver"], message_id, queue_id, int(state), priority, len(message.body), message.key_id, now_ms,
                message.due_at, expires_at,
            )  # fmt: skip
        return int(message_id)

    def skip_id(self, connection: PostgresConnection, now_ms: int) -> int:
        """Return an id for a message that is stored elsewhere. No other message gets it."""
        return int(connection.fetch(SQL["next_id"])[0][0])

    def index_arrivals(self, connection: PostgresConnection) -> None:
        """Do nothing: a put indexes its message."""

    def release_due(
        self, connection: PostgresConnection, queue_id: int, now_ms: int, delivery_limit: int | None
    ) -> tuple[int, list[int]]:
        """Make delayed messages and those with an expired lease ready.

        Return their number, and the ids of those over the delivery limit.
        """
        limit = delivery_limit if delivery_limit is not None else 2**31 - 1
        released = connection.fetch(SQL["release_due"], queue_id, now_ms, limit)
        return len(released), [message_id for message_id, is_exhausted in released if is_exhausted]

    def next_due(self, queue_id: int) -> int | None:
        """Return when the next delayed message becomes ready, or the next lease expires."""
        with self._database.lock() as connection:
            return connection.fetch(SQL["next_due"], queue_id)[0][0]  # type: ignore[no-any-return]

    def claim_first(self, queue_id: int, patterns: Sequence[str] | None, now_ms: int, lease_until: int) -> StoredMessage | None:
        """Lock the first message, unless one is to be released before it, or it has expired. A transaction of its own.

        With patterns, the first message whose key matches one of them, if they were used before and there are no newer keys.
        """
        pattern = None if patterns is None else self._keys.known(patterns)
        if patterns is not None and (pattern is None or not pattern.key_ids):
            return None
        values = (queue_id, now_ms, lease_until, not self._database.is_in_transaction)

        def claim(connection: PostgresConnection) -> list[tuple[Any, ...]]:
            if pattern is None:
                return connection.fetch(SQL["claim_first"], *values)
            if len(pattern.key_ids) < MANY_KEYS:
                return connection.fetch(SQL["claim_first_with_keys"], *values, pattern.seen_to, pattern.as_json)
            depth = pattern.depths.get(queue_id, 0)
            if depth >= FAR:
                return []
            found, _ = self._scan_ready(connection, queue_id, pattern, AMONG, max(NEAR, depth))
            return connection.fetch(SQL["claim_first_among"], *values, pattern.seen_to, found) if found else []

        rows = self._database.alone(claim, is_safe=True)  # if the answer is lost, the lease expires
        return self._verified(queue_id, StoredMessage(*rows[0][:-1])) if rows else None

    def claim(
        self,
        connection: PostgresConnection,
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
        found = self._claimable(connection, queue_id, patterns, limit)
        if keeps_retried_apart:
            found = list(takewhile(lambda row: row[1] == 0, found)) or found[:1]
        if not found:
            return []
        rows = connection.fetch(SQL["lock"], queue_id, [message_id for message_id, _ in found], lease_until, now_ms)
        return [self._verified(queue_id, StoredMessage(*row)) for row in rows]

    def _claimable(
        self, connection: PostgresConnection, queue_id: int, patterns: Sequence[str] | None, limit: int
    ) -> list[tuple[Any, ...]]:
        """Return the first ready messages (id, attempts), which no other process can claim until the transaction ends."""
        if patterns is None:
            return connection.fetch(SQL["ready"], queue_id, limit)
        for times in TRIES:
            ids = self.find_ready(connection, queue_id, patterns, times * limit)
            if not ids:
                break
            found = connection.fetch(SQL["ready_among"], queue_id, ids, limit)
            if found:
                return found
        return []

    def find_ready(
        self, connection: PostgresConnection, queue_id: int, patterns: Sequence[str] | None, limit: int
    ) -> list[int]:
        """Return the ids of the first ready messages. With patterns the list may be incomplete, but not empty if any match."""
        if patterns is None:
            return [message_id for message_id, _ in connection.fetch(SQL["ready_in_order"], queue_id, limit, 0)]
        pattern = self._keys.matching(patterns)
        if not pattern.key_ids:
            return []
        if len(pattern.key_ids) >= MANY_KEYS:
            found, is_all = self._scan_ready(connection, queue_id, pattern, limit)
            if found or is_all:
                return found
        return [row[0] for row in connection.fetch(SQL["ready_with_keys"], pattern.as_json, queue_id, limit)]

    def _scan_ready(
        self, connection: PostgresConnection, queue_id: int, pattern: KeyPattern, limit: int, most: int = FAR
    ) -> tuple[list[int], bool]:
        """Look at the first ready messages. Return those that match, and whether there are no others.

        The first statement looks a little further than the last match: a consumer of one pattern leaves the messages of the
        others at the head of the queue.
        """
        depth = min(pattern.depths.get(queue_id, 0), FAR)
        seen, step = 0, max(FIRST_STEP, limit) + depth + depth // 4
        while True:
            rows = connection.fetch(SQL["ready_in_order"], queue_id, step, seen)
            places = [place for place, (_, key_id) in enumerate(rows) if key_id in pattern.as_set]
            if places:
                pattern.depths[queue_id] = seen + places[0]
                return [rows[place][0] for place in places[:limit]], True
            seen += len(rows)
            if len(rows) < step:
                return [], True
            if seen >= most:
                pattern.depths[queue_id] = seen
                return [], False
            step *= GROWTH

    def first_ready(self, connection: PostgresConnection, queue_id: int) -> int | None:
        """Return the first ready message, which no other process can claim until the transaction ends."""
        found = connection.fetch(SQL["ready"], queue_id, 1)
        return found[0][0] if found else None

    def read(self, queue_id: int, message_ids: Sequence[int]) -> list[StoredMessage]:
        """Return messages of a queue by their ids, in that order, without those that do not exist.

        One that is found to be damaged is set aside, and returned in this state.
        """
        with self._database.lock() as connection:
            rows = connection.fetch(SQL["read"], queue_id, list(message_ids))
        place = {message_id: place for place, message_id in enumerate(message_ids)}
        found = [StoredMessage(*row) for row in sorted(rows, key=lambda row: place[row[0]])]
        return [self._verified(queue_id, stored) for stored in found]

    def find(
        self, queue_id: int, states: Sequence[DeliveryState], limit: int, locked_before_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a queue in the given states, oldest first."""
        with self._database.lock() as connection:
            rows = connection.fetch(SQL["find"], queue_id, list(map(int, states)), locked_before_ms, limit)
        return [self._verified(queue_id, StoredMessage(*row)) for row in rows]

    def _verified(self, queue_id: int, stored: StoredMessage) -> StoredMessage:
        damage = damage_of(stored)
        if damage is None:
            return stored
        if stored.state != DeliveryState.DAMAGED:
            with self._database.transaction() as connection:
                now_ms = int(self._database.clock() * 1000)
                self.set_state(connection, queue_id, stored.id, DeliveryState.DAMAGED, settled_at=now_ms)
                queue = name_of_queue(connection, queue_id)
            report(stored.id, queue, damage)
        return stored.as_damaged()

    def count(self, queue_id: int) -> dict[DeliveryState, int]:
        """Return the number of messages of a queue in each state."""
        with self._database.lock() as connection:
            return {DeliveryState(state): number for state, number in connection.fetch(SQL["count"], queue_id)}

    def measure(self, connection: PostgresConnection, queue_id: int) -> tuple[int, int]:
        """Return the number of ready messages of a queue and the bytes of their bodies.

        Until the transaction ends, no other process changes a queue after it has measured it.
        """
        at, count, size = self._measured.get(queue_id, (-1, 0, 0))
        if at != connection.executed:
            self._database.serialize(queue_id)
            ((count, size),) = connection.fetch(SQL["measure"], queue_id)
            self._measured[queue_id] = connection.executed, count, size
        return count, size

    def remember_measure(self, connection: PostgresConnection, queue_id: int, count: int, size: int) -> None:
        """Do nothing: the next transaction measures again, because other processes change the queue."""

    def grow_measure(self, connection: PostgresConnection, queue_id: int, count: int, size: int) -> None:
        """Add messages to a measure that was taken in this transaction, before the caller added just these messages."""
        _, known_count, known_size = self._measured[queue_id]
        self._measured[queue_id] = connection.executed, known_count + count, known_size + size

    def forget(self) -> None:
        """Do nothing: nothing is kept in memory."""

    def head(self, connection: PostgresConnection, queue_id: int, priority: int) -> QueueHead | None:
        """Return the first ready message of a priority, which no other process can claim until the transaction ends."""
        found = connection.fetch(SQL["head"], queue_id, priority)
        return QueueHead(*found[0]) if found else None

    def queues_with_expired(self, connection: PostgresConnection, now_ms: int) -> list[int]:
        """Return the ids of the queues that have ready messages whose TTL has passed."""
        return [queue_id for (queue_id,) in connection.fetch(SQL["queues_with_expired"], now_ms)]

    def next_expiry(self, now_ms: int) -> int | None:
        """Return the time at which the next ready message of any queue expires."""
        with self._database.lock() as connection:
            return connection.fetch(SQL["next_expiry"], now_ms)[0][0]  # type: ignore[no-any-return]

    def remove_all_mine(self, connection: PostgresConnection, queue_id: int, locked: Sequence[tuple[int, int]]) -> set[int]:
        """Remove messages (id, attempts) that the caller has locked. Return the ids of those that it had locked."""
        if len(locked) == 1:
            gone = connection.fetch(SQL["remove_one_mine"], queue_id, *locked[0])
        else:
            parts = [connection.fetch(SQL["remove_mine"], queue_id, *part) for part in _in_parts(locked)]
            gone = [row for part in parts for row in part]
        self._free(connection, gone)
        self._database.note_removed(len(gone))
        return set(map(itemgetter(0), gone))

    def give_back_mine(self, connection: PostgresConnection, queue_id: int, locked: Iterable[tuple[int, int]]) -> None:
        """Make messages that the caller has locked (id, attempts) ready again, as if they had not been claimed."""
        for ids, attempts in _in_parts(list(locked)):
            connection.change(SQL["give_back_mine"], queue_id, ids, attempts)

    def is_mine(self, connection: PostgresConnection, queue_id: int, message_id: int, attempts: int) -> bool:
        """Return whether the caller still holds the lock of a message."""
        return bool(connection.fetch(SQL["is_mine"], message_id, queue_id, attempts))

    def hold(self, connection: PostgresConnection, queue_id: int, message_id: int) -> None:
        """Keep other processes from changing a message until the transaction ends."""
        connection.fetch(SQL["hold"], queue_id, message_id)

    def settle_mine(
        self,
        connection: PostgresConnection,
        queue_id: int,
        message_id: int,
        attempts: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> bool:
        """Change the state of a message that the caller has locked. Return False if the caller no longer holds the lock."""
        values = (message_id, queue_id, attempts, int(state), due_at, settled_at)
        return connection.change(SQL["settle_mine"], *values) == 1

    def remove(self, connection: PostgresConnection, queue_id: int, message_id: int) -> None:
        self._free(connection, connection.fetch(SQL["remove"], queue_id, [message_id]))

    def set_state(
        self,
        connection: PostgresConnection,
        queue_id: int,
        message_id: int,
        state: DeliveryState,
        *,
        due_at: int | None = None,
        settled_at: int | None = None,
    ) -> None:
        connection.change(SQL["set_state"], message_id, queue_id, int(state), due_at, settled_at)

    def delete(
        self,
        connection: PostgresConnection,
        queue_id: int,
        states: Sequence[DeliveryState],
        settled_before_ms: int | None = None,
    ) -> int:
        """Remove the messages of a queue in the given states, optionally only those settled before a time."""
        ((removed, shared),) = connection.fetch(SQL["delete"], queue_id, list(map(int, states)), settled_before_ms)
        if shared:
            connection.change(SQL["free"], shared)
        self._database.note_removed(removed)
        return int(removed)

    def forget_done(self, connection: PostgresConnection, queue_id: int, settled_before_ms: int) -> None:
        """Remove a few messages that were acknowledged before this time. Called at every acknowledgement, it keeps up."""
        for (message_id,) in connection.fetch(SQL["long_done"], queue_id, settled_before_ms):
            self.remove(connection, queue_id, message_id)

    def export(self, after_id: int) -> Iterator[CopiedMessage]:
        """Iterate over all messages with higher ids, in their order. Nobody else uses the store meanwhile."""
        with self._database.transaction() as connection:
            rows = self._database.rows(connection, SQL["export"], (after_id,))
            for _, together in groupby(rows, key=itemgetter(0)):
                found = list(together)
                deliveries = tuple(CopiedDelivery(*row[CONTENT_COLUMNS:]) for row in found)
                yield CopiedMessage._make((*found[0][:CONTENT_COLUMNS], deliveries))

    def restore(self, connection: PostgresConnection, messages: Sequence[CopiedMessage]) -> None:
        """Add messages as they are, with their ids, to a store that does not have them."""
        ids = {message.key: 0 if message.key is None else self._keys.intern(message.key) for message in messages}
        raw = connection.begun()
        with raw.cursor().copy(SQL["restore_contents"]) as rows:
            for message in messages:
                if len(message.deliveries) > 1:
                    copies, key_id = len(message.deliveries), ids[message.key]
                    rows.write_row((message.id, copies, key_id, message.exchange, *message[4:9]))
        with raw.cursor().copy(SQL["restore_deliveries"]) as rows:
            for message in messages:
                is_shared = len(message.deliveries) > 1
                content = (None,) * 6 if is_shared else message[3:9]
                known = (int(is_shared), len(message.body), ids[message.key], message.created_at)
                for delivery in message.deliveries:
                    rows.write_row((message.id, *known, *delivery, *content))

    def continue_ids(self, connection: PostgresConnection) -> None:
        """Let new messages, queues and bindings have higher ids than those that were added with theirs."""
        connection.fetch(SQL["continue_ids"])

    def remove_unused(self, connection: PostgresConnection) -> None:
        """Remove content that no queue has: a process was killed before it could."""
        connection.change(SQL["unused"])

    def _free(self, connection: PostgresConnection, gone: Sequence[tuple[int, int]]) -> None:
        """Remove the content of messages if this was their last queue."""
        shared = [message_id for message_id, is_shared in gone if is_shared]
        if shared:
            connection.change(SQL["free"], shared)


def _in_parts(locked: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[int]]]:
    """Return ids and attempts as lists. The database searches the list for each message."""
    for start in range(0, len(locked), SETTLED_AT_ONCE):
        ids, attempts = zip(*locked[start : start + SETTLED_AT_ONCE], strict=True)
        yield list(ids), list(attempts)


def _values(message: NewMessage, queue_id: int, now_ms: int) -> tuple[Any, ...]:
    """Return the parameters of the statement `append` but for the versions."""
    _, queue, exchange, key_id, priority, now, due_at, expires_at, headers, properties, body, raw, checksum = message.row(
        queue_id, now_ms
    )
    return queue, due_at, priority, body, key_id, now, expires_at, exchange, headers, properties, raw, checksum
