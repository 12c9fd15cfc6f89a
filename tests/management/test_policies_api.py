"""Policies and parameters over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "/api/policies/%2F/p", {"pattern": "x"}, 400, "body.definition"),
        ("PUT", "/api/parameters/c/%2F/p", {}, 400, "body.value"),
    ],
)
def test_invalid_policy_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_a_policy_that_rabbitmq_exports_can_be_imported(http: Http) -> None:
    definition = {"ha-mode": "all", "max-age": "1D", "stream-max-segment-size-bytes": 100_000, "max-length": 5}
    policy = {"name": "p", "vhost": "/", "pattern": "^q$", "apply-to": "queues", "definition": definition, "priority": 0}
    assert http.post("/api/definitions", {"policies": [policy]}).status == 204
    assert http.get("/api/policies/%2F/p")["definition"] == definition
