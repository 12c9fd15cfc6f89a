"""The unused space of the data file is given back on request, while the broker runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from holtmq.management.resources import vacuum
from holtmq.store.sqlite.space import PAGES_KEPT
from tests.deadline import eventually
from tests.management.conftest import Node, running_node
from tests.management.http import assert_answer
from tests.store.test_space import make_old_file

KIB = 1024
MESSAGES = PAGES_KEPT // 2
"""Messages of a page each: too few for their space to be given back without a request."""


def fill(node: Node, queue: str, number: int = MESSAGES) -> None:
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare(queue, durable=True)
        channel.confirm()
        for _ in range(number):
            channel.publish("", queue, bytes(4 * KIB), delivery_mode=2)
        confirmed = 0
        while confirmed < number:
            confirmed = channel.next().method.delivery_tag


def free_pages(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def test_a_running_broker_gives_back_all_unused_space(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with running_node(data=str(path)) as node:
        fill(node, "kept", 5)
        fill(node, "purged")
        assert node.http.delete("/api/queues/%2F/purged/contents") == 204
        eventually(lambda: free_pages(path) >= MESSAGES, "free pages")
        status, body, _ = node.http.post("/api/vacuum", {})
        assert (status, body["is_done"]) == (200, True)
        assert free_pages(path) == 0
        assert path.stat().st_size < 300 * KIB
        assert body["bytes_before"] >= MESSAGES * 4 * KIB
        assert body["bytes_after"] == path.stat().st_size  # the WAL is empty
        assert node.http.message_count("kept") == 5
        fill(node, "purged", 5)


def test_a_long_vacuum_goes_on_between_requests_and_lets_clients_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum, "ANSWER_S", 0)
    path = tmp_path / "a.db"
    with running_node(data=str(path)) as node:
        fill(node, "purged")
        assert node.http.delete("/api/queues/%2F/purged/contents") == 204
        eventually(lambda: free_pages(path) >= MESSAGES, "free pages")
        status, body, _ = node.http.post("/api/vacuum", {})
        assert (status, body["is_done"]) == (200, False)
        fill(node, "kept", 5)
        eventually(lambda: free_pages(path) == 0, "all space to be given back")
        assert node.http.message_count("kept") == 5


def test_a_file_that_must_be_rebuilt_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    make_old_file(path)
    with running_node(data=str(path)) as node:
        answer = node.http.post("/api/vacuum", {})
        assert_answer(answer, 503, f"stop the broker and run `holtmq vacuum {path}`")


def test_a_broker_in_memory_has_nothing_to_give_back() -> None:
    with running_node() as node:
        assert node.http.post("/api/vacuum", {}).body == {"is_done": True, "bytes_before": 0, "bytes_after": 0}
