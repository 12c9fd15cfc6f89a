"""Metrics in Prometheus' format, with the names that RabbitMQ's dashboards use."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.management.conftest import Node, running_node

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"
OVERVIEW_DASHBOARD = [
    "rabbitmq_queue_messages_ready",
    "rabbitmq_queue_messages_unacked",
    "rabbitmq_channel_messages_published_total",
    "rabbitmq_global_messages_received_total",
    "rabbitmq_global_messages_delivered_total",
    "rabbitmq_global_messages_acknowledged_total",
    "rabbitmq_global_messages_redelivered_total",
    "rabbitmq_global_messages_unroutable_returned_total",
    "rabbitmq_global_publishers",
    "rabbitmq_global_messages_unroutable_dropped_total",
    "rabbitmq_global_messages_confirmed_total",
    "rabbitmq_global_messages_routed_total",
    "rabbitmq_connections",
    "rabbitmq_channels",
    "rabbitmq_queues",
    "rabbitmq_consumers",
    "rabbitmq_identity_info",
    "rabbitmq_build_info",
    "rabbitmq_process_resident_memory_bytes",
    "rabbitmq_resident_memory_limit_bytes",
    "rabbitmq_disk_space_available_bytes",
    "rabbitmq_process_open_fds",
    "rabbitmq_process_max_fds",
    "rabbitmq_process_open_tcp_sockets",
    "rabbitmq_connections_opened_total",
    "rabbitmq_connections_closed_total",
    "rabbitmq_channels_opened_total",
    "rabbitmq_queues_declared_total",
    "rabbitmq_queues_created_total",
]
"""The metrics that RabbitMQ's dashboard for Grafana, "RabbitMQ-Overview", queries."""


def samples(node: Node, path: str = "/metrics") -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    text = node.http.as_user(None).call("GET", path).body
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_the_metrics_of_rabbitmqs_dashboard_exist(node: Node) -> None:
    known = samples(node)
    assert [name for name in OVERVIEW_DASHBOARD if name not in known] == []


def test_counters_and_gauges_follow_the_traffic(node: Node) -> None:
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare('q"\\1')
        channel.put('q"\\1', b"one", b"two", b"three")
        channel.settle()
        channel.get('q"\\1')
        known = samples(node)
        classic = (("protocol", "amqp091"), ("queue_type", "rabbit_classic_queue"))
        assert known["rabbitmq_global_messages_received_total"][("protocol", "amqp091"),] == 3
        assert known["rabbitmq_global_messages_delivered_get_auto_ack_total"][classic] == 1
        assert known["rabbitmq_queue_messages_ready"][()] == 2
        assert known["rabbitmq_connections"][()] == 1
        one_by_one = samples(node, "/metrics/per-object")
        labels = (("queue", 'q"\\1'), ("vhost", "/"))
        assert one_by_one["rabbitmq_queue_messages_ready"][labels] == 2
        assert one_by_one["holtmq_queue_messages_arrived_total"][labels] == 3
        received = known["rabbitmq_connection_incoming_bytes_total"][()]
    assert samples(node)["rabbitmq_connection_incoming_bytes_total"][()] >= received > 0


def test_internal_errors_and_dropped_dead_letters_are_counted(node: Node) -> None:
    broker = node.server.broker
    with broker.internal_errors.contain("trying", "a test"):
        raise ValueError
    broker.vhosts["/"].dead_letters.dropped += 2
    found = samples(node)
    assert (found["holtmq_internal_errors"], found["holtmq_dead_letters_dropped"]) == ({(): 1}, {(): 2})


def test_our_dashboard_queries_only_existing_metrics(node: Node) -> None:
    known = {*samples(node), *samples(node, "/metrics/per-object")}
    asked = set(re.findall(r"\b(?:rabbitmq|holtmq)_[a-z_]+", json.dumps(json.loads(DASHBOARD.read_text())["panels"])))
    assert len(asked) > 10
    assert asked - known == set()


def test_metrics_can_require_a_login() -> None:
    with running_node(metrics_login=True) as node:
        node.http.put("/api/users/watcher", {"password": "p", "tags": ["monitoring"]})
        node.http.put("/api/users/clerk", {"password": "p", "tags": ["management"]})
        for path in ("/metrics", "/metrics/per-object"):
            assert node.http.as_user(None).call("GET", path).status == 401
            assert node.http.as_user("clerk:p").call("GET", path).status == 401
            assert node.http.as_user("watcher:p").call("GET", path).status == 200


def test_consumers_of_a_stream_with_equal_tags_have_their_own_series(node: Node) -> None:
    with node.connect() as one, node.connect() as other:
        one.channel().declare("s", durable=True, queue_type="stream")
        publisher = one.channel(9)
        publisher.confirm()
        for number in range(5):
            publisher.publish("", "s", b"%d" % number)
            publisher.next()
        channels = [one.channel(2), one.channel(3), other.channel(2)]
        for prefetch, channel in enumerate(channels, 1):
            channel.qos(prefetch)
            channel.consume("s", "c", arguments={"x-stream-offset": 0})
            channel.bodies(prefetch)
        names = {consumer["channel_details"]["name"] for consumer in node.http.get("/api/queues/%2F/s")["consumer_details"]}
        metrics = samples(node, "/metrics/per-object")
    lags, offsets = (metrics[f"holtmq_stream_consumer_{name}"] for name in ("lag", "offset"))
    assert [sorted(each.values()) for each in (lags, offsets)] == [[2, 3, 4], [1, 2, 3]]
    labels = [dict(each) for each in lags]
    assert {each["channel"] for each in labels} == names
    assert len({each["connection"] for each in labels}) == 2
    assert {(each["vhost"], each["queue"], each["consumer"]) for each in labels} == {("/", "s", "c")}
