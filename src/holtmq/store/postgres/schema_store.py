"""A schema of a PostgreSQL database as the store of the embedded library."""

from __future__ import annotations

from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.postgres.database import PostgresDatabase
from holtmq.store.postgres.message_store import PostgresMessageStore
from holtmq.store.records import Durability
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.stream_log import StreamLog


def open_schema(
    url: str, durability: Durability, timeout_s: float, owner: str | None = None, *, must_exist: bool = False
) -> EmbeddedStore:
    database = PostgresDatabase(url, durability=durability, timeout_s=timeout_s, owner=owner, must_exist=must_exist)
    keys = RoutingKeys(database)
    return EmbeddedStore(database, keys, PostgresMessageStore(database, keys), StreamLog(database), SqlDeclarations(database))
