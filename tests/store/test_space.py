"""Space that messages have left goes back to the file system, in the background and by command."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import holtmq
from holtmq.cli.main import main
from holtmq.server import upkeep
from holtmq.store.sqlite.database import CHANGES_PER_LOOK, SqliteDatabase
from holtmq.store.sqlite.space import PAGES_KEPT, WAL_KEPT_BYTES
from holtmq.wire import methods as wire
from tests.deadline import eventually
from tests.management.conftest import running_node

KIB = 1024
SMALL = (PAGES_KEPT + 200) * 4 * KIB
"""A file without messages, with the free pages that it keeps."""
MESSAGES = 2500


def auto_vacuum(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("PRAGMA auto_vacuum").fetchone()[0])


def make_old_file(path: Path) -> None:
    """Create a file as earlier versions did, which keeps the space of removed messages."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    with holtmq.open(path) as mq:
        mq.queue("q").put_many([(bytes(4 * KIB), "k")] * MESSAGES)
        mq.queue("q").purge()
    assert auto_vacuum(path) == 0  # set only in a file that is created from nothing
    assert path.stat().st_size > 2 * SMALL


@pytest.mark.parametrize("way", ["purge", "ack", "delete"])
def test_the_embedded_library_gives_back_the_space_of_removed_messages(tmp_path: Path, way: str) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path, durability="off") as mq:
        queue = mq.queue("q")
        queue.put_many([(bytes(4 * KIB), "k")] * MESSAGES)
        with mq.database.lock() as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert path.stat().st_size > 2 * SMALL
        match way:
            case "purge":
                queue.purge()
            case "delete":
                mq.delete_queue("q")
            case _:
                while messages := queue.pop_many(500):
                    with mq.transaction():
                        for message in messages:
                            message.ack()

        def shrinks_with_further_use() -> bool:
            mq.queue("other").put_many([(b"m", "k")] * CHANGES_PER_LOOK)
            mq.queue("other").purge()
            return path.stat().st_size < SMALL

        eventually(shrinks_with_further_use, "the file to shrink")


def test_a_file_keeps_some_free_pages_for_the_next_messages(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holtmq.open(path, durability="off") as mq:
        queue = mq.queue("q")
        queue.put_many([(bytes(4 * KIB), "k")] * (PAGES_KEPT // 3))
        mq.database.tidy()
        queue.purge()
        (pages,) = mq.database.connection.execute("PRAGMA page_count").fetchone()
        assert not mq.database.tidy()
        assert mq.database.connection.execute("PRAGMA page_count").fetchone() == (pages,)


def test_the_broker_gives_back_the_space_of_removed_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.02)
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        for _ in range(MESSAGES):
            channel.publish("", "q", bytes(4 * KIB), delivery_mode=2)
        confirmed = 0
        while confirmed < MESSAGES:
            confirmed = channel.next().method.delivery_tag
        eventually(lambda: path.stat().st_size > SMALL, "a checkpoint")
        channel.consume("q", no_ack=True)
        for _ in range(MESSAGES):
            channel.next()
        eventually(lambda: path.stat().st_size < SMALL, "the file to shrink")
        channel.publish("", "q", b"m", delivery_mode=2)
        arrived = [channel.next(), channel.next()]  # the message and its confirm, in any order
        assert [event.body for event in arrived if isinstance(event.method, wire.BasicDeliver)] == [b"m"]


@pytest.mark.parametrize("is_broker", [False, True], ids=["embedded", "broker"])
def test_the_wal_shrinks_after_a_long_reader_has_ended(tmp_path: Path, *, is_broker: bool) -> None:
    path, wal = tmp_path / "a.db", tmp_path / "a.db-wal"
    database = SqliteDatabase(path, durability="off", owner="a broker" if is_broker else None)
    with database.transaction() as connection:
        connection.execute("CREATE TABLE filler (content BLOB)")
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM state").fetchone()
    while wal.stat().st_size <= WAL_KEPT_BYTES + 4096 * KIB:
        with database.transaction() as connection:
            connection.execute("INSERT INTO filler VALUES (?)", (bytes(1024 * KIB),))
    database.tidy()
    assert wal.stat().st_size > WAL_KEPT_BYTES
    reader.close()
    if is_broker:
        database.tidy()
    else:
        for _ in range(2):
            with database.transaction() as connection:
                connection.execute("INSERT INTO filler VALUES (x'00')")
    assert wal.stat().st_size <= WAL_KEPT_BYTES
    database.close()


def test_the_command_rebuilds_an_old_file_which_then_shrinks_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.db"
    make_old_file(path)
    before = path.stat().st_size
    with holtmq.open(path) as mq:
        mq.queue("q").put("kept")
    assert main(["vacuum", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"file": str(path), "bytes_before": before, "bytes_after": path.stat().st_size}
    assert report["bytes_after"] < 200 * KIB
    assert auto_vacuum(path) == 2
    with holtmq.open(path) as mq:
        assert [message.text for message in mq.queue("q").pop_many(5)] == ["kept"]


def test_the_command_works_while_other_processes_use_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make_old_file(path)
    with holtmq.open(path) as mq:
        mq.queue("q").put("before")
        done = subprocess.run([sys.executable, "-m", "holtmq", "vacuum", str(path)], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        mq.queue("q").put("after")
        assert [message.text for message in mq.queue("q").pop_many(5)] == ["before", "after"]
    assert path.stat().st_size < 300 * KIB


def test_the_command_is_refused_while_a_broker_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = SqliteDatabase(tmp_path / "a.db", owner="amqp://127.0.0.1:5672")
    assert main(["vacuum", str(tmp_path / "a.db")]) == 1
    assert "is in use by the broker at amqp://127.0.0.1:5672; connect to that broker, or stop it" in capsys.readouterr().err
    database.close()
    assert main(["vacuum", str(tmp_path / "missing.db")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_the_command_vacuums_the_file_of_a_running_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.db"
    with running_node(data=str(path)) as node:
        url = node.http.base.replace("://", "://guest:guest@")
        assert main(["vacuum", "--http-url", url]) == 0
        size = path.stat().st_size
        assert capsys.readouterr().out.endswith(f"{size:,} bytes now.\n")
        assert main(["vacuum", str(path), "--json", "--http-url", url]) == 0
        assert json.loads(capsys.readouterr().out) == {"file": str(path), "bytes_before": size, "bytes_after": size}
        assert main(["vacuum", str(path)]) == 1
        assert "`holtmq vacuum --http-url URL` works while a broker runs" in capsys.readouterr().err
