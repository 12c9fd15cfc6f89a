"""What SQLite reports, in words that tell an operator what to do."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import holtmq
from holtmq.errors import NotAStoreError, StoreBusyError, StoreError, StoreFullError, StoreReadOnlyError
from holtmq.store.sqlite.sqlite_errors import translated


def error_of(code: int, name: str) -> sqlite3.Error:
    error = sqlite3.OperationalError("what SQLite says")
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


@pytest.mark.parametrize(
    ("code", "name", "kind", "text"),
    [
        (sqlite3.SQLITE_BUSY_SNAPSHOT, "SQLITE_BUSY_SNAPSHOT", StoreBusyError, "is locked by another process"),
        (sqlite3.SQLITE_FULL, "SQLITE_FULL", StoreFullError, "the disk is full"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "SQLITE_READONLY_DBMOVED", StoreReadOnlyError, "cannot be written"),
        (sqlite3.SQLITE_IOERR_READ, "SQLITE_IOERR_READ", StoreError, r"cannot be read: the disk .* \(SQLITE_IOERR_READ\)"),
        (sqlite3.SQLITE_IOERR_WRITE, "SQLITE_IOERR_WRITE", StoreError, r"cannot be written: .* \(SQLITE_IOERR_WRITE\)"),
        (sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC", StoreError, r"cannot be written: .* \(SQLITE_IOERR_FSYNC\)"),
        (sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT", NotAStoreError, "is damaged, or its disk fails to read it"),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, "SQLITE_CONSTRAINT_UNIQUE", StoreError, "this is a bug in HoltMQ"),
        (sqlite3.SQLITE_CANTOPEN, "SQLITE_CANTOPEN", StoreError, "limit of open files"),
    ],
)
def test_each_kind_of_error_has_its_text(tmp_path: Path, code: int, name: str, kind: type[StoreError], text: str) -> None:
    with pytest.raises(kind, match=text) as raised:
        raise translated(error_of(code, name), str(tmp_path / "a.db"))
    assert type(raised.value) is kind


def test_a_constraint_of_sqlite_is_translated_too() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE one (x UNIQUE)")
        connection.execute("INSERT INTO one VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError) as raised:
            connection.execute("INSERT INTO one VALUES (1)")
    assert str(translated(raised.value, "a.db")) == (
        "a.db refused a change that conflicts with its contents (UNIQUE constraint failed: one.x); this is a bug in HoltMQ"
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/no/such/folder/a.db", "cannot be opened: the folder /no/such/folder does not exist"),
        ("/", "cannot be opened: it is a folder"),
    ],
)
def test_a_wrong_path_is_named(path: str, text: str) -> None:
    with pytest.raises(StoreError, match=text):
        holtmq.open(path)


@pytest.fixture
def read_only_mount(tmp_path: Path) -> Iterator[Path]:
    with holtmq.open(tmp_path / "a.db") as mq:
        mq.queue("q").put("m")
    folder = tmp_path / "mounted"
    folder.mkdir()
    for command in (["mount", "--bind", str(tmp_path), str(folder)], ["mount", "-o", "remount,ro,bind", str(folder)]):
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("file systems cannot be mounted here; CI runs as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a file system; CI runs as root")
@pytest.mark.parametrize("name", ["a.db", "new.db"])
def test_a_read_only_file_system_is_named(read_only_mount: Path, name: str) -> None:
    with (
        pytest.raises(StoreReadOnlyError, match="its file system is mounted read-only"),
        holtmq.open(read_only_mount / name) as mq,
    ):
        mq.queue("q").put("m")
