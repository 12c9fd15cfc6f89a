"""A client whose messages are costly to route lets others go first."""

from __future__ import annotations

import pytest

from holtmq.broker.chores import Chore
from holtmq.routing import consistent_hash
from holtmq.topology import Binding, Exchange
from tests.broker.conftest import Bench, Clock


@pytest.mark.parametrize("header", [None, "customer"])
def test_a_client_waits_after_a_costly_route(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch, header: str | None
) -> None:
    monkeypatch.setattr(consistent_hash, "MANY_BUCKETS", 2)
    client, vhost, waits = bench.client(), bench.broker.vhosts["/"], list[Chore]()
    client.channel.session.wait_for = waits.append
    vhost.declare_exchange(Exchange("shared", "x-consistent-hash", arguments={} if header is None else {"hash-header": header}))

    def publish(number: int) -> None:
        headers = {} if header is None else {header: f"customer {number}"}
        client.publish("shared", f"order {number}", b"an order", headers=headers)

    for name in ("a", "b"):
        client.declare(name)
        vhost.bind(Binding("shared", name, "1"))
    clock.steps = 0
    publish(1)
    assert not waits
    client.declare("c")
    vhost.bind(Binding("shared", "c", "1"))
    publish(2)
    assert [wait.is_done for wait in waits] == [False] * len(waits) != []
    clock.go_on(10)
    assert all(wait.is_done for wait in waits)
    assert sum(bench.count(name) for name in "abc") == 2


def test_a_client_goes_on_while_there_is_time(bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistent_hash, "MANY_BUCKETS", 0)
    client, vhost, waits = bench.client(), bench.broker.vhosts["/"], list[Chore]()
    client.channel.session.wait_for = waits.append
    vhost.declare_exchange(Exchange("shared", "x-consistent-hash"))
    client.declare("a")
    vhost.bind(Binding("shared", "a", "1"))
    clock.steps = 10
    client.publish("shared", "order 1", b"an order")
    assert not waits
