"""Counters: the messages that arrived are those in the queue and those that left it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.broker import traffic
from holtmq.steps import complete
from holtmq.topology import Binding
from tests.broker.conftest import Bench

STEPS = ("publish", "get", "get_ack", "consume", "ack", "requeue", "reject", "purge", "expire", "cancel", "reconnect")


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(STEPS), max_size=40),
    st.sampled_from([{}, {"max_length": 3}, {"delivery_limit": 1}, {"max_priority": 2}]),
)
def test_nothing_is_counted_twice_or_not_at_all(steps: list[str], arguments: dict[str, Any]) -> None:  # noqa: C901
    bench = Bench()
    client = bench.client()
    client.declare("q", **arguments)
    queue = bench.broker.vhosts["/"].queues["q"]
    published = acknowledged = 0
    for step in steps:
        held = list(client.channel.unsettled)
        match step:
            case "publish":
                client.publish("", "q", priority=published % 3)
                published += 1
            case "expire":
                client.publish("", "q", expiration="5")
                published += 1
                bench.turn(50)
            case "get":
                client.get("q")
            case "get_ack":
                client.channel.get("q", is_auto_ack=False)
            case "consume":
                client.consume("q", auto_ack=published % 2 == 0)
            case "cancel":
                for tag in list(client.channel.consumers):
                    client.channel.cancel(tag)
            case "ack" if held:
                client.channel.ack(held[-1], multiple=True)
                acknowledged += len(held)
            case "requeue" if held:
                client.channel.reject(held[0], multiple=False, requeue=True)
            case "reject" if held:
                client.channel.reject(held[0], multiple=False, requeue=False)
            case "purge":
                queue.purge()
            case "reconnect":
                complete(client.channel.session.close())
                client = bench.client()
        bench.turn()
        assert queue.arrived == published
        assert queue.acknowledged == acknowledged
        inflow, outflow, acknowledged_in_vhost = complete(bench.broker.vhosts["/"].flows())
        assert inflow.published == published
        assert acknowledged_in_vhost == acknowledged
        assert (outflow.delivered, outflow.sent, outflow.fetched) == (
            queue.outflow.delivered,
            queue.outflow.sent,
            queue.outflow.fetched,
        )
        assert complete(bench.broker.vhosts["/"].traffic()).pairs["", "q"] == published


def test_unroutable_messages_are_counted_as_returned_or_dropped(bench: Bench) -> None:
    client = bench.client()
    client.publish("amq.fanout", "k")
    client.publish("amq.fanout", "k", mandatory=True)
    bench.turn()
    inflow = client.channel.inflow
    assert (inflow.published, inflow.returned, inflow.dropped) == (2, 1, 1)


def test_routes_beyond_the_limit_are_counted_without_their_names() -> None:
    bench = Bench()
    client = bench.client()
    for number in range(1100):
        client.declare(f"q{number}")
        client.publish("", f"q{number}")
    traffic = complete(bench.broker.vhosts["/"].traffic())
    assert (traffic.published[""], traffic.routed[""]) == (1100, 1100)
    assert len(traffic.pairs) == 1000


def test_messages_to_very_many_queues_are_counted_without_the_names_of_these(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "LARGEST_SET", 2)
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    for name in ("q0", "q1", "q2"):
        client.declare(name)
        vhost.bind(Binding("amq.fanout", name))
    client.publish("amq.fanout", "")
    found = complete(vhost.traffic())
    assert (found.published["amq.fanout"], found.routed["amq.fanout"], found.pairs) == (1, 3, {})
