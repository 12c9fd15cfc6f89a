"""The table of cases on a live RabbitMQ."""

from __future__ import annotations

import pytest

from tests.conformance.record import answerable, observe
from tests.conformance.table import Scenario
from tests.peers.rabbitmq import RabbitMQ


@pytest.mark.rabbitmq
@pytest.mark.parametrize("scenario", answerable(), ids=lambda scenario: scenario.rule)
def test_rabbitmq_does_what_the_table_says_of_it(rabbitmq: RabbitMQ, scenario: Scenario) -> None:
    outcomes = zip(scenario.steps, observe(scenario, rabbitmq.amqp_port), strict=True)
    assert [(step.text, outcome) for step, outcome in outcomes] == [
        (step.text, step.expected_of_rabbitmq) for step in scenario.steps
    ]
