"""A WAL that a crash left behind: damage that costs commits is reported, and nothing else is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import holtmq
from holtmq.store.sqlite.wal_check import APPLICATION_ID_AT, FRAME_HEADER_BYTES, HEADER_BYTES, USUAL_PAGE_SIZE, scan_wal
from tests.store.test_data_file import leave_a_wal

ROLL_BACK_A_LARGE_TRANSACTION = """
import os, sys, holtmq
mq = holtmq.open(sys.argv[1])
mq.queue("q").put("kept")
mq.database.connection.execute("PRAGMA cache_size = 5")
try:
    with mq.transaction():
        mq.queue("q").put_many([(bytes(3000), "k")] * 100)
        raise KeyError
except KeyError:
    pass
mq.queue("q").put("kept")
os._exit(0)
"""


def flip_a_bit(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def size_after_opening(path: Path) -> int:
    with holtmq.open(path) as mq:
        return mq.queue("q").size()


def place_of(frame: int) -> int:
    return HEADER_BYTES + (frame - 1) * (FRAME_HEADER_BYTES + USUAL_PAGE_SIZE)


@pytest.mark.parametrize("part", ["page", "checksum", "salt"])
def test_a_damaged_frame_is_reported_with_the_commits_behind_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    path = tmp_path / "a.db"
    leave_a_wal(path)
    found = scan_wal(f"{path}-wal")
    assert found is not None
    frame = found.commits[-5]  # each of the last commits is one put
    flip_a_bit(Path(f"{path}-wal"), place_of(frame) + {"page": 1000, "checksum": 20, "salt": 10}[part])
    assert size_after_opening(path) == 5
    lost = 4 if part == "salt" else 5  # a frame with other salts may be an old one
    report = f"a.db-wal is damaged at frame {frame}: {lost} of its {len(found.commits) - 5 + lost} commits cannot be read"
    assert report in caplog.text
    caplog.clear()
    assert size_after_opening(path) == 5
    assert caplog.text == ""


def test_an_incomplete_last_commit_is_not_called_a_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    leave_a_wal(path)
    found = scan_wal(f"{path}-wal")
    assert found is not None
    flip_a_bit(Path(f"{path}-wal"), place_of(found.commits[-1]) + 1000)
    assert size_after_opening(path) == 9
    assert f"the last of its {len(found.commits)} commits is incomplete at frame {found.commits[-1]}" in caplog.text


def test_a_damaged_header_is_reported_with_all_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    holtmq.open(path).close()
    leave_a_wal(path)
    found = scan_wal(f"{path}-wal")
    assert found is not None
    flip_a_bit(Path(f"{path}-wal"), 17)
    assert size_after_opening(path) == 0
    number = len(found.commits)
    assert f"a.db-wal is damaged in its header: {number} of its {number} commits cannot be read" in caplog.text


def test_a_sound_wal_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    leave_a_wal(path)
    assert size_after_opening(path) == 10
    assert caplog.text == ""


def test_the_remains_of_a_transaction_that_was_rolled_back_are_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.db"
    subprocess.run([sys.executable, "-c", ROLL_BACK_A_LARGE_TRANSACTION, str(path)], check=True, timeout=60)
    found = scan_wal(f"{path}-wal")
    assert found is not None
    assert Path(f"{path}-wal").stat().st_size > place_of(found.commits[-1] + 20), "expected remains in the WAL"
    assert size_after_opening(path) == 2
    assert caplog.text == ""


def append_a_torn_first_page(wal: Path) -> None:
    """Add a commit of the first page. The disk has its start, and zeros from where the application id would be."""
    content, step = wal.read_bytes(), FRAME_HEADER_BYTES + USUAL_PAGE_SIZE
    frames = [content[at : at + step] for at in range(HEADER_BYTES, len(content), step)]
    last = [frame for frame in frames if int.from_bytes(frame[:4], "big") == 1][-1]
    start = last[:4] + frames[-1][4:FRAME_HEADER_BYTES] + last[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + APPLICATION_ID_AT]
    wal.write_bytes(content + start.ljust(step, b"\0"))


def test_a_torn_first_page_is_not_taken_for_another_program(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    leave_a_wal(path)
    append_a_torn_first_page(Path(f"{path}-wal"))
    found = scan_wal(f"{path}-wal")
    assert found is not None
    assert found.application_id == 0
    assert size_after_opening(path) == 10
    assert f"the last of its {len(found.commits)} commits is incomplete at frame {found.commits[-1]}" in caplog.text


def test_a_new_database_may_have_a_wal_without_an_application_id(tmp_path: Path) -> None:
    """Two processes that create a file at the same time leave one if they are killed early."""
    path = tmp_path / "a.db"
    with (
        closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as first,
        closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as second,
    ):
        for process in (first, second):
            process.execute("PRAGMA auto_vacuum = INCREMENTAL")
            process.execute("PRAGMA journal_mode = WAL")
        for end in ("", "-wal"):
            Path(f"{path}{end}").write_bytes((tmp_path / f"new.db{end}").read_bytes())
    found = scan_wal(f"{path}-wal")
    assert found is not None
    assert (found.commits, found.application_id) == ((1,), 0)
    assert size_after_opening(path) == 0


def leave_a_wal_of_another_program(path: Path) -> None:
    """Put a WAL that another program wrote for a database of its own beside a HoltMQ database."""
    other = path.with_name("other.db")
    holtmq.open(path).close()
    with closing(sqlite3.connect(other, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE diary (day, words)")
        Path(f"{path}-wal").write_bytes(Path(f"{other}-wal").read_bytes())


def test_the_wal_of_another_program_is_ignored_if_sqlite_ignores_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    leave_a_wal_of_another_program(path)
    flip_a_bit(Path(f"{path}-wal"), 17)
    assert size_after_opening(path) == 0
    assert "a.db-wal is damaged in its header" in caplog.text


@pytest.mark.parametrize("is_torn", [False, True], ids=["sound", "torn-at-its-end"])
def test_the_wal_of_another_program_is_refused(tmp_path: Path, *, is_torn: bool) -> None:
    path = tmp_path / "a.db"
    leave_a_wal_of_another_program(path)
    if is_torn:
        append_a_torn_first_page(Path(f"{path}-wal"))
    with pytest.raises(holtmq.NotAStoreError, match="has changes to the database of another program"):
        holtmq.open(path)
    Path(f"{path}-wal").unlink()
    assert size_after_opening(path) == 0
