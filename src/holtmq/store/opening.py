"""Opens a store by its path or URL: a file, or a schema of a PostgreSQL database. Both are created if they do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from holtmq.database_url import is_url
from holtmq.errors import HoltmqError, InvalidValueError, NotAStoreError
from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.records import Durability
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sql.copy_mark import refuse_unfinished_copy
from holtmq.store.sqlite.file_store import open_file, open_file_journal
from holtmq.topology import Topology

TIMEOUT_S = 30.0


class OwnerWatch(Protocol):
    def look(self) -> str | None:
        """Return who owns the store, in words, or None if nobody does. Raise StoreError if the database cannot tell."""

    def cut(self) -> None:
        """Let a look in another thread not wait any more for a database that does not answer."""

    def close(self) -> None: ...


def open_store(
    path: str | Path,
    *,
    durability: Durability = "full",
    timeout_s: float = TIMEOUT_S,
    owner: str | None = None,
    must_exist: bool = False,
) -> EmbeddedStore:
    """Open the store of an embedded library, which other libraries may share. Unless it must exist, it is created.

    With an `owner`, no other process can open it, and all are told who has it. Only an owner can open an unfinished copy.
    """
    store = _open(path, durability, timeout_s, owner, must_exist=must_exist)
    if owner is None:
        try:
            refuse_unfinished_copy(store.database)
        except BaseException:
            store.database.close()
            raise
    return store


def _open(path: str | Path, durability: Durability, timeout_s: float, owner: str | None, *, must_exist: bool) -> EmbeddedStore:
    if not is_url(path):
        if must_exist and not Path(path).is_file():
            raise NotAStoreError(f"{path} does not exist; expected the path of a HoltMQ file")
        return open_file(path, durability, timeout_s, owner)
    try:
        from holtmq.store.postgres.schema_store import open_schema  # an optional extra
    except ImportError as error:
        raise _without_psycopg(error) from error
    return open_schema(str(path), durability, timeout_s, owner, must_exist=must_exist)


def open_journal(path: str, durability: Durability, owner: str) -> BatchJournal:
    """Open the store of a broker with the address `owner`. Nobody else can open it until the journal is closed."""
    if not is_url(path):
        return open_file_journal(path, durability, owner)
    try:
        from holtmq.store.postgres.schema_store import open_schema_journal  # an optional extra
    except ImportError as error:
        raise _without_psycopg(error) from error
    return open_schema_journal(path, durability, owner)


def watch_owner(path: str) -> OwnerWatch:
    """Return what a standby needs to know when a store is free. Only a database can have a standby."""
    if not is_url(path):
        raise InvalidValueError(f"a standby needs a PostgreSQL database, got the file {path}: files are for one machine")
    try:
        from holtmq.store.postgres.ownership_watch import OwnershipWatch  # an optional extra
    except ImportError as error:
        raise _without_psycopg(error) from error
    return OwnershipWatch(path)


def load_topology(path: str | Path) -> Topology:
    """Return the topology of an existing HoltMQ file, or of a schema of a PostgreSQL database."""
    store = open_store(path, must_exist=True)
    try:
        return store.declarations.load()
    finally:
        store.database.close()


def _without_psycopg(error: ImportError) -> HoltmqError:
    return HoltmqError(f"a PostgreSQL store needs psycopg ({error}): pip install 'holtmq[postgres]'")
