"""Users over HTTP: authentication, tags and permissions."""

from __future__ import annotations

from typing import Any

import pytest

from holtmq.accounts import rabbitmq_hash
from tests.management.conftest import Node
from tests.management.http import Http, assert_answer


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("PUT", "/api/users/u", {"password": "x"}, 400, "body.tags: expected the tags"),
        ("PUT", "/api/users/u", {"password_hash": "abc", "tags": ""}, 400, "body.password_hash"),
        ("PUT", "/api/users/u", {"password_hash": {}, "tags": ""}, 400, "body.password_hash: expected a string"),
        (
            "PUT",
            "/api/permissions/%2F/guest",
            {"configure": "(", "write": "", "read": ""},
            400,
            "body.configure: expected a regular",
        ),
        ("PUT", "/api/permissions/%2F/nobody", {"configure": "", "write": "", "read": ""}, 404, "no user 'nobody'"),
    ],
)
def test_invalid_user_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


TAGGED = {"adm": "administrator", "mon": "monitoring", "pol": "policymaker", "man": "management", "non": ""}


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/whoami", "adm mon pol man"),
        ("GET", "/api/overview", "adm mon pol man"),
        ("GET", "/api/queues/%2F", "adm mon pol man"),
        ("GET", "/api/nodes", "adm mon"),
        ("GET", "/api/users", "adm"),
        ("GET", "/api/definitions", "adm"),
        ("PUT", "/api/vhosts/w", "adm"),
        ("PUT", "/api/queues/%2F/q", "adm mon pol man"),
        ("GET", "/api/queues/v", "adm"),
        ("PUT", "/api/policies/%2F/p", "adm pol"),
        ("GET", "/api/parameters", "adm pol"),
        ("PUT", "/api/global-parameters/g", "adm"),
    ],
)
def test_tags_and_permissions_decide(http: Http, method: str, path: str, allowed: str) -> None:
    http.put("/api/vhosts/v")
    for name, tags in TAGGED.items():
        http.put(f"/api/users/{name}", {"password_hash": rabbitmq_hash("p"), "tags": tags})  # fast
        http.put(f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    http.put("/api/permissions/v/adm", {"configure": ".*", "write": ".*", "read": ".*"})
    body = {"pattern": "x", "definition": {"max-length": 1}, "value": 1} if method == "PUT" else None
    answers = {name: http.as_user(f"{name}:p").call(method, path, body) for name in TAGGED}
    assert [name for name in TAGGED if answers[name].status < 300] == allowed.split()
    assert {answer.status for name, answer in answers.items() if name not in allowed.split()} == {401}
    assert all("user" in answers[name].body["reason"] for name in TAGGED if name not in allowed.split())


def test_a_user_sees_only_vhosts_that_it_has_permissions_in(http: Http) -> None:
    http.put("/api/vhosts/secret")
    http.put("/api/queues/secret/q")
    http.put("/api/users/u", {"password": "p", "tags": "management"})
    http.put("/api/permissions/%2F/u", {"configure": "^mine", "write": "", "read": ""})
    user = http.as_user("u:p")
    assert [vhost["name"] for vhost in user.get("/api/vhosts")] == ["/"]
    assert user.get("/api/queues") == []
    assert user.call("GET", "/api/queues/secret/q").status == 401
    assert user.put("/api/queues/%2F/theirs") == 401
    assert user.put("/api/queues/%2F/mine") == 201
    publish = {"properties": {}, "routing_key": "mine", "payload": "x", "payload_encoding": "string"}
    assert user.post("/api/exchanges/%2F/amq.default/publish", publish).status == 401
    assert user.post("/api/queues/%2F/mine/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}).status == 401


def test_a_request_without_valid_credentials_is_refused(http: Http) -> None:
    for login in (None, "guest:wrong", "nobody:x", "guest"):
        answer = http.as_user(login).call("GET", "/api/overview")
        assert answer.status == 401
        assert "Basic" in answer.headers["www-authenticate"]
    assert http.call("GET", "/api/whoami", authorization="Bearer abc").status == 401
    assert http.call("GET", "/api/whoami", authorization="Basic !!!").status == 401


def test_a_user_without_permissions_sees_no_totals(node: Node) -> None:
    node.http.put("/api/queues/%2F/q")
    node.http.put("/api/users/u", {"password": "p", "tags": "management"})
    node.put_unreadable("q")
    assert node.http.get("/api/overview")["queue_totals"]["messages"] == 1
    assert node.http.as_user("u:p").get("/api/overview")["queue_totals"]["messages"] == 0
