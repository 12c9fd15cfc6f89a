"""The errors of PostgreSQL in our words: what happened, in which database, and what to do."""

from __future__ import annotations

import psycopg
from psycopg import errors

from holtmq.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLostError,
    StoreReadOnlyError,
    StoreUnknownError,
)


def is_lost(error: BaseException) -> bool:
    """Return whether the connection is gone, so that a new one may help."""
    return isinstance(error, psycopg.OperationalError) and (
        error.sqlstate is None
        or isinstance(error, errors.AdminShutdown | errors.CrashShutdown | errors.CannotConnectNow | errors.IdleSessionTimeout)
        or error.sqlstate.startswith("08")
    )


def translated(error: psycopg.Error, url: str, *, is_unknown: bool = False) -> Exception:
    """Translate an error. With `is_unknown`, a change was on the way when the connection was lost."""
    text = " ".join(str(error).split())
    if is_lost(error):
        if is_unknown:
            return StoreUnknownError(
                f"{url}: the connection was lost before the database answered ({text}); whether the change was made is "
                "unknown: look before you repeat the call"
            )
        return StoreLostError(f"{url} cannot be reached ({text}); nothing was changed: check the server and the network")
    match error:
        case errors.DiskFull() | errors.OutOfMemory() | errors.TooManyConnections():
            return StoreFullError(f"{url}: {text}; nothing was written")
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnlyError(f"{url} cannot be written: it is a read-only replica; expected the primary server")
        case errors.LockNotAvailable() | errors.QueryCanceled() | errors.DeadlockDetected():
            return StoreBusyError(f"{url} is locked by another process ({text}); nothing was changed")
        case errors.InsufficientPrivilege():
            return StoreError(f"{url}: {text}; grant the user CREATE on the database, or on the schema and its tables")
        case _:
            return StoreError(f"{url}: {text}")
