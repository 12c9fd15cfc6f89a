"""The table of cases on HoltMQ's own broker, over AMQP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.testing import TestBroker, running_broker
from tests.conformance.record import observe
from tests.conformance.table import Scenario, load


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with running_broker() as broker:
        yield broker


@pytest.mark.parametrize("scenario", load(), ids=lambda scenario: scenario.rule)
def test_every_case_holds_over_the_wire(broker: TestBroker, scenario: Scenario) -> None:
    outcomes = zip(scenario.steps, observe(scenario, broker.port), strict=True)
    assert [(step.text, outcome) for step, outcome in outcomes] == [(step.text, step.expected) for step in scenario.steps]
