"""Every rule of behaviour, on HoltMQ and on a live RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.testing import TestBroker, running_broker
from tests.conformance.behaviour import RULES, Rule
from tests.conformance.behaviour.rule import scene
from tests.peers.rabbitmq import RabbitMQ


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with running_broker() as broker:
        yield broker


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_holtmq_follows_the_rule(broker: TestBroker, rule: Rule) -> None:
    with scene(broker.port) as one:
        assert rule.try_on(one) == rule.holtmq


@pytest.mark.rabbitmq
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rabbitmq_does_what_we_say_of_it(rabbitmq: RabbitMQ, rule: Rule) -> None:
    with scene(rabbitmq.amqp_port) as one:
        assert rule.try_on(one) == rule.rabbitmq
