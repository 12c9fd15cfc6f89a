"""The table of queue behaviour on the embedded library, on the broker, on a store that changes hands, and on RabbitMQ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holtmq.testing import running_broker
from tests.conformance.queue_table import QueueScenario, QueueStep, load_queue_scenarios
from tests.conformance.queue_targets import (
    BrokerQueueTarget,
    EmbeddedQueueTarget,
    HandoverTarget,
    Player,
    QueueTarget,
    TestClock,
    WireQueueTarget,
)
from tests.deadline import last_seen
from tests.peers.rabbitmq import RabbitMQ, binary

SCENARIOS = load_queue_scenarios()
by_rule = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.rule)


def over_the_wire(*, is_asked: Callable[[QueueScenario], bool]) -> pytest.MarkDecorator:
    """Parametrize over the scenarios that need no test clock and that the broker can be asked about."""
    chosen = [each for each in SCENARIOS if not each.needs_clock and is_asked(each)]
    return pytest.mark.parametrize("scenario", chosen, ids=lambda scenario: scenario.rule)


def has_no_policy(scenario: QueueScenario) -> bool:
    """Policies are set over HTTP; the broker without sockets runs the scenarios that have one."""
    return all(step.verb != "policy" for step in scenario.steps)


def of_holtmq(step: QueueStep) -> str | None:
    return step.expected


def of_rabbitmq(step: QueueStep) -> str | None:
    return step.expected_of_rabbitmq


def played(player: Player, scenario: QueueScenario, expected: Callable[[QueueStep], str | None]) -> None:
    try:
        outcomes = player.play(scenario, expected)
    finally:
        player.target.close()
    assert outcomes == [(step.text, expected(step)) for step in scenario.steps]


@by_rule
@pytest.mark.parametrize("kind", [EmbeddedQueueTarget, BrokerQueueTarget, HandoverTarget])
def test_a_queue_behaves_the_same_in_library_and_broker_and_between_them(
    kind: Callable[[str, TestClock], QueueTarget], scenario: QueueScenario, durable_place: str
) -> None:
    played(Player(kind(durable_place, TestClock())), scenario, of_holtmq)


@over_the_wire(is_asked=has_no_policy)
def test_the_broker_behaves_so_over_the_wire(scenario: QueueScenario) -> None:
    with running_broker() as broker:
        played(Player(WireQueueTarget(broker.port, no_policy, no_policy), patiently), scenario, of_holtmq)


@pytest.mark.rabbitmq
@over_the_wire(is_asked=lambda scenario: scenario.unanswerable is None)
def test_rabbitmq_behaves_so(rabbitmq: RabbitMQ, scenario: QueueScenario) -> None:
    def set_policy(name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        words = [binary(word) for word in ("/", name, pattern, json.dumps(definition), "0", "queues", "guest")]
        rabbitmq.evaluate(f"ok = rabbit_policy:parse_set({', '.join(words)})")

    def clear_policy(name: str) -> None:
        rabbitmq.evaluate(f"ok = rabbit_policy:delete({binary('/')}, {binary(name)}, {binary('guest')})")

    played(Player(WireQueueTarget(rabbitmq.amqp_port, set_policy, clear_policy), patiently), scenario, of_rabbitmq)


def patiently(look: Callable[[], str], expected: str | None) -> str:
    return look() if expected is None else last_seen(look, expected)


def no_policy(*_: object) -> None:
    raise AssertionError("no policies here")
