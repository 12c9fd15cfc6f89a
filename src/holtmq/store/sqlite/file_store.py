"""A file as the store of the embedded library."""

from __future__ import annotations

from pathlib import Path

from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.records import Durability
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.stream_log import StreamLog
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.log_transfer import unpack_log
from holtmq.store.sqlite.message_store import SqliteMessageStore


def open_file(path: str | Path, durability: Durability, timeout_s: float, owner: str | None = None) -> EmbeddedStore:
    database = SqliteDatabase(path, durability=durability, timeout_s=timeout_s, owner=owner)
    try:
        keys = RoutingKeys(database)
        messages = SqliteMessageStore(database, keys)
        streams = StreamLog(database)
        unpack_log(database, keys)
    except BaseException:
        database.close()
        raise
    return EmbeddedStore(database, keys, messages, streams, SqlDeclarations(database))
