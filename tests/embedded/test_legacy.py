"""MiniQ and litequeue files become HoltMQ files, and MiniQ's patterns AMQP patterns."""

from __future__ import annotations

import os
import sqlite3
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litequeue import LiteQueue

import holtmq
from holtmq import Binding
from holtmq.embedded.legacy import PatternWarning
from holtmq.routing.topic import TopicMatcher
from tests.embedded.killing import count_calls, die_at_call, moments

MINIQ = """
CREATE TABLE orders (message_id TEXT NOT NULL, topic TEXT, data TEXT NOT NULL, status INTEGER NOT NULL, priority INTEGER,
                     in_time INTEGER NOT NULL, lock_time INTEGER, done_time INTEGER);
CREATE TABLE unrelated (x);
"""


@pytest.fixture
def miniq(tmp_path: Path) -> Path:
    path = tmp_path / "miniq.db"
    with sqlite3.connect(path) as connection:
        connection.executescript(MINIQ)
        rows = [
            ("1", "orders.food", "a", 0, 0, 1_700_000_000_000, None, None),
            ("2", "orders.toys.lego", "b", 0, 5, 1_700_000_000_001, None, None),
            ("3", None, "c", 1, 0, 1_700_000_000_002, 1_700_000_000_050, None),
            ("4", "it's.done", "d", 2, 0, 1_700_000_000_003, 1_700_000_000_050, 1_700_000_000_060),
            ("5", "x.", "e", 3, 0, 1_700_000_000_003, None, None),
        ]
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    return path


def test_a_miniq_file_is_taken_over_whole_and_left_alone(miniq: Path, tmp_path: Path) -> None:
    before = miniq.read_bytes()
    report = holtmq.migrate(miniq, tmp_path / "new.db")
    assert report.queues == {"orders": {"ready": 2, "locked": 1, "done": 1, "failed": 1}}
    assert miniq.read_bytes() == before
    with holtmq.open(tmp_path / "new.db") as mq:
        queue = mq.queue("orders")
        found = {m.text: m for state in ("ready", "locked", "done", "failed") for m in queue.list_messages(state)}
        assert {text: (m.routing_key, m.state, m.priority) for text, m in found.items()} == {
            "a": ("orders.food", "ready", 0),
            "b": ("orders.toys.lego", "ready", 5),
            "c": ("", "locked", 0),
            "d": ("it's.done", "done", 0),
            "e": ("x.", "failed", 0),
        }
        assert found["a"].created_at.timestamp() == 1_700_000_000
        assert found["d"].settled_at is not None
        assert found["d"].settled_at.timestamp() == 1_700_000_000.06
        assert [m.text for m in queue.pop_many(2, "orders.#")] == ["b", "a"]
        lost = queue.pop()
        assert lost is not None
        assert (lost.text, lost.attempts) == ("c", 2), "whoever had it locked is gone"


def test_a_litequeue_file_is_taken_over(tmp_path: Path) -> None:
    legacy = LiteQueue(tmp_path / "lite.db")
    for n in range(10):
        legacy.put(f"m{n}")
    first = legacy.pop()
    legacy.done(first.message_id)
    legacy.pop()
    report = holtmq.migrate(tmp_path / "lite.db", tmp_path / "new.db")
    ((name, states),) = report.queues.items()
    assert states == {"ready": 8, "locked": 1, "done": 1}
    with holtmq.open(tmp_path / "new.db") as mq:
        assert [m.text for m in mq.queue(name).pop_many(20)] == [f"m{n}" for n in range(1, 10)]
        created = mq.queue(name).list_messages()[0].created_at.timestamp()
        assert abs(created - time.time()) < 3600


