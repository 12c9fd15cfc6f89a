"""What a broker reads from its file when it starts: the topology, the length of each queue, and the highest ids.

No message body is read, so the start does not depend on the size of messages.
"""

from __future__ import annotations

import sqlite3
from importlib.resources import files

from holtmq.store.records import QueueState, Recovered
from holtmq.store.sqlite.database import SqliteDatabase, statements
from holtmq.store.sqlite.declarations import SqliteDeclarations
from holtmq.store.sqlite.keys import RoutingKeys
from holtmq.store.sqlite.message_store import SqliteMessageStore

TIDY_UP = tuple(statements(files("holtmq.store.sqlite").joinpath("recovery.sql").read_text()))
COUNTS = "SELECT queue_id, priority, count(*) FROM deliveries WHERE state = 0 GROUP BY queue_id, priority"
EXPIRIES = "SELECT queue_id, min(expires_at) FROM deliveries WHERE expires_at IS NOT NULL GROUP BY queue_id"
LAST_ID = "SELECT max((SELECT coalesce(max(id), 0) FROM messages), indexed_to) FROM state"
NEXT_QUEUE_ID = "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'queues'), 0) + 1"


def recover(database: SqliteDatabase, keys: RoutingKeys) -> Recovered:
    with database.transaction() as connection:
        SqliteMessageStore(database, keys).index_arrivals(connection)
        for statement in TIDY_UP:
            connection.execute(statement)
        keys.forget()
        (last_id,) = connection.execute(LAST_ID).fetchone()
        (next_queue_id,) = connection.execute(NEXT_QUEUE_ID).fetchone()
        return Recovered(SqliteDeclarations(database).load(), _queue_states(connection), last_id, next_queue_id)


def _queue_states(connection: sqlite3.Connection) -> dict[tuple[str, str], QueueState]:
    counts: dict[int, dict[int, int]] = {}
    for queue_id, priority, number in connection.execute(COUNTS):
        counts.setdefault(queue_id, {})[priority] = number
    marks: dict[int, dict[int, int]] = {}
    for queue_id, priority, up_to in connection.execute("SELECT * FROM delivery_marks"):
        marks.setdefault(queue_id, {})[priority] = up_to
    expiries = dict(connection.execute(EXPIRIES))
    return {
        (vhost, name): QueueState(queue_id, counts.get(queue_id, {}), marks.get(queue_id, {}), expiries.get(queue_id))
        for vhost, name, queue_id in connection.execute("SELECT vhost, name, id FROM queues")
    }
