"""A data file that is moved, replaced or loses its WAL under a running broker: nothing is confirmed until it is back."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sqlite import data_file
from holtmq.wire import methods as wire
from tests.deadline import PATIENCE_S, eventually
from tests.management.conftest import Node, running_node
from tests.store.test_data_file import LOSSES, move_away


@pytest.fixture(autouse=True)
def _looking_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "CHECK_EVERY_S", 0)


def is_healthy(node: Node) -> bool:
    return node.http.call("GET", "/api/health/checks/alarms").status == 200


def test_a_message_is_not_confirmed_before_the_file_is_back(tmp_path: Path) -> None:
    """The broker looks at the file before each commit, not only when it is idle."""
    path = tmp_path / "a.db"
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        put_back = move_away(path)
        channel.publish("", "q", b"meanwhile", delivery_mode=2)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionBlocked)
        put_back()
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        assert isinstance(channel.next(PATIENCE_S).method, wire.BasicAck)


def test_a_message_is_not_confirmed_if_the_file_is_lost_during_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker also looks after the commit, even if it has just looked before it."""
    path = tmp_path / "a.db"
    monkeypatch.setattr(data_file, "CHECK_EVERY_S", PATIENCE_S)
    commit = BatchJournal.commit
    put_back: list[Callable[[], object]] = []

    def commit_and_lose(journal: BatchJournal) -> int:
        number = commit(journal)
        if not put_back:
            put_back.append(move_away(path))
        return number

    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        monkeypatch.setattr(BatchJournal, "commit", commit_and_lose)
        channel.publish("", "q", b"meanwhile", delivery_mode=2)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionBlocked)
        put_back[0]()
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        assert isinstance(channel.next(PATIENCE_S).method, wire.BasicAck)
        fetched = channel.get("q")
        assert fetched is not None
        assert (fetched.body, channel.get("q")) == (b"meanwhile", None)


@LOSSES
def test_publishers_are_blocked_until_the_file_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lose: Callable[[Path], Callable[[], object]], text: str
) -> None:
    path = tmp_path / "a.db"
    with running_node(data=str(path)) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        channel.publish("", "q", b"before", delivery_mode=2)
        assert isinstance(channel.next().method, wire.BasicAck)
        put_back = lose(path)
        eventually(lambda: not is_healthy(node), "an idle broker to notice")
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionBlocked)
        channel.publish("", "q", b"meanwhile", delivery_mode=2)
        put_back()
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        assert isinstance(channel.next(PATIENCE_S).method, wire.BasicAck)
        assert is_healthy(node)
    assert any(re.search(text, record.getMessage()) for record in caplog.records)
    with running_node(data=str(path)) as node, node.connect() as amqp:
        assert amqp.channel().drain("q") == [b"before", b"meanwhile"]
