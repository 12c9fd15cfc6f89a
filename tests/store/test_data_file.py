"""The data file in its folder: permissions, missing parts, other names, and what happens to it while it is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import holtmq
from holtmq.store.sqlite import data_file
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.ownership import SUFFIX
from tests.store.test_ownership import ADDRESS, opened

FLOCK = "import sys"
LEAVE_A_WAL = """
import os, sys, holtmq
mq = holtmq.open(sys.argv[1])
for number in range(10):
    mq.queue("q").put(f"m{number}")
os._exit(0)
"""


@pytest.fixture(autouse=True)
def _looking_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice a change of the file at the next call."""
    monkeypatch.setattr(data_file, "CHECK_EVERY_S", 0)


def leave_a_wal(path: Path) -> None:
    """Let a process put ten messages and end without closing the file, so that its WAL stays."""
    subprocess.run([sys.executable, "-c", LEAVE_A_WAL, str(path)], check=True, timeout=60)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_and_its_siblings_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with holtmq.open(tmp_path / "a.db") as mq:
            mq.queue("q").put("m")
            assert {file.name: mode_of(file) for file in tmp_path.iterdir()} == dict.fromkeys(
                ("a.db", "a.db-wal", "a.db-shm", "a.db" + SUFFIX), 0o600
            )
    finally:
        os.umask(before)


