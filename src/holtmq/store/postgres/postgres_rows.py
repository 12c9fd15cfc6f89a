"""Messages with rows of their own in PostgreSQL, as a broker sees them. The broker has the schema to itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from holtmq.store.postgres.postgres_connection import PostgresConnection
from holtmq.store.postgres.statements import load
from holtmq.store.records import ID_CLOCK_BITS, StoredRow
from holtmq.store.row_port import RowPort, UnpackedDelivery, UnpackedMessage

SQL = load("broker.sql")
REMOVED_ROWS = 1000
"""Rows of a deleted queue that are removed in one step."""
REMOVE = load("statements.sql")["remove"]
FREE = load("statements.sql")["free"]


class PostgresRows(RowPort):
    def has_any(self, connection: PostgresConnection) -> bool:
        return bool(connection.fetch("SELECT 1 FROM deliveries LIMIT 1"))

    def tidy_up(self, connection: PostgresConnection) -> None:
        for name in ("drop_orphans", "unlock"):
            connection.change(SQL[name])

    def last_id(self, connection: PostgresConnection) -> int:
        return int(connection.fetch(SQL["last_id"])[0][0])

    def next_queue_id(self, connection: PostgresConnection) -> int:
        return int(connection.fetch(SQL["next_queue_id"])[0][0])

    def next_batch(self, connection: PostgresConnection, after_id: int, limit: int, most_bytes: int) -> int | None:
        last, total = None, 0
        for message_id, size in connection.fetch(SQL["next_ready"], after_id, limit):
            if last is not None and total >= most_bytes and message_id != last:
                break
            last, total = message_id, total + size
        return last

    def ready(self, connection: PostgresConnection, after_id: int, up_to: int) -> list[tuple[int, StoredRow]]:
        rows = connection.fetch(SQL["ready_rows"], after_id, up_to)
        return [(queue_id, StoredRow(*values)) for queue_id, *values in rows]

    def drop_ready(self, connection: PostgresConnection, after_id: int, up_to: int) -> None:
        connection.change(SQL["drop_ready"], after_id, up_to)
        connection.change(SQL["free_range"], after_id, up_to)

    def unpack(
        self,
        connection: PostgresConnection,
        messages: Collection[UnpackedMessage],
        deliveries: Collection[UnpackedDelivery],
    ) -> None:
        copies = Counter(each.message_id for each in deliveries)
        known = {message.id: message for message in messages}
        for message in messages:
            if copies[message.id] > 1:
                connection.change(
                    SQL["unpack_shared"], message.id, copies[message.id], message.key_id, message.exchange,
                    message.raw_properties, message.body, message.checksum,
                )  # fmt: skip
        for each in deliveries:
            message = known[each.message_id]
            is_shared = copies[message.id] > 1
            content = (None,) * 4 if is_shared else (message.exchange, message.raw_properties, message.body, message.checksum)
            connection.change(
                SQL["unpack_delivery"], message.id, each.queue_id, each.priority, int(is_shared), each.attempts,
                len(message.body), message.key_id, message.id >> ID_CLOCK_BITS, each.expires_at, *content,
            )  # fmt: skip

    def unpacked(self, connection: PostgresConnection) -> None:
        """Let new messages have higher ids than those of the broker."""
        connection.fetch(SQL["skip_ids"])

    def due(self, connection: PostgresConnection, after_ms: int, now_ms: int) -> Sequence[tuple[int, StoredRow]]:
        return [(queue_id, StoredRow(*values)) for queue_id, *values in connection.fetch(SQL["due"], after_ms, now_ms)]

    def next_due(self, connection: PostgresConnection, after_ms: int) -> int | None:
        return connection.fetch(SQL["next_due"], after_ms)[0][0]  # type: ignore[no-any-return]

    def drop(self, connection: PostgresConnection, message_id: int, queue_id: int) -> None:
        self._free(connection, connection.fetch(REMOVE, queue_id, [message_id]))

    def forget_some(self, connection: PostgresConnection, queue_id: int) -> bool:
        removed = connection.fetch(SQL["forget_some"], queue_id, REMOVED_ROWS)
        self._free(connection, removed)
        return bool(removed)

    def set_aside(self, connection: PostgresConnection, message_id: int, queue_id: int) -> None:
        connection.change(SQL["set_aside"], message_id, queue_id)

    def keep_damaged(
        self, connection: PostgresConnection, message_id: int, queue_id: int, exchange: str, key_id: int, content: bytes
    ) -> None:
        connection.change(
            SQL["keep_damaged"], message_id, queue_id, len(content), key_id, message_id >> ID_CLOCK_BITS, exchange, content
        )
        self.set_aside(connection, message_id, queue_id)

    def _free(self, connection: PostgresConnection, gone: Sequence[tuple[int, int]]) -> None:
        shared = [message_id for message_id, is_shared in gone if is_shared]
        if shared:
            connection.change(FREE, shared)
