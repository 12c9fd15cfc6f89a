"""Bindings over HTTP: how they are identified, and the history that they keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.management.conftest import Node, running_node
from tests.management.http import Http, assert_answer, segment

TO_QUEUE = "/api/bindings/%2F/e/amq.topic/q"
ROUNDING = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/api/bindings/%2F/e/amq.direct/q/none", {}, 404, "no queue 'none'"),
        ("POST", "/api/bindings/%2F/e/amq.direct/x/none", {}, 400, "expected q (queue) or e (exchange)"),
        ("POST", "/api/bindings/%2F/e/amq.default/q/none", {}, 401, "default exchange"),
        ("POST", "/api/bindings/%2F/e/amq.direct/e/amq.default", {}, 401, "default exchange"),
        (
            "POST",
            "/api/bindings/%2F/e/amq.direct/e/amq.fanout",
            {"metadata": "by hand"},
            400,
            "body.metadata: expected an object, got string 'by hand'",
        ),
        ("POST", "/api/bindings/%2F/e/amq.direct/e/amq.fanout", {"metadata": {"owner": None}}, 201, ""),
        ("GET", "/api/bindings/%2F/e/amq.direct/e/amq.fanout/none", None, 404, "no binding from 'amq.direct' to 'amq.fanout'"),
    ],
)
def test_invalid_binding_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_a_binding_is_found_by_a_key_that_includes_its_arguments(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    between = "/api/bindings/%2F/e/amq.topic/q/q"
    for arguments in ({}, {"x": 1}, {"x": "1"}, {"x": {"y": [1, True]}}):
        assert http.post(between, {"routing_key": "a.#", "arguments": arguments}).status == 201
    keys = [binding["properties_key"] for binding in http.get(between)]
    assert len(set(keys)) == 4
    assert keys[0] == "a.%23"
    one = http.get(f"{between}/{segment(keys[2])}")
    assert one["arguments"] == {"x": "1"}
    assert http.delete(f"{between}/{keys[2]}") == 204  # some clients encode the key in the path, some do not
    assert http.delete(f"{between}/{segment(keys[3])}") == 204
    assert [binding["properties_key"] for binding in http.get(between)] == keys[:2]


def test_similar_routing_keys_have_different_properties_keys(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    between = "/api/bindings/%2F/e/amq.direct/q/q"
    keys = ["", "~", "a/b", "a%2Fb", "a%252Fb"]
    for key in keys:
        http.post(between, {"routing_key": key})
    for key in keys:
        (found,) = [each for each in http.get(between) if each["routing_key"] == key]
        assert http.get(f"{between}/{segment(found['properties_key'])}")["routing_key"] == key
        assert http.delete(f"{between}/{segment(found['properties_key'])}") == 204
        assert key not in [each["routing_key"] for each in http.get(between)]


def test_a_new_binding_records_its_time_and_metadata(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    metadata = {"owner": "the shop", "ticket": 12, "reviewed": True}
    before = datetime.now(UTC)
    assert http.post(f"{TO_QUEUE}/q", {"routing_key": "a", "metadata": metadata}).status == 201
    after = datetime.now(UTC)
    (binding,) = http.get(f"{TO_QUEUE}/q")
    assert binding["metadata"] == metadata
    assert binding["created_at"].endswith("+00:00")
    assert before - ROUNDING <= datetime.fromisoformat(binding["created_at"]) <= after
    for path in (f"{TO_QUEUE}/q/a", "/api/queues/%2F/q/bindings", "/api/exchanges/%2F/amq.topic/bindings/source"):
        found = http.get(path)
        assert binding in (found if isinstance(found, list) else [found])
    assert binding in http.get("/api/bindings/%2F")


def test_a_binding_made_over_amqp_records_its_time(node: Node) -> None:
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("q")
        channel.bind("q", "amq.topic", "a.#")
    (binding,) = node.http.get("/api/bindings?default_exchange=false")
    assert datetime.fromisoformat(binding["created_at"]) <= datetime.now(UTC)
    assert binding["metadata"] == {}


def test_binding_again_keeps_the_history(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    http.post(f"{TO_QUEUE}/q", {"routing_key": "a", "metadata": {"by": "first"}})
    (first,) = http.get(f"{TO_QUEUE}/q")
    assert http.post(f"{TO_QUEUE}/q", {"routing_key": "a", "metadata": {"by": "second"}}).status == 201
    assert http.get(f"{TO_QUEUE}/q") == [first]


def test_the_history_of_a_binding_survives_restart_export_and_import(tmp_path: Path) -> None:
    data = str(tmp_path / "a.db")
    with running_node(data=data) as node:
        node.http.put("/api/queues/%2F/q")
        node.http.post(f"{TO_QUEUE}/q", {"routing_key": "a", "metadata": {"by": "hand"}})
        (binding,) = node.http.get(f"{TO_QUEUE}/q")
        definitions = node.http.get("/api/definitions")
    with running_node(data=data) as node:
        assert node.http.get(f"{TO_QUEUE}/q") == [binding]
    with running_node() as node:
        assert node.http.post("/api/definitions", definitions).status == 204
        assert node.http.get(f"{TO_QUEUE}/q") == [binding]


def test_an_implicit_binding_has_no_history(http: Http) -> None:
    http.put("/api/queues/%2F/q")
    (binding,) = http.get("/api/bindings")
    assert (binding["source"], binding["created_at"], binding["metadata"]) == ("", None, {})
    assert http.get("/api/bindings?default_exchange=false") == []
    assert http.get("/api/bindings/%2F?default_exchange=false&page=1")["total_count"] == 0


@pytest.mark.parametrize(
    ("permission", "topic", "status"),
    [
        ({"write": "^q$", "read": "^amq.topic$"}, None, 201),
        ({"write": "^q$", "read": "^other$"}, None, 401),
        ({"write": "^other$", "read": "^amq.topic$"}, None, 401),
        ({"write": "^q$", "read": "^amq.topic$"}, "^b", 401),
        ({"write": "^q$", "read": "^amq.topic$"}, "^a", 201),
    ],
)
def test_binding_needs_the_permissions_that_amqp_requires(
    http: Http, permission: dict[str, str], topic: str | None, status: int
) -> None:
    http.put("/api/queues/%2F/q")
    http.put("/api/users/u", {"password": "p", "tags": "management"})
    http.put("/api/permissions/%2F/u", {"configure": "", **permission})
    if topic is not None:
        http.put("/api/topic-permissions/%2F/u", {"exchange": "amq.topic", "write": "", "read": topic})
    assert http.as_user("u:p").post(f"{TO_QUEUE}/q", {"routing_key": "a"}).status == status


def test_an_exclusive_queue_of_a_connection_cannot_be_bound(node: Node) -> None:
    with node.connect() as amqp:
        amqp.channel().declare("q", exclusive=True)
        assert_answer(node.http.post(f"{TO_QUEUE}/q", {"routing_key": "a"}), 400, "exclusive")
