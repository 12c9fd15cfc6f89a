"""The file itself: versions, damage, permissions, a full disk, and locks."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import holtmq
from holtmq.store.records import Durability
from holtmq.store.sqlite.database import STEPS, SqliteDatabase
from tests.deadline import PATIENCE_S


def user_version(path: Path) -> int:
    return int(sqlite3.connect(path).execute("PRAGMA user_version").fetchone()[0])


def test_a_new_file_has_the_newest_version(tmp_path: Path) -> None:
    SqliteDatabase(tmp_path / "a.db").close()
    assert user_version(tmp_path / "a.db") == len(STEPS)


def test_an_older_file_is_migrated_step_by_step(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SqliteDatabase(path).close()
    SqliteDatabase(
        path, steps=(*STEPS, "CREATE TABLE more (x);\nINSERT INTO more VALUES (1);\nINSERT INTO more VALUES (2);")
    ).close()
    assert user_version(path) == len(STEPS) + 1
    assert sqlite3.connect(path).execute("SELECT count(*) FROM more").fetchone() == (2,)


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SqliteDatabase(path).close()
    with pytest.raises(holtmq.StoreError, match="no such table: missing"):
        SqliteDatabase(path, steps=(*STEPS, "CREATE TABLE more (x);\nINSERT INTO missing VALUES (1);"))
    assert user_version(path) == len(STEPS)
    assert sqlite3.connect(path).execute("SELECT count(*) FROM sqlite_schema WHERE name = 'more'").fetchone() == (0,)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    SqliteDatabase(path, steps=(*STEPS, "CREATE TABLE more (x);")).close()
    newer, known = len(STEPS) + 1, len(STEPS)
    expected = f"has schema version {newer}, written by a newer HoltMQ; expected at most {known}"
    with pytest.raises(holtmq.StoreVersionError, match=expected):
        holtmq.open(path)


def test_a_file_of_version_1_is_migrated_with_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    old = SqliteDatabase(path, steps=STEPS[:1])
    with old.transaction() as connection:
        connection.execute(
            "INSERT INTO queues (vhost, name, durable, auto_delete, exclusive, arguments) VALUES ('/', 'q', 1, 0, 0, '{}')"
        )
        connection.execute("INSERT INTO routing_keys VALUES (1, 'k')")
        connection.execute("INSERT INTO messages VALUES (5, 1, '', 1, 0, 0, NULL, NULL, NULL, NULL, x'6d')")
    old.close()
    with holtmq.open(path) as mq:
        message = mq.queue("q").pop()
    assert message is not None
    assert message.body == b"m"
    assert user_version(path) == len(STEPS)


def test_a_queue_with_attempts_of_version_3_is_declared_again_with_the_same_attempts(tmp_path: Path) -> None:
    """0.1 wrote max_attempts=3 as x-delivery-limit 3, which allows four deliveries by now."""
    old = SqliteDatabase(tmp_path / "a.db", steps=STEPS[:3])
    with old.transaction() as connection:
        arguments = '{"x-delivery-limit":3}'
        values = "(vhost, name, durable, auto_delete, exclusive, arguments) VALUES ('/', 'q', 1, 0, 0, ?)"
        connection.execute(f"INSERT INTO queues {values}", (arguments,))
    old.close()
    for _ in range(2):
        with holtmq.open(tmp_path / "a.db") as mq:
            with pytest.raises(holtmq.PreconditionFailedError, match="x-delivery-limit"):
                mq.declare_queue("q", max_attempts=7)
            mq.declare_queue("q", max_attempts=3)
            assert [dict(queue.arguments) for queue in mq.topology().queues] == [{"x-delivery-limit": 2}]
    with holtmq.open(tmp_path / "a.db") as mq, pytest.raises(holtmq.PreconditionFailedError, match="x-delivery-limit"):
        mq.declare_queue("q", max_attempts=2)  # only once


def test_a_file_that_is_not_a_database_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"This is a diary, not a database. " * 100)
    before = path.read_bytes()
    with pytest.raises(holtmq.NotAStoreError, match="is not a HoltMQ database; expected a HoltMQ database or a new file"):
        holtmq.open(path)
    assert path.read_bytes() == before


def test_the_database_of_another_program_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    sqlite3.connect(path).execute("CREATE TABLE diary (day, words)")
    before = path.read_bytes()
    with pytest.raises(holtmq.NotAStoreError, match="belongs to another program"):
        holtmq.open(path)
    assert path.read_bytes() == before


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        mq.queue("q").put_many([("x" * 1000, f"k{n}") for n in range(1000)])
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(holtmq.NotAStoreError, match="is damaged"), holtmq.open(path) as mq:
        mq.queue("q").pop_many(1000)


@pytest.mark.parametrize("path", ["/no/such/folder/a.db", "/"])
def test_a_path_where_no_file_can_be_created_is_refused(path: str) -> None:
    with pytest.raises(holtmq.StoreError, match="cannot be opened"):
        holtmq.open(path)


USE = """
import os, sys, holtmq
os.setuid(65534)
try:
    with holtmq.open(sys.argv[1]) as mq:
        mq.queue("q").put("m")
