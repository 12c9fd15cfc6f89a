"""A schema of a PostgreSQL database as the store of the embedded library."""

from __future__ import annotations

from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.postgres.postgres_database import PostgresDatabase
from holtmq.store.postgres.postgres_message_store import PostgresMessageStore
from holtmq.store.postgres.postgres_rows import PostgresRows
from holtmq.store.records import Durability
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.log_transfer import unpack_log
from holtmq.store.sql.stream_log import StreamLog

BROKER_TIMEOUT_S = 2.0
"""Time for which a broker waits for a lost connection before it blocks publishers and tries again."""


def open_schema_journal(url: str, durability: Durability, owner: str) -> BatchJournal:
    """Open a schema for a broker with this address. Nobody else can open it until the journal is closed."""
    database = PostgresDatabase(url, durability=durability, timeout_s=BROKER_TIMEOUT_S, owner=owner)
    return BatchJournal(database, PostgresRows())


def open_schema(
    url: str, durability: Durability, timeout_s: float, owner: str | None = None, *, must_exist: bool = False
) -> EmbeddedStore:
    database = PostgresDatabase(url, durability=durability, timeout_s=timeout_s, owner=owner, must_exist=must_exist)
    keys = RoutingKeys(database)
    try:
        unpack_log(database, keys, PostgresRows())
    except BaseException:
        database.close()
        raise
    return EmbeddedStore(database, keys, PostgresMessageStore(database, keys), StreamLog(database), SqlDeclarations(database))
