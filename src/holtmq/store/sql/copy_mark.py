"""The mark of an unfinished copy: how far it has come. Only the copy itself may use a store that has it."""

from __future__ import annotations

import json
from typing import Any

from holtmq.errors import StoreOwnedError
from holtmq.store.sql.sql_database import Connection, SqlDatabase

COMPONENT = "holtmq copy"
"""The component of the parameter that is the mark."""
READ_MARK = f"SELECT value FROM parameters WHERE component = '{COMPONENT}'"
SET_MARK = f"""
INSERT INTO parameters (component, vhost, name, value) VALUES ('{COMPONENT}', '/', 'progress', ?)
ON CONFLICT (component, vhost, name) DO UPDATE SET value = excluded.value
"""
REMOVE_MARK = f"DELETE FROM parameters WHERE component = '{COMPONENT}'"


def read_mark(database: SqlDatabase) -> dict[str, Any] | None:
    with database.lock() as connection:
        row = connection.execute(READ_MARK).fetchone()
    return None if row is None else json.loads(row[0])


def set_mark(connection: Connection, mark: dict[str, Any]) -> None:
    connection.execute(SET_MARK, (json.dumps(mark),))


def remove_mark(connection: Connection) -> None:
    connection.execute(REMOVE_MARK)


def refuse_unfinished_copy(database: SqlDatabase) -> None:
    """Raise StoreOwnedError if a copy was interrupted: its messages have no queues yet, and would be removed or mixed up."""
    if read_mark(database) is not None:
        raise StoreOwnedError(
            f"{database.path} is an unfinished copy; run `holtmq copy` again to finish it, or remove it and start again"
        )
