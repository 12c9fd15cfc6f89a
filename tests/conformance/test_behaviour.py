"""Every rule of behaviour, on HoltMQ with either store, and on a live RabbitMQ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from holtmq.testing import TestBroker, running_broker
from tests.conformance.behaviour import RULES, Rule
from tests.conformance.behaviour.rule import scene
from tests.peers.peer import POSTGRES
from tests.peers.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_holtmq_follows_the_rule(holtmq_broker_session: TestBroker, rule: Rule) -> None:
    with scene(holtmq_broker_session.port) as one:
        assert rule.try_on(one) == rule.holtmq


@pytest.fixture(scope="module")
def broker_on_postgres(postgres: Postgres) -> Iterator[TestBroker]:
    with running_broker(postgres.url(), durability="off") as broker:
        yield broker


@pytest.mark.peer(POSTGRES)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_holtmq_follows_the_rule_on_postgresql(broker_on_postgres: TestBroker, rule: Rule) -> None:
    with scene(broker_on_postgres.port) as one:
        assert rule.try_on(one) == rule.holtmq


@pytest.mark.rabbitmq
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rabbitmq_does_what_we_say_of_it(rabbitmq: RabbitMQ, rule: Rule) -> None:
    with scene(rabbitmq.amqp_port) as one:
        assert rule.try_on(one) == rule.rabbitmq
