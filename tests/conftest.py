"""What all tests share: the peers, started once and only where a test asks for them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.peers.rabbitmq import RabbitMQ, find_server, running_rabbitmq

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests; it takes seconds to start, so only if one asks for it."""
    from holtmq.spark import register, session

    warehouse = tmp_path_factory.mktemp("warehouse")
    settings = {"spark.sql.warehouse.dir": warehouse, "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": 2}
    spark = session("local[2]", config=settings)
    register(spark)
    yield spark
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Spark leaves the sockets to its Java process open
        spark.stop()


def _require_rabbitmq() -> None:
    if find_server() is not None:
        return
    reason = "RabbitMQ is not installed here (Debian: apt-get install rabbitmq-server); .ci/run installs it"
    if os.environ.get("HOLTMQ_REQUIRE_PEERS"):
        pytest.fail(reason)
    pytest.skip(reason)