except holtmq.StoreError as error:
    print(type(error).__name__, error)
"""


AS_ROOT = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can run the test as a user without permissions; CI runs as root"
)


def use_as_another_user(path: Path) -> str:
    """Put a message as a user without permissions. Return the error."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", USE, str(path)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=True).stdout


@AS_ROOT
def test_a_folder_that_may_not_be_entered_is_reported(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    told = use_as_another_user(tmp_path / "private" / "a.db")
    assert told.startswith(f"StoreError {tmp_path}/private/a.db cannot be opened: Permission denied; check the permissions of")


@AS_ROOT
def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        mq.queue("q").put("m")
    for folder in (tmp_path, *(parent for parent in tmp_path.parents if "pytest" in str(parent))):
        folder.chmod(0o755)
    path.chmod(0o444)
    assert use_as_another_user(path).startswith(f"StoreReadOnlyError {path} cannot be written")
    with holtmq.open(path) as mq:
        assert mq.queue("q").size() == 1


def test_a_full_disk_raises_an_error_and_loses_nothing(tmp_path: Path) -> None:
    with holtmq.open(tmp_path / "a.db") as mq:
        queue = mq.queue("q")
        queue.put("kept", "k")
        with mq.database.lock() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 10}")
        with pytest.raises(holtmq.StoreFullError, match="the disk is full; nothing was written"):
            queue.put_many([(b"x" * 10_000, "big") for _ in range(50)])
        with pytest.raises(holtmq.StoreFullError):
            queue.put(b"x" * 100_000, "big")
        assert [m.text for m in queue.list_messages()] == ["kept"]
        with mq.database.lock() as connection:
            connection.execute(f"PRAGMA max_page_count = {pages + 10_000}")
        queue.put("more", "big")
        assert [m.text for m in queue.pop_many(5)] == ["kept", "more"]


def test_a_lock_held_for_longer_than_the_timeout_raises_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path, timeout_s=0.05) as mq:
        queue = mq.queue("q")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for call in (lambda: queue.put("m"), queue.pop):
            with pytest.raises(holtmq.StoreBusyError, match=r"was locked by another process for more than 0\.05 s"):
                call()
        other.execute("COMMIT")
        queue.put("m")
        assert queue.size() == 1


def test_an_unknown_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(holtmq.StoreError, match="durability must be 'full', 'normal' or 'off', got 'high'"):
        holtmq.open(tmp_path / "a.db", durability="high")  # type: ignore[arg-type]


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("normal", 1), ("off", 0)])
def test_durability_sets_synchronous_of_sqlite(tmp_path: Path, durability: Durability, synchronous: int) -> None:
    database = SqliteDatabase(tmp_path / "a.db", durability=durability, owner="a broker")
    with database.lock() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    database.close()
