"""Who owns a schema, as a standby sees it: it waits until the owner is gone, and ends the session of one that is silent.

The owner holds an advisory lock through the very connection that writes, so that whoever loses the lock can no longer write.
The server releases it when the connection ends. A process that is stopped, or a machine that is cut off, may keep its
connection open for long. Its silence tells: a live owner
executes a statement every second, whatever its transaction waits for.
"""

from __future__ import annotations

from typing import Any

import psycopg

from holtmq.database_url import DatabaseUrl
from holtmq.errors import StoreRefusedError
from holtmq.store.postgres.postgres_connection import Link, connect
from holtmq.store.postgres.postgres_database import HOLDERS, PULSE_NAME, lock_parts
from holtmq.store.postgres.postgres_errors import is_lost, replica_error, translated
from holtmq.store.sql.copy_mark import READ_MARK

SILENCE_S = 10.0
"""Time after which an owner that was not heard of loses its session. It is longer than its lease (server/commits.py)."""
TIMEOUT_S = 5.0
OWNER = """
SELECT (SELECT owner FROM state), current_user, min(usename) FILTER (WHERE NOT (
        pg_has_role(usesysid, 'USAGE')
        OR (pg_has_role('pg_read_all_stats', 'USAGE') AND pg_has_role('pg_signal_backend', 'USAGE')
            AND NOT (SELECT rolsuper FROM pg_roles WHERE oid = usesysid))
    )), coalesce(max(state_change) < clock_timestamp() - make_interval(secs => $1), false)
FROM pg_stat_activity WHERE pid = $2 OR application_name = $3
"""
"""The owner, our role, that of the owner if its sessions are hidden from us or not ours to end, and whether it is silent."""
UNFINISHED_COPY = "an unfinished copy: run `holtmq copy` again to finish it"


class OwnershipWatch:
    """Looks at the owner of a schema through a connection of its own."""

    def __init__(self, url: str) -> None:
        self._url = DatabaseUrl.parse(url)
        self._connection: psycopg.Connection[Any] | None = None
        self._link: Link | None = None

    def look(self) -> str | None:
        """Return who owns the schema, in words, or None if nobody does. Raise StoreError if the database cannot tell."""
        try:
            if self._connection is None:
                self._connection = connect(self._url, TIMEOUT_S)
                self._link = Link(self._connection)
            return self._look(self._connection)
        except psycopg.errors.UndefinedTable:
            return None  # nobody has used the schema yet
        except psycopg.Error as error:
            if is_lost(error):
                self.close()
            raise translated(error, self._url.shown) from error

    def _look(self, connection: psycopg.Connection[Any]) -> str | None:
        holders = connection.execute(HOLDERS, lock_parts(self._url)).fetchall()
        if not holders:
            return self._look_at_free(connection)
        (pid, mode), *_ = holders
        if mode == "ShareLock":
            return "processes that use holtmq.open"
        found = connection.execute(OWNER, (SILENCE_S, pid, PULSE_NAME.format(pid))).fetchone()
        owner, role, foreign_role, is_silent = found or ("a broker", "", None, False)
        if foreign_role is not None:
            raise StoreRefusedError(
                f"{self._url.shown} is owned by {owner} with the role {foreign_role!r}, whose sessions the role {role!r} of "
                "this standby may not see and end; expected one role for all brokers, or a member of pg_read_all_stats and "
                "pg_signal_backend"
            )
        if is_silent:
            connection.execute("SELECT pg_terminate_backend($1::integer)", (pid,))
        return str(owner)

    def _look_at_free(self, connection: psycopg.Connection[Any]) -> str | None:
        """Return what else keeps a broker from a schema that nobody has open."""
        if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            self.close()  # the next look may find the primary server among several hosts
            raise replica_error(self._url.shown)
        return None if connection.execute(READ_MARK).fetchone() is None else UNFINISHED_COPY

    def cut(self) -> None:
        """End the connection from our side, so that a look does not wait any more for a server that does not answer."""
        link = self._link
        if link is not None:
            link.cut()

    def close(self) -> None:
        connection, self._connection, self._link = self._connection, None, None
        if connection is not None:
            connection.close()
