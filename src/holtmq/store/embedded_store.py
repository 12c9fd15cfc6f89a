"""The store of the embedded library: a file, or a schema of a PostgreSQL database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holtmq.errors import HoltmqError, NotAStoreError
from holtmq.store.message_port import MessageStorePort
from holtmq.store.postgres.url import is_url
from holtmq.store.records import Durability
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.stream_log import StreamLog
from holtmq.topology import Topology

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class EmbeddedStore:
    database: Any
    """A database as described by `SqlDatabase`. Its connections are passed on to `messages`, and to nobody else."""
    keys: RoutingKeys
    messages: MessageStorePort
    streams: StreamLog
    declarations: SqlDeclarations


def open_store(
    path: str | Path,
    *,
    durability: Durability = "full",
    timeout_s: float = TIMEOUT_S,
    owner: str | None = None,
    must_exist: bool = False,
) -> EmbeddedStore:
    """Open a file or, if `path` is a URL, a schema of a PostgreSQL database. Unless it must exist, it is created.

    With an `owner`, no other process can open it, and all are told who has it.
    """
    if is_url(path):
        try:
            from holtmq.store.postgres.schema_store import open_schema  # an optional extra
        except ImportError as error:
            raise HoltmqError(f"a PostgreSQL store needs psycopg ({error}): pip install 'holtmq[postgres]'") from error
        return open_schema(str(path), durability, timeout_s, owner, must_exist=must_exist)
    from holtmq.store.sqlite.file_store import open_file

    if must_exist and not Path(path).is_file():
        raise NotAStoreError(f"{path} does not exist; expected the path of a HoltMQ file")
    return open_file(path, durability, timeout_s, owner)


def load_topology(path: str | Path) -> Topology:
    """Return the topology of an existing HoltMQ file, or of a schema of a PostgreSQL database."""
    store = open_store(path, must_exist=True)
    try:
        return store.declarations.load()
    finally:
        store.database.close()
