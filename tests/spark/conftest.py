"""Brokers to read from and write to."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holtmq.spark import register
from tests.amqp_client import Amqp, Channel
from tests.deadline import eventually
from tests.server.process import broker_process


@pytest.fixture(autouse=True)
def _registered(request: pytest.FixtureRequest) -> None:
    """Register the source again: Py4J may serve this thread with another one that has no active session."""
    if "spark" in request.fixturenames:
        register(request.getfixturevalue("spark"))


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A running broker."""

    name: str
    port: int

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"


@pytest.fixture(params=["holtmq", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveBroker]:
    """HoltMQ, then RabbitMQ."""
    if request.param == "rabbitmq":
        yield LiveBroker("rabbitmq", request.getfixturevalue("rabbitmq").amqp_port)
        return
    with broker_process(tmp_path / "broker.db") as broker:
        yield LiveBroker("holtmq", broker.port)


@pytest.fixture
def channel(live: LiveBroker) -> Iterator[Channel]:
    """A client of the live broker."""
    with Amqp(live.port) as amqp:
        yield amqp.channel()


@pytest.fixture
def queue(channel: Channel) -> Iterator[str]:
    """A durable queue for one test."""
    name = f"spark-{uuid.uuid4()}"
    channel.declare(name, durable=True)
    yield name
    channel.delete(name)


def amqp_options(live: LiveBroker, **more: object) -> dict[str, str]:
    return {"url": live.url, **{name: str(value) for name, value in more.items()}}


def wait_until(holds: Callable[[], bool], patience_s: float = 180.0) -> None:
    """Wait until another process, which may have to start Java first, has reached a state."""
    eventually(holds, "a state of another process", patience_s=patience_s)
