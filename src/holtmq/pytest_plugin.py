"""The pytest plugin: fixtures for every test suite of an environment that has HoltMQ installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.testing import TestBroker, running_broker


@pytest.fixture
def holtmq_broker() -> Iterator[TestBroker]:
    """A new AMQP broker for one test, in memory, on a free port: `host`, `port` and `url`."""
    with running_broker() as broker:
        yield broker


@pytest.fixture(scope="session")
def holtmq_broker_session() -> Iterator[TestBroker]:
    """One AMQP broker for the whole test session, in memory, on a free port: `host`, `port` and `url`.

    It is faster than `holtmq_broker` in a suite with many tests, and its queues, exchanges and messages outlive a test. Let
    each test use names of its own, for example `f"orders-{uuid.uuid4()}"`, or declare its queues exclusive and let the broker
    name them, so that the broker deletes them when the test closes its connection. With pytest-xdist, each worker process
    has a broker of its own.
    """
    with running_broker() as broker:
        yield broker
