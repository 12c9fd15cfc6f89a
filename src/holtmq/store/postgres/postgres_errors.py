"""The errors of PostgreSQL in our words: what happened, in which database, and what to do."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from holtmq.errors import (
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreLostError,
    StoreReadOnlyError,
    StoreRefusedError,
    StoreUnknownError,
)
from holtmq.store.postgres.refused_connection import TOO_MANY_CONNECTIONS

ENDED = (
    errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow, errors.IdleSessionTimeout,
    errors.IdleInTransactionSessionTimeout, errors.TooManyConnections,
)  # fmt: skip
USED_UP = ("too many clients", "too many connections", "connection slots", "no more connections")
"""What a server, or a pooler, says that has no connection left. There is no SQLSTATE before the connection is made."""
PASSING = ("starting up", "shutting down", "recovery mode", "accepting connections", "terminating connection", *USED_UP)
"""What a server says that refuses a connection for now."""
FINAL = ("authentication failed", "does not exist", "pg_hba.conf", "permission denied", "not permitted to log in")
"""What a server says that refuses a connection for good. Both lists have English texts: see `is_unknown_refusal`."""
REFUSED = re.compile(r"connection failed: .*\S:  \S", re.DOTALL)
"""An answer of the server: the severity, in its language, and after two spaces the message."""
FAILED_ATTEMPT = re.compile(r"connection to server [^\n]* failed: (.*)")
READ_ONLY = re.compile(r"session is read-only|server is in hot standby mode")


def is_lost(error: BaseException) -> bool:
    """Return whether the connection is gone, so that a new one may help."""
    if not isinstance(error, psycopg.OperationalError | errors.IdleInTransactionSessionTimeout) or is_refusal(error):
        return False
    return error.sqlstate is None or isinstance(error, ENDED) or error.sqlstate.startswith("08")


def is_refusal(error: psycopg.Error) -> bool:
    """Return whether the server refused the connection, and will refuse the next one: a wrong password, no such database."""
    text = str(error)
    return error.sqlstate is None and REFUSED.match(text) is not None and not any(reason in text for reason in PASSING)


def is_unknown_refusal(error: psycopg.Error) -> bool:
    """Return whether the server refused the connection with a text that we do not know, in another language for example."""
    return is_refusal(error) and not any(reason in str(error) for reason in FINAL)


def passing_error(state: str, text: str) -> psycopg.Error:
    """Return the error for a server that refuses a connection for now."""
    return errors.TooManyConnections(text) if state == TOO_MANY_CONNECTIONS else errors.CannotConnectNow(text)


def replica_error(url: str) -> StoreReadOnlyError:
    return StoreReadOnlyError(f"{url} is a read-only replica; expected the primary server")


def translated(error: psycopg.Error, url: str, *, is_unknown: bool = False) -> Exception:
    """Translate an error. With `is_unknown`, a change was on the way when the connection was lost."""
    text = " ".join(str(error).split())
    if is_lost(error):
        if is_unknown:
            return StoreUnknownError(
                f"{url}: the connection was lost before the database answered ({text}); whether the change was made is "
                "unknown: look before you repeat the call"
            )
        if _found_replicas_only(error):
            return StoreReadOnlyError(f"{url}: all hosts are read-only replicas; expected the primary server among them")
        if isinstance(error, errors.TooManyConnections) or any(reason in text for reason in USED_UP):
            return StoreLostError(
                f"{url} has no connection left ({text}); nothing was changed: close connections, or raise max_connections or "
                "the limit of the role or the database"
            )
        return StoreLostError(f"{url} cannot be reached ({text}); nothing was changed: check the server and the network")
    if is_refusal(error):
        return StoreRefusedError(f"{url}: the server refused the connection ({text}); check user, password and database")
    match error:
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreFullError(f"{url}: {text}; nothing was written")
        case errors.ReadOnlySqlTransaction():
            return StoreReadOnlyError(f"{url} cannot be written: it is a read-only replica; expected the primary server")
        case errors.LockNotAvailable() | errors.QueryCanceled() | errors.DeadlockDetected():
            return StoreBusyError(f"{url} is locked by another process ({text}); nothing was changed")
        case errors.InsufficientPrivilege():
            return StoreRefusedError(
                f"{url}: {text}; the user needs CREATE on the database, or must own the schema and its tables"
            )
        case _:
            return StoreError(f"{url}: {text}")


def _found_replicas_only(error: psycopg.Error) -> bool:
    """Return whether all hosts answered, and none of them accepts writes."""
    attempts = FAILED_ATTEMPT.findall(str(error))
    return bool(attempts) and all(map(READ_ONLY.search, attempts))
