"""Who may open a file: a broker exclusively, libraries together; with the locks of Unix, with those of Windows, with none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holtmq.errors import StoreOwnedError
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.ownership import SUFFIX
from tests.deadline import PATIENCE_S

NO_FCNTL = """
import sys
sys.modules["fcntl"] = None
"""
WINDOWS_LOCKS = """
import fcntl, os, sys, types
import subprocess  # which takes a system that has msvcrt for Windows
def locking(descriptor, mode, size):
    fcntl.lockf(descriptor, mode, size, os.lseek(descriptor, 0, os.SEEK_CUR))
sys.modules["msvcrt"] = types.SimpleNamespace(locking=locking, LK_NBLCK=fcntl.LOCK_EX | fcntl.LOCK_NB, LK_UNLCK=fcntl.LOCK_UN)
sys.modules["fcntl"] = None
"""
OPEN = """
from holtmq.store.sqlite.database import SqliteDatabase
database = SqliteDatabase({path!r}, owner={owner!r})
print("open", flush=True)
sys.stdin.read()
database.close()
"""
SYSTEMS = pytest.mark.parametrize("system", ["import sys", WINDOWS_LOCKS], ids=["flock", "byte ranges"])
ADDRESS = "amqp://127.0.0.1:5672"


@contextmanager
def opened(system: str, path: Path, owner: str | None = None) -> Iterator[str]:
    """Open a file in a process of its own; yields "open", or the last line of what went wrong."""
    program = system + OPEN.format(path=str(path), owner=owner)
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield process.stdout.readline().strip() or process.stderr.read().splitlines()[-1]
        process.communicate(timeout=PATIENCE_S)


@SYSTEMS
def test_a_broker_keeps_everybody_else_out(system: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with opened(system, path, ADDRESS) as broker:
        assert broker == "open"
        with opened(system, path) as library, opened(system, path, "another") as rival:
            assert f"is in use by the broker at {ADDRESS}" in library
            assert f"is in use by the broker at {ADDRESS}" in rival
    with opened(system, path) as library:
        assert library == "open"


@SYSTEMS
def test_libraries_share_a_file_and_keep_brokers_out(system: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with opened(system, path) as first:
        with opened(system, path) as second:
            assert (first, second) == ("open", "open")
        with opened(system, path, ADDRESS) as broker:
            assert "is open in another process through holtmq.open; close it there first" in broker
    with opened(system, path, ADDRESS) as broker:
        assert broker == "open"


@SYSTEMS
def test_the_last_to_close_removes_the_lock_file(system: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    lock = Path(str(path) + SUFFIX)
    with opened(system, path):
        with opened(system, path):
            pass
        assert lock.exists()
    assert not lock.exists()


def test_the_address_of_a_killed_broker_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    Path(str(path) + SUFFIX).write_text(ADDRESS)
    library = SqliteDatabase(path)
    with pytest.raises(StoreOwnedError, match="is open in another process"):
        SqliteDatabase(path, owner="another")
    library.close()


def test_the_embedded_queue_works_without_fcntl(tmp_path: Path) -> None:
    program = f"""{NO_FCNTL}
import holtmq
with holtmq.open({str(tmp_path / "shop.db")!r}) as mq:
    mq.queue("inbox").put("hello")
    print(mq.queue("inbox").pop().text)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("hello\n", "")
    assert [file.name for file in tmp_path.iterdir()] == ["shop.db"]
