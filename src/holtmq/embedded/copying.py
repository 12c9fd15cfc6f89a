"""Copying a store: `holtmq copy`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holtmq.database_url import shown_path
from holtmq.errors import InvalidValueError, StoreOwnedError
from holtmq.store.embedded_store import EmbeddedStore
from holtmq.store.opening import open_store
from holtmq.store.refusal import copy_owner
from holtmq.store.sql.store_copy import CopyReport, copy_store


def copy(source: str | Path, target: str | Path, progress: Callable[[int, int], None] = lambda *_: None) -> CopyReport:
    """Copy a HoltMQ file or a schema of a PostgreSQL database to another one, which must be empty or not exist.

    Topology, accounts, messages in all states and streams are copied, and counted at the end. Neither may be open in another
    process. If the copy is interrupted, the next call continues it. `progress` is called with the number of messages and
    chunks of streams copied so far, and their total.
    """
    if str(source) == str(target):
        raise InvalidValueError(f"{shown_path(source)} cannot be copied to itself")
    owner = copy_owner()
    opened = open_store(source, owner=owner, must_exist=True)
    try:
        copied = _open_target(source, target, owner)
        try:
            return copy_store(opened, copied, progress)
        finally:
            copied.database.close()
    finally:
        opened.database.close()


def _open_target(source: str | Path, target: str | Path, owner: str) -> EmbeddedStore:
    try:
        return open_store(target, owner=owner)
    except StoreOwnedError as error:
        if error.owner != owner:
            raise
        raise InvalidValueError(
            f"{shown_path(source)} cannot be copied to itself: {shown_path(target)} is the same store"
        ) from error
