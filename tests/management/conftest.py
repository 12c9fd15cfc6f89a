"""A broker with its HTTP API, started anew for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from holtmq.config import Config
from holtmq.errors import StoreError
from holtmq.server.run import running
from holtmq.server.server import Server
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.wire import methods as wire
from holtmq.wire.content import make_content, on_channel
from tests.amqp_client import Amqp
from tests.management.http import Http

UNREADABLE_HEADERS = bytes.fromhex("2000") + b"\x00\x00\x00\x05\x01aZZZ"
"""Properties whose headers are not a valid table. The broker reads headers only when it dead-letters a message."""


@dataclass(frozen=True)
class Node:
    """A broker in this process."""

    server: Server
    http: Http

    @property
    def amqp_port(self) -> int:
        return int(self.server.address.rsplit(":", 1)[1])

    def connect(self) -> Amqp:
        return Amqp(self.amqp_port)

    def put_unreadable(self, queue: str, count: int = 1) -> None:
        """Publish messages whose headers cannot be decoded."""
        with self.connect() as amqp:
            channel = amqp.channel()
            for _ in range(count):
                amqp.send(1, wire.BasicPublish(0, "", queue))
                amqp.write(on_channel(make_content(UNREADABLE_HEADERS, b"x"), 1, 131_072))
            channel.settle()


@contextmanager
def running_node(**settings: Any) -> Iterator[Node]:
    values = {"data": ":memory:", "amqp_port": 0, "http_port": 0, "stats_interval_s": 0.1, **settings}
    with running(Config(**values)) as server:
        assert server.http_address is not None
        yield Node(server, Http(server.http_address))


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


@pytest.fixture
def http(node: Node) -> Http:
    return node.http


@pytest.fixture
def blocked_node(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A broker that blocks publishers because it cannot write to disk."""

    def begin(_: SqliteDatabase, __: float) -> None:
        raise StoreError("the disk is full")

    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("stored", durable=True)
        monkeypatch.setattr(SqliteDatabase, "begin", begin)
        channel.publish("", "stored", b"x", delivery_mode=2)
        assert isinstance(amqp.next_event(0).method, wire.ConnectionBlocked)
        yield node
        monkeypatch.undo()
        assert isinstance(amqp.next_event(0).method, wire.ConnectionUnblocked)