def test_an_existing_file_keeps_its_permissions_and_its_siblings_follow(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holtmq.open(path).close()
    path.chmod(0o640)
    with holtmq.open(path) as mq:
        mq.queue("q").put("m")
        assert {mode_of(file) for file in tmp_path.iterdir()} == {0o640}


@pytest.mark.parametrize("owner", [None, ADDRESS])
@pytest.mark.parametrize(
    ("damage", "found"),
    [(Path.unlink, "is missing"), (lambda path: os.truncate(path, 0), "is empty")],
    ids=["missing", "empty"],
)
def test_a_wal_without_its_file_is_not_ignored(
    tmp_path: Path, damage: Callable[[Path], None], found: str, owner: str | None
) -> None:
    path, aside = tmp_path / "a.db", tmp_path / "aside.db"
    leave_a_wal(path)
    shutil.copy(path, aside)
    damage(path)
    with pytest.raises(holtmq.StoreError, match=rf"a\.db {found}, but .*a\.db-wal has \d+ bytes of changes"):
        SqliteDatabase(path, owner=owner)
    shutil.copy(aside, path)
    with holtmq.open(path) as mq:
        assert mq.queue("q").size() == 10


def test_an_empty_wal_does_not_keep_a_new_file_from_being_created(tmp_path: Path) -> None:
    (tmp_path / "a.db-wal").touch()
    with holtmq.open(tmp_path / "a.db") as mq:
        assert mq.queue("q").size() == 0


def test_a_migration_does_not_adopt_the_wal_of_a_missing_file(tmp_path: Path) -> None:
    path, source = tmp_path / "a.db", tmp_path / "old.db"
    leave_a_wal(path)
    path.unlink()
    legacy = sqlite3.connect(source)
    legacy.execute("CREATE TABLE jobs (data, status, message_id, in_time, lock_time, done_time)")
    legacy.commit()
    legacy.close()
    with pytest.raises(holtmq.StoreError, match="is missing, but"):
        holtmq.migrate(source, path)


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holtmq.open(path).close()
    (tmp_path / "b.db").hardlink_to(path)
    for name in ("a.db", "b.db"):
        with pytest.raises(holtmq.StoreError, match="has 2 hard links; expected one"):
            holtmq.open(tmp_path / name)
    (tmp_path / "b.db").unlink()
    holtmq.open(path).close()


def test_a_second_broker_is_kept_out_by_a_symbolic_link_as_well(tmp_path: Path) -> None:
    path, link = tmp_path / "a.db", tmp_path / "link.db"
    link.symlink_to(path)
    with opened(FLOCK, path, ADDRESS) as broker:
        assert broker == "open"
        with opened(FLOCK, link, "another") as rival:
            assert f"is in use by the broker at {ADDRESS}" in rival
    with opened(FLOCK, link, ADDRESS) as broker, opened(FLOCK, path) as library:
        assert broker == "open"
        assert f"is in use by the broker at {ADDRESS}" in library


@pytest.mark.parametrize("owner", [None, "another"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_a_lost_lock_file_lets_nobody_else_in(tmp_path: Path, owner: str | None, *, is_replaced: bool) -> None:
    path, lock = tmp_path / "a.db", tmp_path / ("a.db" + SUFFIX)
    with opened(FLOCK, path, ADDRESS) as broker:
        assert broker == "open"
        lock.unlink()
        if is_replaced:
            lock.touch()
        with opened(FLOCK, path, owner) as rival:
            assert "is in use by another process" in rival


def test_a_file_that_was_moved_is_still_locked(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with opened(FLOCK, path) as library:
        assert library == "open"
        path.rename(tmp_path / "moved.db")
        with opened(FLOCK, tmp_path / "moved.db", ADDRESS) as broker:
            assert "is in use by another process" in broker
        (tmp_path / "moved.db").rename(path)


def test_closing_a_file_leaves_the_locks_of_another_connection_in_the_process(tmp_path: Path) -> None:
    """POSIX locks end when a process closes any descriptor of the file; another process could then remove the WAL."""
    path = tmp_path / "a.db"
    first = holtmq.open(path)
    second = holtmq.open(path)
    second.queue("q").put("m")
    first.close()
    with opened(FLOCK, path) as library:
        assert library == "open"
    assert (tmp_path / "a.db-wal").exists()
    second.queue("q").put("m")
    second.close()
    assert not (tmp_path / "a.db-wal").exists()
    assert [path for path in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(path)] == []


def test_a_forked_child_that_closes_the_file_leaves_its_parent_the_claim(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        queue = mq.queue("q")
        if (child := os.fork()) == 0:
            queue.put("from the child")
            mq.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with opened(FLOCK, path, ADDRESS) as broker:
            assert "is open in another process" in broker
        assert queue.size() == 1


def move_away(path: Path) -> Callable[[], object]:
    aside = path.with_name("aside.db")
    path.rename(aside)
    return lambda: aside.rename(path)


def replace(path: Path) -> Callable[[], object]:
    put_back = move_away(path)
    path.write_bytes(b"another file")
    return put_back


def move_wal_away(path: Path) -> Callable[[], object]:
    return move_away(path.with_name(path.name + "-wal"))


LOSSES = pytest.mark.parametrize(
    ("lose", "text"),
    [
        (move_away, r"a\.db was deleted or moved away while it is open"),
        (replace, r"a\.db was replaced by another file while it is open"),
        (move_wal_away, r"a\.db-wal was deleted or moved away while .*a\.db is open"),
    ],
    ids=["moved", "replaced", "WAL moved"],
)


@LOSSES
def test_nothing_is_written_to_a_file_that_is_not_there_any_more(
    tmp_path: Path, lose: Callable[[Path], Callable[[], object]], text: str
) -> None:
    with holtmq.open(tmp_path / "a.db") as mq:
        queue = mq.queue("q")
        queue.put("before")
        put_back = lose(tmp_path / "a.db")
        for call in (lambda: queue.put("m"), queue.pop, lambda: queue.put_many([("m", "k")]), lambda: mq.declare_queue("r")):
            with pytest.raises(holtmq.StoreReplacedError, match=text):
                call()
        put_back()
        queue.put("after")
        assert [message.text for message in queue.list_messages()] == ["before", "after"]


def test_closing_a_file_saves_what_was_in_a_deleted_wal(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        mq.queue("q").put("m")
        (tmp_path / "a.db-wal").unlink()
        with pytest.raises(holtmq.StoreReplacedError, match="which saves the changes that were in the WAL"):
            mq.queue("q").put("m")
    with holtmq.open(path) as mq:
        assert mq.queue("q").size() == 1


def test_a_relative_path_is_found_after_a_change_of_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with holtmq.open("a.db") as mq:
        monkeypatch.chdir("/")
        mq.queue("q").put("m")
        assert mq.queue("q").size() == 1
