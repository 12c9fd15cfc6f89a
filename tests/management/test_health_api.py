"""Health checks."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.deadline import eventually
from tests.management.conftest import Node, running_node
from tests.management.test_metrics import samples

MIB = 1024 * 1024


def test_checks_pass_on_a_healthy_broker(node: Node) -> None:
    http = node.http
    for check in ("alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "protocol-listener/amqp091"):
        assert http.get(f"/api/health/checks/{check}")["status"] == "ok"
    assert http.get(f"/api/health/checks/port-listener/{node.amqp_port}")["port"] == node.amqp_port
    assert http.call("GET", "/api/health/checks/port-listener/1").body["missing"] == 1
    assert http.call("GET", "/api/health/checks/protocol-listener/mqtt").status == 503
    assert http.get("/api/aliveness-test/%2F") == {"status": "ok"}


def test_blocked_publishers_are_an_alarm(blocked_node: Node) -> None:
    failed = blocked_node.http.call("GET", "/api/health/checks/alarms")
    assert (failed.status, failed.body["reason"]) == (503, "publishers are blocked: the broker cannot write to its disk")


def test_a_memory_alarm_is_shown_everywhere_until_the_memory_is_free_again() -> None:
    with running_node(memory_bytes=8 * MIB) as node, node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q")
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        for _ in range(10):
            channel.publish("", "q", bytes(MIB))
        eventually(lambda: node.http.call("GET", "/api/health/checks/alarms").status == 503, "the alarm")
        failed = node.http.call("GET", "/api/health/checks/alarms")
        assert (failed.body["reason"], failed.body["alarms"]) == ("publishers are blocked: low on memory", ["memory"])
        assert node.http.get("/api/nodes")[0]["mem_alarm"] is True
        assert sum(samples(node)["rabbitmq_alarms_memory_used_watermark"].values()) == 1
        channel.call(wire.TxRollback(), wire.TxRollbackOk)
        eventually(lambda: node.http.call("GET", "/api/health/checks/alarms").status == 200, "the end of the alarm")
        assert node.http.get("/api/nodes")[0]["mem_alarm"] is False
