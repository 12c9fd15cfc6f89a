"""What a broker reads from its store when it starts: the topology, the length of each queue, and the highest ids.

No message is read, so the start does not depend on their number, unless the embedded library had the store before.
"""

from __future__ import annotations

from collections.abc import Sequence

from holtmq.steps import complete
from holtmq.store.records import QueueState, Recovered
from holtmq.store.row_port import RowPort
from holtmq.store.sql.chunk_log import ChunkLog, Totals
from holtmq.store.sql.copy_mark import refuse_unfinished_copy
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.log_transfer import pack_rows
from holtmq.store.sql.sql_database import Connection, SqlDatabase

RESERVE = "INSERT INTO delivery_marks VALUES (0, 0, 0) ON CONFLICT (queue_id, priority) DO NOTHING"
"""Keeps a page of a PostgreSQL table: on a full disk, an empty table could not grow, and consumers could receive nothing."""
UNUSED_KEYS = "DELETE FROM routing_keys WHERE id NOT IN (SELECT key_id FROM deliveries)"


def recover(database: SqlDatabase, keys: RoutingKeys, log: ChunkLog, rows: RowPort) -> Recovered:
    refuse_unfinished_copy(database)
    with database.transaction() as connection:
        log.open()
        has_rows = rows.has_any(connection)
        if has_rows:
            rows.tidy_up(connection)
        last_row_id = rows.last_id(connection)
    damaged = pack_rows(database, log, rows) if has_rows else 0
    with database.transaction() as connection:
        connection.execute(UNUSED_KEYS)
        keys.forget()
        totals = _tidy_log(connection, log)
        next_queue_id = rows.next_queue_id(connection)
        last_id = max([last_row_id, *(total.last_id for total in totals)])
        states = _queue_states(connection, totals)
        return Recovered(SqlDeclarations(database).load(), states, last_id, next_queue_id, damaged)


def _tidy_log(connection: Connection, log: ChunkLog) -> Sequence[Totals]:
    """Remove what does not outlive the broker, and return what each queue has in the log."""
    connection.execute("DELETE FROM delivery_marks WHERE queue_id > 0 AND queue_id NOT IN (SELECT id FROM queues)")
    connection.execute(RESERVE)
    totals = log.totals()
    queues = {queue_id for (queue_id,) in connection.execute("SELECT id FROM queues")}
    if any(total.is_transient for total in totals):
        log.forget_transient()
    for queue_id in {total.queue_id for total in totals} - queues:
        complete(log.forget(queue_id))
    log.committed()
    return [total for total in totals if total.queue_id in queues and not total.is_transient]


def _queue_states(connection: Connection, totals: Sequence[Totals]) -> dict[tuple[str, str], QueueState]:
    counts: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    expiries: dict[int, int] = {}
    for total in totals:
        counts.setdefault(total.queue_id, {})[total.priority] = total.number
        sizes[total.queue_id] = sizes.get(total.queue_id, 0) + total.size
        if total.next_expiry is not None:
            expiries[total.queue_id] = min(total.next_expiry, expiries.get(total.queue_id, total.next_expiry))
    marks: dict[int, dict[int, int]] = {}
    for queue_id, priority, up_to in connection.execute("SELECT * FROM delivery_marks"):
        marks.setdefault(queue_id, {})[priority] = up_to
    return {
        (vhost, name): QueueState(
            queue_id, counts.get(queue_id, {}), sizes.get(queue_id, 0), marks.get(queue_id, {}), expiries.get(queue_id)
        )
        for vhost, name, queue_id in connection.execute("SELECT vhost, name, id FROM queues")
    }
