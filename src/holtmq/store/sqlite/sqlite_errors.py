"""The errors of SQLite in our words: what happened, to which file, and what to do.

SQLite reports by number. Some numbers have several causes, which the file system can tell apart.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from holtmq.errors import NotAStoreError, StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError

READ_FAILURES = ("SQLITE_IOERR_READ", "SQLITE_IOERR_SHORT_READ", "SQLITE_IOERR_CORRUPTFS", "SQLITE_IOERR_DATA")


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translated(error: sqlite3.Error, path: str) -> StoreError:
    """Translate an error of SQLite about the file at `path`."""
    match _primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StoreBusyError(f"{path} is locked by another process")
        case sqlite3.SQLITE_FULL:
            return StoreFullError(f"{path}: the disk is full; nothing was written")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _read_only(path)
        case sqlite3.SQLITE_NOTADB:
            return NotAStoreError(f"{path} is not a HoltMQ database; expected a HoltMQ database or a new file")
        case sqlite3.SQLITE_CORRUPT:  # also what SQLite makes of a failed read
            return NotAStoreError(
                f"{path} is damaged, or its disk fails to read it ({error}); "
                "check the system log for disk errors, and restore a backup if there are none"
            )
        case sqlite3.SQLITE_CANTOPEN:
            return _unopened(error, path)
        case sqlite3.SQLITE_IOERR:
            verb = "read" if error.sqlite_errorname in READ_FAILURES else "written"
            return StoreError(
                f"{path} cannot be {verb}: the disk reported an error ({error.sqlite_errorname}); "
                "check the system log, and quotas and limits on the size of files"
            )
        case sqlite3.SQLITE_CONSTRAINT:
            return StoreError(f"{path} refused a change that conflicts with its contents ({error}); this is a bug in HoltMQ")
        case _:
            return StoreError(f"{path}: {error}")


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _unopened(error: sqlite3.Error, path: str) -> StoreError:
    folder = Path(path).absolute().parent
    try:
        is_folder, has_folder = Path(path).is_dir(), folder.is_dir()
    except PermissionError as refusal:
        return StoreError(f"{path} cannot be opened: {refusal.strerror}; check the permissions of the folders that lead to it")
    if is_folder:
        return StoreError(f"{path} cannot be opened: it is a folder; expected a file")
    if not has_folder:
        return StoreError(f"{path} cannot be opened: the folder {folder} does not exist; create it, or choose another path")
    if not os.access(folder, os.W_OK):
        return _read_only(path)
    return StoreError(
        f"{path} cannot be opened: {error}; check its permissions, those of its folder, and the limit of open files"
    )


def _read_only(path: str) -> StoreReadOnlyError:
    folder = Path(path).resolve().parent
    if hasattr(os, "statvfs") and folder.is_dir() and os.statvfs(folder).f_flag & os.ST_RDONLY:
        return StoreReadOnlyError(f"{path} cannot be written: its file system is mounted read-only")
    return StoreReadOnlyError(f"{path} cannot be written; expected a file and a folder with write permission")
