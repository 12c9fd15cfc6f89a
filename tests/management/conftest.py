"""A broker with its HTTP API, new for each test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from holtmq.config import Config
from holtmq.server.run import running
from holtmq.server.server import Server
from tests.amqp_client import Amqp
from tests.management.http import Http


@dataclass(frozen=True)
class Node:
    server: Server
    http: Http

    @property
    def amqp_port(self) -> int:
        return int(self.server.address.rsplit(":", 1)[1])

    def connect(self) -> Amqp:
        return Amqp(self.amqp_port)


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
