"""Copying a store: `holtmq copy`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holtmq.errors import InvalidValueError
from holtmq.store.opening import open_store
from holtmq.store.sql.store_copy import CopyReport, copy_store


def copy(source: str | Path, target: str | Path, progress: Callable[[int, int], None] = lambda *_: None) -> CopyReport:
    """Copy a HoltMQ file or a schema of a PostgreSQL database to another one, which must be empty or not exist.

    Topology, accounts, messages in all states and streams are copied, and counted at the end. Neither may be open in another
    process. If the copy is interrupted, the next call continues it. `progress` is called with the number of messages and
    chunks of streams copied so far, and their total.
    """
    if str(source) == str(target):
        raise InvalidValueError(f"{source} cannot be copied to itself")
    owner = f"holtmq copy (process {os.getpid()})"
    opened = open_store(source, owner=owner, must_exist=True)
    try:
        copied = open_store(target, owner=owner)
        try:
            return copy_store(opened, copied, progress)
        finally:
            copied.database.close()
    finally:
        opened.database.close()
