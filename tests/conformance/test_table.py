"""The table of cases on the router, on the naive broker, and compared with the recorded outcomes of RabbitMQ."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

import holtmq
from tests.conformance.record import RECORDED
from tests.conformance.table import Scenario, load
from tests.conformance.targets import EmbeddedTarget, LocalTarget, NaiveTarget, RouterTarget

SCENARIOS = load()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.rule)
@pytest.mark.parametrize("target", [RouterTarget, NaiveTarget])
def test_every_case_has_its_outcome(target: type[LocalTarget], scenario: Scenario) -> None:
    outcomes = zip(scenario.steps, target().run(scenario), strict=True)
    assert [(step.text, outcome) for step, outcome in outcomes] == [(step.text, step.expected) for step in scenario.steps]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.rule)
def test_every_case_holds_in_a_file_that_two_have_open(scenario: Scenario, tmp_path: Path) -> None:
    """Take the steps through two handles in turn, so that each must notice what the other has changed."""
    path = tmp_path / "shop.db"
    with holtmq.open(path, durability="off") as one, holtmq.open(path, durability="off") as other:
        queues: set[str] = set()
        targets = itertools.cycle([EmbeddedTarget(one, queues), EmbeddedTarget(other, queues)])
        outcomes = [(step.text, target.apply(step.action)) for step, target in zip(scenario.steps, targets, strict=False)]
    assert outcomes == [(step.text, step.expected) for step in scenario.steps]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.rule)
def test_every_case_was_confirmed_by_rabbitmq_or_says_why_not(scenario: Scenario) -> None:
    recorded = json.loads(RECORDED.read_text())["scenarios"]
    if scenario.unanswerable is not None:
        assert scenario.rule not in recorded
        return
    seen = [(text, tuple(outcome) if isinstance(outcome, list) else outcome) for text, outcome in recorded[scenario.rule]]
    assert seen == [(step.text, step.expected_of_rabbitmq) for step in scenario.steps if step.is_case]


def test_the_table_is_large() -> None:
    assert sum(step.is_case for scenario in SCENARIOS for step in scenario.steps) >= 450


def test_the_names_of_rules_are_unique() -> None:
    assert len({scenario.rule for scenario in SCENARIOS}) == len(SCENARIOS)
