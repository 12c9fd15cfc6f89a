"""Processes that write to one file queue up, and a process that is killed or stopped in the queue keeps nobody out."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holtmq.errors import StoreBusyError
from holtmq.store.sqlite import database as database_module
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.turnstile import Turnstile, can_queue
from tests.deadline import PATIENCE_S

pytestmark = pytest.mark.skipif(not can_queue(), reason="there is no queue on this system")

ENTER_AND_STAY = """
import sys
from holtmq.store.sqlite.turnstile import Turnstile
assert Turnstile(sys.argv[1]).enter(10)
print("inside", flush=True)
sys.stdin.read()
"""
LOCK_AND_STAY = """
import sys
from holtmq.store.sqlite.database import SqliteDatabase
with SqliteDatabase(sys.argv[1]).transaction():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    SqliteDatabase(tmp_path / "a.db").close()
    return str(tmp_path / "a.db")


def started(script: str, path: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def test_one_is_inside_at_a_time(path: str) -> None:
    first, second = Turnstile(path), Turnstile(path)
    assert first.enter(0)
    assert not second.enter(0)
    assert not second.enter(0.01)
    first.leave()
    assert second.enter(0)
    assert not first.enter(0)
    second.leave()


def test_those_who_wait_go_in_one_after_the_other(path: str) -> None:
    first, others, order = Turnstile(path), [Turnstile(path) for _ in range(3)], list[bool]()

    def pass_through(turnstile: Turnstile) -> None:
        order.append(turnstile.enter(PATIENCE_S))
        turnstile.leave()

    assert first.enter(0)
    threads = [threading.Thread(target=pass_through, args=(each,)) for each in others]
    for thread in threads:
        thread.start()
    assert order == []
    first.leave()
    for thread in threads:
        thread.join()
    assert order == [True] * 3


def test_a_killed_process_lets_the_next_one_in(path: str) -> None:
    with started(ENTER_AND_STAY, path) as process:
        turnstile = Turnstile(path)
        assert not turnstile.enter(0)
        process.kill()
        assert turnstile.enter(PATIENCE_S)
        turnstile.leave()


def test_a_semaphore_that_was_removed_keeps_nobody_waiting(path: str) -> None:
    first, second = Turnstile(path), Turnstile(path)
    assert first.enter(0)
    assert not second.enter(0)
    first.remove()
    assert not second.enter(PATIENCE_S)
    first.leave()


def test_a_stopped_process_is_waited_for_no_longer_than_the_timeout(path: str) -> None:
    with started(LOCK_AND_STAY, path) as process:
        process.send_signal(signal.SIGSTOP)
        database = SqliteDatabase(path, timeout_s=0.05)
        for _ in range(2):
            with pytest.raises(StoreBusyError, match=r"for more than 0\.05 s"), database.transaction():
                pass
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        with database.transaction() as connection:
            connection.execute("UPDATE state SET order_version = order_version + 1")
        database.close()


def test_a_turn_that_nobody_ends_does_not_keep_others_from_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "LONGEST_TURN_S", 0.01)
    lost, database = Turnstile(path), SqliteDatabase(path)
    assert lost.enter(0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    is_done = threading.Event()

    def write() -> None:
        with database.transaction():
            is_done.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not is_done.is_set()
    other.execute("ROLLBACK")
    thread.join()
    assert is_done.is_set()
    other.close()
    database.close()


def test_nothing_is_left_in_the_system_when_the_last_process_has_closed_the_file(path: str) -> None:
    turnstile, database = Turnstile(path), SqliteDatabase(path)
    assert turnstile.enter(0)
    turnstile.leave()
    assert turnstile.key in known_keys()
    key = turnstile.key
    database.close()
    assert key not in known_keys()


def known_keys() -> set[int]:
    lines = Path("/proc/sysvipc/sem").read_text().splitlines()[1:]
    return {int(line.split()[0]) for line in lines}
