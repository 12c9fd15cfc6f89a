"""The pytest plugin: `holtmq_broker` is there in every test suite that has HoltMQ installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.testing import TestBroker, running_broker


@pytest.fixture
def holtmq_broker() -> Iterator[TestBroker]:
    """A fresh AMQP broker on a free port of this machine: `host`, `port`, and `url` for clients that take one."""
    with running_broker() as broker:
        yield broker
