"""Totals and rates over HTTP."""

from __future__ import annotations

from tests.management.conftest import Node


def test_rates_and_totals_follow_the_traffic(node: Node) -> None:
    http = node.http
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q")
        for _ in range(40):
            channel.publish("", "q", b"x")
        channel.publish("", "nowhere", b"x", mandatory=True)
        channel.settle()
        (queue,) = http.get("/api/queues")
        assert (queue["messages"], queue["message_stats"]["publish"]) == (40, 40)
        overview = http.get("/api/overview")
        stats = overview["message_stats"]
        assert (stats["publish"], stats["return_unroutable"]) == (41, 1)
        assert overview["object_totals"]["channels"] == 1
        path = "/api/exchanges/%2F/amq.default?msg_rates_age=10&msg_rates_incr=1"
        exchange = http.get_until(path, lambda found: found["message_stats"].get("publish_in") == 41)
        assert exchange["message_stats"]["publish_out"] == 40
        topology = http.get("/api/topology/%2F")
        assert topology["queues"][0]["messages"] == 40
    assert http.get("/api/overview")["message_stats"]["publish"] == 41  # closed connections still count
