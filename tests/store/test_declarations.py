"""The topology in a file that is damaged, or that somebody has tampered with."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

import holtmq
from holtmq.config import Config
from holtmq.server.startup import open_broker


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.db"
    with holtmq.open(path) as mq:
        mq.declare_exchange("x", "topic")
        mq.declare_queue("q")
        mq.bind("q", "x", "a.#")
    return path


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("exchanges.arguments", "400000000"),
        ("exchanges.arguments", "'[[[['"),
        ("queues.arguments", f"'{'[' * 100_000}'"),
        ("queues.name", f"'{'x' * 300}'"),
        ("bindings.arguments", "9e999"),
        ("bindings.metadata", "'[]'"),
        ("bindings.created_at", "'yesterday'"),
        ("vhosts.metadata", "7"),
    ],
)
def test_a_value_that_holtmq_does_not_write_is_reported(file: Path, column: str, value: str) -> None:
    whole = file.with_name("whole.db")
    shutil.copy(file, whole)
    table, name = column.split(".")
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(f"UPDATE {table} SET {name} = {value}")
    connection.close()
    expected = f"a.db is damaged: the table {table} has a value that HoltMQ does not write"
    with pytest.raises(holtmq.StoreError, match=expected):
        holtmq.open(file)
    with pytest.raises(holtmq.StoreError, match=expected):
        holtmq.Topology.load(file)
    with pytest.raises(holtmq.StoreError, match=expected):
        open_broker(Config(data=str(file)), "amqp://127.0.0.1:1", 0)
    shutil.copy(whole, file)
    holtmq.open(file).close()  # the attempts have not left it locked
