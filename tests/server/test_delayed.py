"""Delayed messages of the embedded library in a broker: each is delivered once, whenever it becomes available."""

from __future__ import annotations

from pathlib import Path

import pytest

import holtmq
from holtmq.testing import running_broker
from tests.amqp_client import Amqp


@pytest.mark.parametrize("backlog", [1, 3000])
def test_a_message_that_became_available_before_the_broker_started_is_delivered_once(tmp_path: Path, backlog: int) -> None:
    path = tmp_path / "shop.db"
    with holtmq.open(path) as mq:
        mq.declare_queue("q")
        mq.queue("q").put("later", "k", delay_s=0.001)
        mq.queue("q").put_many([(f"{number}", "k") for number in range(backlog)])
    with running_broker(path) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.consume("q", no_ack=True)
        bodies = channel.bodies(backlog + 1)
        assert sorted(bodies) == sorted([b"later", *(b"%d" % number for number in range(backlog))])
        assert channel.is_silent()
        assert channel.count("q") == 0
