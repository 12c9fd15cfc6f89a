"""The table of cases on HoltMQ's own broker, over AMQP."""

from __future__ import annotations

import pytest

from holtmq.testing import TestBroker
from tests.conformance.record import observe
from tests.conformance.table import Scenario, load


@pytest.mark.parametrize("scenario", load(), ids=lambda scenario: scenario.rule)
def test_every_case_holds_over_the_wire(holtmq_broker_session: TestBroker, scenario: Scenario) -> None:
    outcomes = zip(scenario.steps, observe(scenario, holtmq_broker_session.port), strict=True)
    assert [(step.text, outcome) for step, outcome in outcomes] == [(step.text, step.expected) for step in scenario.steps]
