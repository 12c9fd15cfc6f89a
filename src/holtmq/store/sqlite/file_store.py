"""A file as the store of the embedded library."""

from __future__ import annotations

from pathlib import Path

from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.records import Durability
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.log_transfer import unpack_log
from holtmq.store.sql.stream_log import StreamLog
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.message_store import SqliteMessageStore
from holtmq.store.sqlite.rows import SqliteRows


def open_file_journal(path: str, durability: Durability, owner: str) -> BatchJournal:
    """Open a file for a broker with this address. No other process can open it until the journal is closed."""
    return file_journal(SqliteDatabase(path, durability=durability, owner=owner))


def file_journal(database: SqliteDatabase) -> BatchJournal:
    return BatchJournal(database, file_rows(database))


def file_rows(database: SqliteDatabase) -> SqliteRows:
    return SqliteRows(SqliteMessageStore(database, RoutingKeys(database)))


def open_file(path: str | Path, durability: Durability, timeout_s: float, owner: str | None = None) -> EmbeddedStore:
    database = SqliteDatabase(path, durability=durability, timeout_s=timeout_s, owner=owner)
    try:
        keys = RoutingKeys(database)
        messages = SqliteMessageStore(database, keys)
        streams = StreamLog(database)
        unpack_log(database, keys, SqliteRows(messages))
    except BaseException:
        database.close()
        raise
    return EmbeddedStore(database, keys, messages, streams, SqlDeclarations(database))
