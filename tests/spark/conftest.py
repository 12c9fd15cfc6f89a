"""One Spark session for all tests of this folder, and brokers to read from and write to."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holtmq.spark import register, session
from tests.amqp_client import Amqp, Channel
from tests.server.process import broker_process


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {"spark.sql.warehouse.dir": warehouse, "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 2}
    spark = session("local[2]", config=settings)
    register(spark)
    yield spark
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Spark leaves the sockets to its Java process open
        spark.stop()


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that tests publish to and read from; `url` is what goes into the options."""

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


def wait_until(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait for something that another process does."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)
