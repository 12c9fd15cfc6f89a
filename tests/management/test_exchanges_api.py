"""Exchanges over HTTP: publishing, and explaining a route."""

from __future__ import annotations

from typing import Any

import pytest

from holtmq.broker import broker, fan_out
from holtmq.management import slices
from tests.management.conftest import Node
from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "/api/exchanges/%2F/e", {"type": "nope"}, 400, "unknown exchange type 'nope'"),
        ("PUT", "/api/exchanges/%2F/amq.direct", {"type": "topic"}, 400, "inequivalent arg 'type'"),
        ("DELETE", "/api/exchanges/%2F/amq.direct", None, 401, "not allowed"),
        ("PUT", "/api/exchanges/%2F/amq.default", {}, 401, "default exchange"),
        ("POST", "/api/exchanges/%2F/none/publish", {}, 404, "no exchange 'none'"),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"payload": "x"},
            400,
            "body.routing_key: expected a string, got nothing",
        ),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "///", "payload_encoding": "base64"},
            400,
            "body.payload: expected base64",
        ),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "", "properties": {"priority": "high"}},
            400,
            "body.properties.priority: expected a number from 0 to 255, got string 'high'",
        ),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "", "properties": {"colour": "red"}},
            400,
            "expected properties among content_type",
        ),
    ],
)
def test_invalid_exchange_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_explain_can_assume_further_bindings(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    http.put("/api/queues/%2F/other")
    http.post("/api/bindings/%2F/e/amq.topic/q/q", {"routing_key": "a.*"})
    question = {"routing_key": "a.b.c"}
    plain = http.post("/api/exchanges/%2F/amq.topic/explain", question).body
    assert plain["queues"] == []
    assert plain["hops"][0]["near_misses"][0]["destination"] == "q"
    draft = {"source": "amq.topic", "destination": "other", "routing_key": "a.#"}
    with_draft = http.post("/api/exchanges/%2F/amq.topic/explain", {**question, "drafts": [draft]}).body
    assert with_draft["queues"] == ["other"]
    assert http.post("/api/exchanges/%2F/amq.topic/explain", question).body == plain
    missing = http.post("/api/exchanges/%2F/amq.topic/explain", {**question, "drafts": [{**draft, "destination": "none"}]})
    assert missing.status == 404
    assert http.post("/api/exchanges/%2F/amq.topic/explain", {**question, "drafts": {}}).status == 400


def test_publishing_is_refused_while_the_disk_fails(blocked_node: Node) -> None:
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert blocked_node.http.post("/api/exchanges/%2F/amq.default/publish", message).status == 503


def test_a_message_is_published_to_many_queues_before_the_response(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "COPIES_AT_ONCE", 1)
    monkeypatch.setattr(fan_out, "COPIES_IN_STEP", 1)
    monkeypatch.setattr(slices, "SLICE_S", -1.0)
    for name in ("one", "other", "third"):
        http.put(f"/api/queues/%2F/{name}")
        http.post(f"/api/bindings/%2F/e/amq.fanout/q/{name}", {})
    message = {"routing_key": "", "payload": "m", "payload_encoding": "string", "properties": {}}
    assert http.post("/api/exchanges/%2F/amq.fanout/publish", message).body == {"routed": True}
    assert [queue["messages"] for queue in http.get("/api/queues")] == [1, 1, 1]
