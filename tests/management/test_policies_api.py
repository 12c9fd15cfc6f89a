"""Policies and parameters over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.management.conftest import Node
from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "/api/policies/%2F/p", {"pattern": "(", "definition": {"max-length": 1}}, 400, "body.pattern"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"max-length": "1"}}, 400, "body.definition.max-length"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"colour": 1}}, 400, "body.definition.colour"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {}}, 400, "at least one setting"),
        ("PUT", "/api/parameters/c/%2F/p", {}, 400, "body.value"),
    ],
)
def test_invalid_policy_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_a_ttl_out_of_range_is_refused_in_a_request_and_ignored_in_an_import(node: Node) -> None:
    http = node.http
    http.put("/api/queues/%2F/q")
    policy = {"pattern": "^q$", "definition": {"message-ttl": 2**63 - 1}}
    assert http.call("PUT", "/api/policies/%2F/p", policy).status == 400
    assert http.post("/api/definitions", {"policies": [{"name": "p", "vhost": "/", **policy}]}).status == 204
    message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert http.post("/api/exchanges/%2F/amq.default/publish", message).body == {"routed": True}
    assert http.message_count("q") == 1
