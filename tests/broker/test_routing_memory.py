"""What a channel keeps of the routes of its messages is bounded, and counts as memory of its connection."""

from __future__ import annotations

import pytest

from holtmq.broker import traffic, ways
from holtmq.broker.traffic import NAME_BYTES, TALLY_BYTES
from holtmq.steps import complete
from holtmq.topology import Binding
from tests.broker.conftest import Bench

QUEUES = 8
KEYS = 2**QUEUES - 1
"""Routing keys, each with a set of queues of its own."""
KEPT = 100


def bound(bench: Bench) -> list[str]:
    """Bind a queue to each key that has its bit."""
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    for number in range(QUEUES):
        client.declare(f"q{number}")
        for key in range(1, KEYS + 1):
            if key >> number & 1:
                vhost.bind(Binding("amq.direct", f"q{number}", str(key)))
    return [str(key) for key in range(1, KEYS + 1)]


def test_the_routes_of_a_channel_are_bounded_and_count_until_it_closes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "NAMES_KEPT", KEPT)
    monkeypatch.setattr(ways, "DESTINATIONS_KEPT", KEPT)
    keys, client = bound(bench), bench.client()
    session = client.channel.session
    empty = session.memory
    client.publish("amq.direct", keys[0])
    one = session.memory
    assert one > empty
    for key in keys:
        client.publish("amq.direct", key)
    most_ways = ways.WAY_BYTES * KEPT + ways.WAY_DESTINATION_BYTES * (KEPT + QUEUES)
    most_tallies = TALLY_BYTES * (KEPT + QUEUES + 1) + NAME_BYTES * KEPT
    assert one < session.memory <= empty + most_ways + most_tallies
    assert sum(len(tally.queues) for tally in client.channel.ways.tallies) <= KEPT
    assert sum(tally.count for tally in client.channel.ways.tallies) == KEYS + 1
    bench.broker.vhosts["/"].bind(Binding("amq.topic", "q0", "other"))
    client.publish("amq.direct", keys[0])
    assert session.memory < empty + most_tallies + one - empty + QUEUES * ways.WAY_DESTINATION_BYTES
    complete(client.channel.close())
    assert session.memory == empty


def test_a_way_that_is_dropped_while_it_is_found_still_routes_by_headers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "DESTINATIONS_KEPT", 0)
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    for name in ("a", "b"):
        client.declare(name)
        vhost.bind(Binding("amq.headers", name, arguments={"to": name}))
    for name in ("a", "b", "a"):
        client.publish("amq.headers", "", headers={"to": name})
    assert [bench.count("a"), bench.count("b")] == [2, 1]


def test_pairs_of_exchanges_and_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "PAIRS_KEPT", 10)
    counted, exchanges, queues = traffic.Traffic(), [f"x{number}" for number in range(7)], ("a", "b", "c")
    for number, exchange in enumerate(exchanges, 1):
        tally = traffic.Tally(exchange, queues, len(queues))
        tally.count = number
        counted.add(tally)
        counted.forget(exchanges, queues)
    assert len(counted.pairs) == 10
    assert counted.pairs["x6", "a"] == 7
    assert sum(counted.published.values()) == sum(range(1, 8))
