"""Random histories of declaring, binding, unbinding, deleting and publishing: router, naive broker and RabbitMQ agree."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from holtmq import Router
from tests.conformance.strategies import histories, without_hash
from tests.conformance.table import Action, Bind, Publish
from tests.conformance.targets import NaiveTarget, RouterTarget, amqp_target
from tests.peers.rabbitmq import RabbitMQ


@given(histories())
@settings(max_examples=500, deadline=None)
def test_router_agrees_with_the_naive_broker_at_every_step(history: list[Action]) -> None:
    router, naive = RouterTarget(), NaiveTarget()
    for action in history:
        assert router.apply(action) == naive.apply(action), action


@given(histories())
@settings(max_examples=100, deadline=None)
def test_a_router_that_lived_through_changes_equals_one_built_from_its_topology(history: list[Action]) -> None:
    target = RouterTarget()
    for action in history:
        target.apply(action)
    fresh, pickled = Router(target.broker.to_topology()), pickle.loads(pickle.dumps(target.broker))
    for action in history:
        if isinstance(action, Publish) and action.exchange in target.broker.registry.exchanges:
            expected = target.apply(action)
            for other in (fresh, pickled):
                target.broker = other
                assert target.apply(action) == expected, action


@given(histories())
@settings(max_examples=200, deadline=None)
def test_an_explanation_reaches_the_queues_that_the_router_reaches(history: list[Action]) -> None:
    target = RouterTarget()
    for action in history:
        outcome = target.apply(action)
        if isinstance(action, Publish) and isinstance(outcome, tuple):
            explanation = target.broker.explain(action.exchange, action.key, action.headers)
            assert explanation.queues == outcome
            assert str(explanation)
            _assert_verdicts_agree_with_matches(target.broker, action)


def _assert_verdicts_agree_with_matches(router: Router, action: Publish) -> None:
    for name in router.registry.exchanges:
        matcher, bindings = router.matcher(name), router.bindings_from(name)
        judged = {binding for binding in bindings if matcher.judge(binding, action.key, action.headers).is_match}
        assert judged == set(matcher.match(action.key, action.headers))


@given(histories())
@settings(max_examples=200, deadline=None)
def test_a_covering_binding_matches_whatever_the_covered_one_matches(history: list[Action]) -> None:
    target = RouterTarget()
    for action in history:
        target.apply(action)
    router = target.broker
    for action in history:
        if not isinstance(action, Publish):
            continue
        for name in router.registry.exchanges:
            matcher = router.matcher(name)
            matched = set(matcher.match(action.key, action.headers))
            assert all(set(matcher.covering(binding)) <= matched for binding in matched)


@pytest.mark.rabbitmq
@given(histories(most=15).map(without_hash))
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
def test_router_agrees_with_rabbitmq_at_every_step(rabbitmq: RabbitMQ, history: list[Action]) -> None:
    router = RouterTarget(strict_unbind=False)
    with amqp_target(rabbitmq.amqp_port) as live:
        for action in history:
            if isinstance(action, Bind) and action.binding.routing_key.count("#") > 3:
                continue  # RabbitMQ 3.10.8 takes exponential time for these
            assert router.apply(action) == live.apply(action), action
