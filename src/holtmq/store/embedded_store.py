"""The store of the embedded library: a file, or a schema of a PostgreSQL database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holtmq.store.message_port import MessageStorePort
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.stream_log import StreamLog


@dataclass(frozen=True, slots=True)
class EmbeddedStore:
    database: Any
    """A database as described by `SqlDatabase`. Its connections are passed on to `messages`, and to nobody else."""
    keys: RoutingKeys
    messages: MessageStorePort
    streams: StreamLog
    declarations: SqlDeclarations
