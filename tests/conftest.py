"""What all tests share: the peers, started once and only where a test asks for them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.peers.rabbitmq import RabbitMQ, find_server, running_rabbitmq


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A node that all tests share: each leaves it as empty as it found it."""
    _require_rabbitmq()
    with running_rabbitmq() as node:
        yield node


@pytest.fixture
def own_rabbitmq() -> Iterator[RabbitMQ]:
    """A node for one test to do with as it likes."""
    _require_rabbitmq()
    with running_rabbitmq() as node:
        yield node


def _require_rabbitmq() -> None:
    if find_server() is not None:
        return
    reason = "RabbitMQ is not installed here (Debian: apt-get install rabbitmq-server); .ci/run installs it"
    if os.environ.get("HOLTMQ_REQUIRE_PEERS"):
        pytest.fail(reason)
    pytest.skip(reason)
