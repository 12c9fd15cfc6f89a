"""Definitions over HTTP: an import is applied as a whole or not at all."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holtmq.management import slices
from tests.management.conftest import Node, running_node
from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/api/definitions", "/etc/passwd", 400, "body: expected an object, got string '/etc/passwd'"),
        ("POST", "/api/definitions", {"queues": "many"}, 400, "queues: expected an array"),
        ("POST", "/api/definitions", {"queues": [{"durable": True}]}, 400, "queues[0].name: expected a string, got nothing"),
        ("POST", "/api/definitions", {"permissions": [{"user": "x", "vhost": "/"}]}, 400, "permissions[0].user"),
    ],
)
def test_invalid_definitions_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_an_import_with_a_conflict_changes_nothing(http: Http) -> None:
    http.put("/api/queues/%2F/q", {"durable": True})
    document = {
        "vhosts": [{"name": "new"}],
        "exchanges": [{"name": "e", "vhost": "/", "type": "topic"}],
        "queues": [{"name": "q", "vhost": "/", "durable": False}],
    }
    answer = http.post("/api/definitions", document)
    assert answer.status == 400
    assert "queues[0]: inequivalent arg 'durable'" in answer.body["reason"]
    assert [vhost["name"] for vhost in http.get("/api/vhosts")] == ["/"]
    assert http.call("GET", "/api/exchanges/%2F/e").status == 404


def test_exported_definitions_can_be_imported(http: Http, tmp_path: Path) -> None:
    http.put("/api/vhosts/v", {"description": "for tests", "tags": "a,b"})
    http.put("/api/users/u", {"password": "p", "tags": "monitoring"})
    http.put("/api/permissions/v/u", {"configure": "", "write": ".*", "read": "^q"})
    http.put("/api/topic-permissions/v/u", {"exchange": "amq.topic", "write": "^a", "read": ""})
    http.put("/api/exchanges/v/e", {"type": "headers", "arguments": {"alternate-exchange": "amq.fanout"}})
    http.put("/api/queues/v/q", {"arguments": {"x-max-length": 5}})
    http.put("/api/queues/v/passing", {"durable": False})
    http.post("/api/bindings/v/e/e/q/q", {"routing_key": "k", "arguments": {"x-match": "any", "vip": True}})
    http.put("/api/exchanges/v/c", {"type": "x-consistent-hash", "arguments": {"hash-header": "h"}})
    http.post("/api/bindings/v/e/c/q/q", {"routing_key": "12"})
    http.put("/api/policies/v/p", {"pattern": "^q", "definition": {"message-ttl": 5}, "priority": 3, "apply-to": "queues"})
    http.put("/api/parameters/c/v/n", {"value": {"deep": [1, None]}})
    http.put("/api/global-parameters/g", {"value": "x"})
    document = http.get("/api/definitions")
    assert [queue["name"] for queue in document["queues"]] == ["q"]
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(document))
    with running_node(definitions=str(path)) as other:
        assert other.http.get("/api/definitions") == document
        assert other.http.post("/api/definitions", document).status == 204
        assert other.http.get("/api/definitions") == document
        assert other.http.as_user("u:p").get("/api/whoami") == {"name": "u", "tags": ["monitoring"]}
        of_vhost = other.http.get("/api/definitions/v")
        assert "users" not in of_vhost
        assert "vhost" not in of_vhost["queues"][0]
        assert other.http.post("/api/definitions/%2F", of_vhost).status == 204
        assert other.http.get("/api/queues/%2F/q")["arguments"] == {"x-max-length": 5}


@pytest.mark.parametrize(
    "part",
    [
        {"vhosts": [{"name": "new"}, {"name": "x" * 300}]},
        {"users": [{"name": "x" * 300, "tags": ""}]},
        {"users": [{"name": "u", "password_hash": "!!!", "tags": ""}]},
        {"users": [{"name": "u", "hashing_algorithm": [], "tags": ""}]},
        {"permissions": [{"user": "guest", "vhost": "x" * 300}]},
        {"exchanges": [{"name": "", "vhost": "new", "type": "direct"}]},
        {"exchanges": [{"name": "amq.direct", "vhost": "new", "type": "topic"}]},
        {"exchanges": [{"name": "amq.mine", "vhost": "new", "type": "topic"}]},
        {"queues": [{"name": "", "vhost": "new"}]},
        {"queues": [{"name": "q", "vhost": "new", "arguments": {"x-max-priority": "high"}}]},
        {"bindings": [{"source": "known", "vhost": "/", "destination": "q", "arguments": {"x-match": "some"}}]},
        {"exchanges": [{"name": "c", "vhost": "/", "type": "x-consistent-hash", "arguments": {"hash-property": "message_id"}}]},
        {"bindings": [{"source": "weighing", "vhost": "/", "destination": "q", "routing_key": "heavy"}]},
        {"parameters": None},
        {"parameters": [5]},
        {"policies": [{"name": "p", "vhost": "new", "pattern": "a{9999}", "definition": {"max-length": 1}}]},
    ],
)
def test_an_import_with_an_error_changes_nothing(http: Http, part: dict[str, Any]) -> None:
    http.put("/api/exchanges/%2F/known", {"type": "headers"})
    http.put("/api/exchanges/%2F/weighing", {"type": "x-consistent-hash"})
    http.put("/api/queues/%2F/q")
    before = http.get("/api/definitions")
    answer = http.post("/api/definitions", {"vhosts": [{"name": "new"}], **part})
    assert answer.status == 400, answer
    assert http.get("/api/definitions") == before


def test_clients_are_served_during_an_import_and_two_imports_do_not_interleave(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    names = [f"q{number}" for number in range(100)]
    queues = [{"name": name, "vhost": "/"} for name in names]
    documents = [
        {"queues": queues, "bindings": [{"source": exchange, "vhost": "/", "destination": name} for name in names]}
        for exchange in ("amq.direct", "amq.fanout")
    ]
    with ThreadPoolExecutor(2) as pool, node.connect() as amqp:
        channel, trips = amqp.channel(), 0
        channel.declare("probed")
        imports = [pool.submit(node.http.post, "/api/definitions", document) for document in documents]
        while not all(each.done() for each in imports):
            assert channel.get("probed") is None
            trips += 1
        assert [each.result().status for each in imports] == [204, 204]
    assert trips > 10
    bound = node.http.get("/api/bindings/%2F?default_exchange=false")
    sources = [binding["source"] for binding in bound]
    assert len(sources) == 200
    created = sorted((binding["created_at"], binding["source"]) for binding in bound)
    assert len([1 for one, other in pairwise(created) if one[1] != other[1]]) == 1
