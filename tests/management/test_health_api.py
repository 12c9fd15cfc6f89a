"""Health checks."""

from __future__ import annotations

from tests.management.conftest import Node


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