def test_progress_is_told_for_large_files(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "big.db") as connection:
        connection.executescript(MINIQ)
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?, 'x', 0, 0, ?, NULL, NULL)",
            [(f"{n:06}", f"k.{n % 100}", n) for n in range(25_000)],
        )
    connection.close()
    seen: list[tuple[int, int]] = []
    holtmq.migrate(tmp_path / "big.db", tmp_path / "new.db", lambda done, total: seen.append((done, total)))
    assert seen == [(10_000, 25_000), (20_000, 25_000), (25_000, 25_000)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE orders SET status = 9", "has a message with status integer 9; expected an integer from 0 to 3"),
        ("UPDATE orders SET status = 'x'", "status string 'x'"),
        ("UPDATE orders SET status = 9e999", "status"),
        ("UPDATE orders SET in_time = 9e999", "in_time"),
        ("UPDATE orders SET in_time = -1", "in_time"),
        ("UPDATE orders SET in_time = 9223372036854775807", "in_time"),
        ("UPDATE orders SET in_time = x'00'", "in_time"),
        ("UPDATE orders SET lock_time = 9e999", "lock_time"),
        ("UPDATE orders SET done_time = 'yesterday'", "done_time"),
        ("UPDATE orders SET priority = 'high'", "priority string 'high'; expected an integer"),
        ("UPDATE orders SET priority = 9e999", "priority"),
        ("UPDATE orders SET topic = x'00ff'", "topic bytes"),
        ("UPDATE orders SET topic = CAST(x'ff' AS TEXT)", "cannot be read"),
        ("UPDATE orders SET data = CAST(x'ff' AS TEXT)", "cannot be read"),
        ("ALTER TABLE orders RENAME TO 'amq.orders'", "amq."),
        ("UPDATE orders SET topic = printf('%300s', 'x')", "a routing key must be at most 255 bytes"),
        ("DROP TABLE orders", "has no table with data, in_time, message_id, status"),
    ],
)
def test_what_cannot_be_taken_over_is_refused_and_leaves_nothing(
    miniq: Path, tmp_path: Path, change: str, message: str
) -> None:
    with sqlite3.connect(miniq) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(holtmq.HoltmqError) as refusal:
        holtmq.migrate(miniq, tmp_path / "new.db")
    assert message in str(refusal.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["miniq.db"]


BLOBS = MINIQ.replace("data TEXT", "data BLOB")


def one_message(path: Path, data: object, schema: str = BLOBS) -> Path:
    with sqlite3.connect(path) as connection:
        connection.executescript(schema)
        connection.execute("INSERT INTO orders (message_id, data, status, in_time) VALUES ('1', ?, 0, 0)", (data,))
    connection.close()
    return path


@pytest.mark.parametrize("data", [400_000_000, 0, -1, 2.5])
def test_a_body_that_is_a_number_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(holtmq.InvalidValueError, match=r"data .*; expected text or a blob"):
        holtmq.migrate(one_message(tmp_path / "a.db", data), tmp_path / "new.db")


def test_blobs_are_taken_over_as_they_are(tmp_path: Path) -> None:
    for number, data in enumerate([b"", b"\x00\xff", "", "ü"]):
        holtmq.migrate(one_message(tmp_path / f"{number}.db", data), tmp_path / f"new{number}.db")
        with holtmq.open(tmp_path / f"new{number}.db") as mq:
            message = mq.queue("orders").pop()
            assert message is not None
            assert message.body == (data.encode() if isinstance(data, str) else data)


def test_text_in_another_encoding_is_taken_over(tmp_path: Path) -> None:
    text = "水" * 100_000
    path = one_message(tmp_path / "a.db", text, "PRAGMA encoding = 'UTF-16';" + MINIQ)
    holtmq.migrate(path, tmp_path / "new.db")
    with holtmq.open(tmp_path / "new.db") as mq:
        message = mq.queue("orders").pop()
        assert message is not None
        assert message.text == text


def test_a_small_file_that_stands_for_huge_messages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (message_id, status, in_time)")
        connection.executemany("INSERT INTO orders VALUES (?, 0, 0)", [(n,) for n in range(2000)])
        connection.execute(f"ALTER TABLE orders ADD COLUMN data TEXT DEFAULT '{'x' * 100_000}'")
    connection.close()
    with pytest.raises(holtmq.InvalidValueError, match="more bytes in its messages than in the file"):
        holtmq.migrate(path, tmp_path / "new.db")
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_generated_columns_and_views_are_not_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE orders (message_id, status, in_time, data BLOB GENERATED ALWAYS AS (zeroblob(400000000)) VIRTUAL)"
        )
        connection.execute("CREATE VIEW more AS SELECT 1 AS message_id, 0 AS status, 0 AS in_time, zeroblob(400000000) AS data")
        connection.execute("INSERT INTO orders VALUES (1, 0, 0)")
    connection.close()
    with pytest.raises(holtmq.NotAStoreError, match="has no table with"):
        holtmq.migrate(path, tmp_path / "new.db")


def test_an_existing_file_is_not_overwritten(miniq: Path, tmp_path: Path) -> None:
    (tmp_path / "new.db").write_text("precious")
    with pytest.raises(holtmq.StoreError, match="already exists; expected the path of a new file"):
        holtmq.migrate(miniq, tmp_path / "new.db")
    assert (tmp_path / "new.db").read_text() == "precious"


def test_killed_on_the_way_there_is_no_new_file_or_a_whole_one(miniq: Path, tmp_path: Path) -> None:
    target = tmp_path / "new.db"
    calls = count_calls(lambda: holtmq.migrate(miniq, tmp_path / "whole.db"))
    completed = []
    for number in moments(calls, 40):
        child = os.fork()
        if child == 0:
            die_at_call(number, lambda: holtmq.migrate(miniq, target))
            os._exit(0)
        os.waitpid(child, 0)
        completed.append(target.exists())
        if target.exists():
            with holtmq.open(target) as mq:
                assert len(mq.queue("orders").list_messages()) == 5
            target.unlink()
    assert set(completed) == {False, True}
    assert holtmq.migrate(miniq, target).messages == 5


@pytest.mark.parametrize(
    ("legacy", "pattern"),
    [
        ("orders.*", "orders.*.#"),
        ("*", "#"),
        ("orders.food", "orders.food"),
        ("*.error", "*.#.error"),
        ("a.*.b", "a.*.#.b"),
        ("", ""),
    ],
)
def test_legacy_patterns_have_equivalents(legacy: str, pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert holtmq.migrate_pattern(legacy) == pattern


@pytest.mark.parametrize(("legacy", "pattern"), [("order*", "*.#"), ("a.b*", "a.*.#"), ("a.b_c", "a.*.#")])
def test_a_pattern_without_an_equivalent_is_told(legacy: str, pattern: str) -> None:
    with pytest.warns(PatternWarning, match="no AMQP pattern is equivalent"):
        assert holtmq.migrate_pattern(legacy) == pattern


@given(st.text("ab.*", max_size=6), st.lists(st.text("ab.", max_size=6), max_size=20))
@settings(max_examples=300)
def test_the_new_pattern_takes_all_that_the_old_one_took_and_the_same_unless_it_warns(legacy: str, keys: list[str]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pattern = holtmq.migrate_pattern(legacy)
    matcher = TopicMatcher()
    matcher.add(Binding("", "", pattern))
    connection = sqlite3.connect(":memory:")
    for key in keys:
        (old,) = connection.execute("SELECT ? LIKE ?", (key, legacy.replace("*", "%"))).fetchone()
        new = bool(matcher.match(key, {}))
        assert new >= bool(old)
        assert caught or new == bool(old)
    connection.close()
