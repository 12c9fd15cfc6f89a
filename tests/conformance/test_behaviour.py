"""Every rule of behaviour, on HoltMQ and on a live RabbitMQ."""

from __future__ import annotations

import pytest

from holtmq.testing import TestBroker
from tests.conformance.behaviour import RULES, Rule
from tests.conformance.behaviour.rule import scene
from tests.peers.rabbitmq import RabbitMQ


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_holtmq_follows_the_rule(holtmq_broker_session: TestBroker, rule: Rule) -> None:
    with scene(holtmq_broker_session.port) as one:
        assert rule.try_on(one) == rule.holtmq


@pytest.mark.rabbitmq
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rabbitmq_does_what_we_say_of_it(rabbitmq: RabbitMQ, rule: Rule) -> None:
    with scene(rabbitmq.amqp_port) as one:
        assert rule.try_on(one) == rule.rabbitmq
