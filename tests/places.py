"""Where a test keeps a store, in a file or in a schema of PostgreSQL, and how it looks at it from outside."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from holtmq.database_url import DatabaseUrl, is_url
from holtmq.store.records import Durability
from holtmq.store.row_port import RowPort
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sql.sql_database import JournalDatabase
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.file_store import file_journal, file_rows


def database_at(place: str | Path, *, durability: Durability = "off", owner: str | None = None) -> JournalDatabase:
    if not is_url(place):
        return SqliteDatabase(place, durability=durability, owner=owner)
    from holtmq.store.postgres.postgres_database import PostgresDatabase

    return PostgresDatabase(str(place), durability=durability, owner=owner)


def rows_of(database: JournalDatabase) -> RowPort:
    if isinstance(database, SqliteDatabase):
        return file_rows(database)
    from holtmq.store.postgres.postgres_rows import PostgresRows

    return PostgresRows()


def journal_on(database: JournalDatabase) -> BatchJournal:
    return file_journal(database) if isinstance(database, SqliteDatabase) else BatchJournal(database, rows_of(database))


def look(place: str | Path, query: str, parameters: Sequence[Any] = ()) -> list[Any]:
    """Execute a statement as an outsider, and return its rows. Parameters are `?`."""
    if not is_url(place):
        with closing(sqlite3.connect(place)) as file, file:
            return file.execute(query, parameters).fetchall()
    import psycopg

    url = DatabaseUrl.parse(str(place))
    with psycopg.connect(url.conninfo, autocommit=True, options=f"-c search_path={url.quoted_schema}") as connection:
        cursor = connection.execute(query.replace("?", "%s"), parameters or None)
        return cursor.fetchall() if cursor.description else []


def look_for_one(place: str | Path, query: str, parameters: Sequence[Any] = ()) -> Any:
    """Return the only value of the only row of a query."""
    ((value,),) = look(place, query, parameters)
    return value
