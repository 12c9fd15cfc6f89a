"""The HTTP API by itself: what it does, what it refuses, and in which words."""

from __future__ import annotations

import base64
import json
import logging
import socket
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import trustme

from holtmq.config import Config
from holtmq.errors import StoreError
from holtmq.server import server
from holtmq.server.run import running
from holtmq.wire import methods as wire
from holtmq.wire.content import make_content, on_channel
from tests.amqp_client import Amqp
from tests.management.conftest import Node, running_node
from tests.management.http import Http

HARD_NAMES = ["<script>alert(1)</script>", "a/b", "100%", "ünï 🦦", "a?b#c&d=e", "'\"`", "..a", " ", "{x}", "%2F"]


def segment(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("name", HARD_NAMES)
def test_names_may_hold_anything(http: Http, name: str) -> None:
    queue, exchange = f"/api/queues/%2F/{segment(name)}", f"/api/exchanges/%2F/{segment(name)}"
    assert http.put(queue) == 201
    assert http.put(queue) == 204
    assert http.put(exchange, {"type": "topic"}) == 201
    assert http.get(queue)["name"] == name
    between = f"/api/bindings/%2F/e/{segment(name)}/q/{segment(name)}"
    assert http.post(between, {"routing_key": name, "arguments": {name: name}}).status == 201
    (binding,) = http.get(between)
    assert (binding["routing_key"], binding["arguments"]) == (name, {name: name})
    message = {"properties": {"headers": {name: name}}, "routing_key": name, "payload": name, "payload_encoding": "string"}
    assert http.post(f"{exchange}/publish", message).body == {"routed": True}
    (got,) = http.post(f"{queue}/get", {"count": 2, "ackmode": "ack_requeue_false", "encoding": "auto"}).body
    assert (got["payload"], got["properties"]["headers"]) == (name, {name: name})
    assert http.delete(f"{between}/{segment(binding['properties_key'])}") == 204
    assert http.get(between) == []
    assert http.delete(queue) == 204
    assert http.delete(exchange) == 204
    assert http.call("GET", queue).status == 404


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
    assert http.delete(f"{between}/{keys[2]}") == 204  # as it stands, and as clients encode it once more
    assert http.delete(f"{between}/{segment(keys[3])}") == 204
    assert [binding["properties_key"] for binding in http.get(between)] == keys[:2]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("PUT", "/api/queues/%2F/q", {"durable": "yes"}, 400, "body.durable: expected true or false, got string 'yes'"),
        ("PUT", "/api/queues/%2F/q", {"arguments": []}, 201, ""),
        ("PUT", "/api/queues/%2F/q", {"arguments": 3}, 400, "body.arguments: expected an object, got integer 3"),
        ("PUT", "/api/queues/%2F/q", {"arguments": {"x-max-length": -1}}, 400, "x-max-length"),
        ("PUT", "/api/queues/%2F/q", b"{oops", 400, "body: expected JSON"),
        ("PUT", "/api/queues/%2F/q", [1], 400, "expected an object"),
        ("PUT", "/api/queues/%2F/amq.mine", {}, 401, "reserved prefix"),
        ("PUT", f"/api/queues/%2F/{'x' * 256}", {}, 400, "255"),
        ("PUT", "/api/queues/nowhere/q", {}, 404, "no vhost 'nowhere'"),
        ("GET", "/api/queues/%2F/none", None, 404, "no queue 'none' in vhost '/'"),
        ("DELETE", "/api/queues/%2F/none/contents", None, 404, "no queue 'none'"),
        ("PUT", "/api/exchanges/%2F/e", {"type": "nope"}, 400, "unknown exchange type 'nope'"),
        ("PUT", "/api/exchanges/%2F/amq.direct", {"type": "topic"}, 400, "inequivalent arg 'type'"),
        ("DELETE", "/api/exchanges/%2F/amq.direct", None, 401, "not allowed"),
        ("PUT", "/api/exchanges/%2F/amq.default", {}, 401, "default exchange"),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/none", {}, 404, "no queue 'none'"),
        ("POST", "/api/bindings/%2F/e/amq.direct/x/none", {}, 400, "expected q or e"),
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
        ("PUT", "/api/policies/%2F/p", {"pattern": "(", "definition": {"max-length": 1}}, 400, "body.pattern"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"max-length": "1"}}, 400, "body.definition.max-length"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {"colour": 1}}, 400, "body.definition.colour"),
        ("PUT", "/api/policies/%2F/p", {"pattern": "x", "definition": {}}, 400, "at least one setting"),
        ("PUT", "/api/parameters/c/%2F/p", {}, 400, "body.value"),
        ("POST", "/api/definitions", "/etc/passwd", 400, "body: expected an object, got string '/etc/passwd'"),
        ("POST", "/api/definitions", {"queues": "many"}, 400, "queues: expected an array"),
        ("POST", "/api/definitions", {"queues": [{"durable": True}]}, 400, "queues[0].name: expected a string, got nothing"),
        ("POST", "/api/definitions", {"permissions": [{"user": "x", "vhost": "/"}]}, 400, "permissions[0].user"),
        ("GET", "/api/queues?page=0", None, 400, "page: expected a number from 1"),
        ("GET", "/api/queues?page=9", None, 400, "page 9 of size 100 is beyond"),
        ("GET", "/api/queues?page=1&name=(&use_regex=true", None, 400, "name: expected a regular expression"),
        ("GET", "/api/overview?msg_rates_age=9999999&msg_rates_incr=1", None, 400, "at most 1000 steps"),
        ("GET", "/api/queues/%FF/q", None, 400, "UTF-8"),
        ("GET", "/api/nothing", None, 404, "nothing is at '/api/nothing'"),
        ("GET", "/nothing", None, 404, "the pages are at /"),
        ("PATCH", "/api/queues", None, 405, "expected one of GET, HEAD, OPTIONS, got PATCH"),
        ("POST", "/metrics", {}, 405, "expected GET"),
    ],
)
def test_bad_input_is_refused_in_words(http: Http, method: str, path: str, body: Any, status: int, words: str) -> None:
    answer = http.call(method, path, body)
    assert answer.status == status, answer
    if status >= 400:
        assert words in answer.body["reason"]
    assert http.get("/api/whoami")["name"] == "guest"


def test_a_body_that_is_too_large_is_refused_before_it_is_read(node: Node) -> None:
    host, port = node.http.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        login = base64.b64encode(b"guest:guest").decode()
        head = f"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Basic {login}\r\n"
        connection.sendall(f"{head}Content-Length: 999999999999\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_what_contradicts_the_broker_is_refused_whole(http: Http) -> None:
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


def test_definitions_go_out_and_in(http: Http, tmp_path: Path) -> None:
    http.put("/api/vhosts/v", {"description": "for tests", "tags": "a,b"})
    http.put("/api/users/u", {"password": "p", "tags": "monitoring"})
    http.put("/api/permissions/v/u", {"configure": "", "write": ".*", "read": "^q"})
    http.put("/api/topic-permissions/v/u", {"exchange": "amq.topic", "write": "^a", "read": ""})
    http.put("/api/exchanges/v/e", {"type": "headers", "arguments": {"alternate-exchange": "amq.fanout"}})
    http.put("/api/queues/v/q", {"arguments": {"x-max-length": 5}})
    http.put("/api/queues/v/passing", {"durable": False})
    http.post("/api/bindings/v/e/e/q/q", {"routing_key": "k", "arguments": {"x-match": "any", "vip": True}})
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


def test_changes_outlive_the_broker(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    with running_node(data=path) as node:
        node.http.put("/api/vhosts/v", {"description": "kept"})
        node.http.put("/api/parameters/c/v/n", {"value": [1]})
        node.http.put("/api/users/u", {"password": "p", "tags": ["management"]})
        node.http.put("/api/queues/v/q", {})
        message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "kept", "payload_encoding": "string"}
        assert node.http.post("/api/exchanges/v/amq.default/publish", message).body == {"routed": True}
    with running_node(data=path) as node:
        assert node.http.get("/api/vhosts/v")["description"] == "kept"
        assert node.http.get("/api/parameters/c/v/n")["value"] == [1]
        assert node.http.as_user("u:p").get("/api/whoami")["name"] == "u"
        assert node.http.get("/api/queues/v/q")["messages"] == 1
        assert node.http.get("/api/queues/v/q")["message_stats"] == {}  # counted since the start


def test_messages_are_moved_whole_and_in_order(node: Node) -> None:
    http = node.http
    for queue, arguments in (("from", {}), ("to", {"x-max-length": 7, "x-overflow": "reject-publish"}), ("large", {})):
        http.put(f"/api/queues/%2F/{queue}", {"arguments": arguments})
    http.post("/api/bindings/%2F/e/amq.topic/q/from", {"routing_key": "#"})
    with node.connect() as amqp:
        channel = amqp.channel()
        for number in range(10):
            channel.publish("amq.topic", f"k.{number}", b"%d" % number, headers={"n": number})
        channel.settle()
    assert http.post("/api/queues/%2F/from/move", {"destination": "to", "count": 3}).body == {"moved": 3}
    assert http.post("/api/queues/%2F/from/move", {"destination": "to"}).body == {"moved": 4}  # then it is full
    left = http.post("/api/queues/%2F/from/get", {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}).body
    assert [(each["payload"], each["redelivered"]) for each in left] == [("7", False), ("8", False), ("9", False)]
    assert http.post("/api/queues/%2F/to/move", {"destination": "large"}).body == {"moved": 7}
    moved = http.post("/api/queues/%2F/large/get", {"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}).body
    assert [each["routing_key"] for each in moved] == [f"k.{number}" for number in range(7)]
    assert [each["properties"]["headers"] for each in moved] == [{"n": number} for number in range(7)]
    assert {each["exchange"] for each in moved} == {"amq.topic"}
    assert http.post("/api/queues/%2F/from/move", {"destination": "from"}).status == 400
    assert http.post("/api/queues/%2F/from/move", {"destination": "none"}).status == 404


def test_explain_also_with_a_draft(http: Http) -> None:
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


def test_lists_are_filtered_sorted_cut_and_trimmed(node: Node) -> None:
    http = node.http
    for number in range(25):
        http.put(f"/api/queues/%2F/q{number:02}")
    with node.connect() as amqp:
        channel = amqp.channel()
        for queue in ("q03", "q03", "q07"):
            channel.publish("", queue, b"x")
        channel.settle()
    page = http.get("/api/queues?page=2&page_size=10&sort=name")
    assert (page["total_count"], page["filtered_count"], page["item_count"], page["page_count"]) == (25, 25, 10, 3)
    assert [item["name"] for item in page["items"]] == [f"q{number}" for number in range(10, 20)]
    busiest = http.get("/api/queues?page=1&page_size=2&sort=messages&sort_reverse=true&columns=name,messages")
    assert busiest["items"] == [{"name": "q03", "messages": 2}, {"name": "q07", "messages": 1}]
    assert [item["name"] for item in http.get("/api/queues?page=1&name=Q1&columns=name")["items"]][:2] == ["q10", "q11"]
    assert len(http.get("/api/queues?page=1&name=^q0[1-3]$&use_regex=true")["items"]) == 3
    (dotted,) = http.get("/api/queues?page=1&name=q07&columns=name,message_stats.publish,nope.x")["items"]
    assert dotted == {"name": "q07", "message_stats": {"publish": 1}}
    assert "message_stats" not in http.get("/api/queues?disable_stats=true")[0]
    assert http.get("/api/queues?disable_stats=true&enable_queue_totals=true")[3]["messages"] == 2


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
def test_tags_and_rights_decide(http: Http, method: str, path: str, allowed: str) -> None:
    http.put("/api/vhosts/v")
    for name, tags in TAGGED.items():
        http.put(f"/api/users/{name}", {"password": "p", "tags": tags})
        http.put(f"/api/permissions/%2F/{name}", {"configure": ".*", "write": ".*", "read": ".*"})
    http.put("/api/permissions/v/adm", {"configure": ".*", "write": ".*", "read": ".*"})
    body = {"pattern": "x", "definition": {"max-length": 1}, "value": 1} if method == "PUT" else None
    answers = {name: http.as_user(f"{name}:p").call(method, path, body) for name in TAGGED}
    assert [name for name in TAGGED if answers[name].status < 300] == allowed.split()
    assert {answer.status for name, answer in answers.items() if name not in allowed.split()} == {401}
    assert all("user" in answers[name].body["reason"] for name in TAGGED if name not in allowed.split())


def test_names_are_only_seen_where_one_may_enter(http: Http) -> None:
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


def test_a_login_is_asked_for(http: Http) -> None:
    for login in (None, "guest:wrong", "nobody:x", "guest"):
        answer = http.as_user(login).call("GET", "/api/overview")
        assert answer.status == 401
        assert "Basic" in answer.headers["www-authenticate"]
    assert http.call("GET", "/api/whoami", authorization="Bearer abc").status == 401
    assert http.call("GET", "/api/whoami", authorization="Basic !!!").status == 401


def test_pages_of_other_sites_are_refused(http: Http) -> None:
    assert http.call("PUT", "/api/queues/%2F/q", {}, origin="https://evil.example").status == 403
    assert http.call("PUT", "/api/queues/%2F/q", {}, origin=http.base).status == 201
    assert http.call("GET", "/api/whoami", host="evil.example").status == 403
    assert http.call("GET", "/api/whoami", host=f"localhost:{http.base.rsplit(':', 1)[1]}").status == 200
    answer = http.call("GET", "/")
    for header in ("content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"):
        assert answer.headers[header]
    assert "'unsafe" not in answer.headers["content-security-policy"]


def test_connections_are_seen_and_closed(node: Node) -> None:
    amqp = node.connect()
    channel = amqp.channel()
    channel.declare("q")
    channel.consume("q")
    http = node.http
    (connection,) = http.get("/api/connections")
    assert (connection["user"], connection["vhost"], connection["state"], connection["channels"]) == (
        "guest",
        "/",
        "running",
        1,
    )
    (one,) = http.get(f"/api/connections/{segment(connection['name'])}/channels")
    assert (one["number"], one["consumer_count"]) == (1, 1)
    assert http.get(f"/api/channels/{segment(one['name'])}")["consumer_details"][0]["queue"] == {"name": "q", "vhost": "/"}
    (consumer,) = http.get("/api/consumers")
    assert consumer["channel_details"]["connection_name"] == connection["name"]
    http.put("/api/users/u", {"password": "p", "tags": "management"})
    path = f"/api/connections/{segment(connection['name'])}"
    assert http.as_user("u:p").get("/api/connections") == []
    assert http.as_user("u:p").call("DELETE", path).status == 404
    assert http.call("DELETE", path, x_reason="to see it").status == 204
    with pytest.raises(Exception, match="320 CONNECTION_FORCED - to see it"):
        channel.settle()
    amqp.drop()
    assert http.delete(path) == 404


def test_deleting_a_vhost_closes_its_connections(node: Node) -> None:
    node.http.put("/api/vhosts/v")
    amqp = node.connect()
    amqp.channel()
    assert node.http.delete("/api/vhosts/%2F") == 204
    with pytest.raises(Exception, match="320"):
        amqp.channel(2)
    amqp.drop()
    assert [vhost["name"] for vhost in node.http.get("/api/vhosts")] == ["v"]


def test_health_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    http = node.http
    for check in ("alarms", "local-alarms", "virtual-hosts", "node-is-quorum-critical", "protocol-listener/amqp091"):
        assert http.get(f"/api/health/checks/{check}")["status"] == "ok"
    assert http.get(f"/api/health/checks/port-listener/{node.amqp_port}")["port"] == node.amqp_port
    assert http.call("GET", "/api/health/checks/port-listener/1").body["missing"] == 1
    assert http.call("GET", "/api/health/checks/protocol-listener/mqtt").status == 503
    assert http.get("/api/aliveness-test/%2F") == {"status": "ok"}
    node.server._disk_failed(StoreError("full"))
    failed = http.call("GET", "/api/health/checks/alarms")
    assert (failed.status, failed.body["reason"]) == (503, "publishers are held back: low on disk")


def test_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = str(tmp_path / "server.pem")
    in_ten_days = datetime.now(UTC) + timedelta(days=10)
    authority.issue_cert("127.0.0.1", not_after=in_ten_days).private_key_and_cert_chain_pem.write_to_path(certificate)
    with running_node(http_port=-1, https_port=0, tls_certificate=certificate, tls_key=certificate) as node:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        login = base64.b64encode(b"guest:guest").decode()
        request = Request(f"{node.http.base}/api/health/checks/certificate-expiration/1/days")
        request.add_header("authorization", f"Basic {login}")
        with urlopen(request, context=context, timeout=10) as response:
            assert json.loads(response.read()) == {"status": "ok"}
        request.full_url = request.full_url.replace("1/days", "2/weeks")
        with pytest.raises(Exception, match="503"):
            urlopen(request, context=context, timeout=10)


def test_reports_are_listed_and_opened_with_a_ticket(tmp_path: Path) -> None:
    (tmp_path / "a b.html").write_text("<html><head><title>One &amp; only</title></head><script>1</script></html>")
    (tmp_path / "secret.txt").write_text("no")
    with running_node(reports=str(tmp_path)) as node:
        http = node.http
        (report,) = http.get("/api/reports")
        assert (report["name"], report["title"]) == ("a b.html", "One & only")
        path = http.post("/api/reports/a%20b.html/ticket", {}).body["path"].replace(" ", "%20")
        page = http.as_user(None).call("GET", path)
        assert page.status == 200
        assert "sandbox" in page.headers["content-security-policy"]
        assert http.as_user(None).call("GET", path.replace("/reports/", "/reports/9")).status == 401
        for name in ("secret.txt", "..%2Fsecret.html", "none.html"):
            assert http.post(f"/api/reports/{name}/ticket", {}).status == 404


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
        deadline = time.monotonic() + 10
        exchange: dict[str, Any] = {"message_stats": {}}
        while exchange["message_stats"].get("publish_in") != 41 and time.monotonic() < deadline:
            exchange = http.get("/api/exchanges/%2F/amq.default?msg_rates_age=10&msg_rates_incr=1")
        assert exchange["message_stats"]["publish_out"] == 40
        topology = http.get("/api/topology/%2F")
        assert topology["queues"][0]["messages"] == 40
    assert http.get("/api/overview")["message_stats"]["publish"] == 41  # what a closed connection did still counts


UNREADABLE_HEADERS = bytes.fromhex("2000") + b"\x00\x00\x00\x05\x01aZZZ"
"""Properties with headers whose bytes are no table; nobody looks at them before the message is a dead letter."""


def put_unreadable(node: Node, queue: str, bodies: int = 1) -> None:
    with node.connect() as amqp:
        channel = amqp.channel()
        for _ in range(bodies):
            amqp.send(1, wire.BasicPublish(0, "", queue))
            amqp.write(on_channel(make_content(UNREADABLE_HEADERS, b"x"), 1, 131_072))
        channel.settle()


def count(http: Http, queue: str) -> int:
    messages: int = http.get(f"/api/queues/%2F/{queue}")["messages"]
    return messages


def wait_for(http: Http, queue: str, messages: int) -> None:
    deadline = time.monotonic() + 10
    while count(http, queue) != messages and time.monotonic() < deadline:
        time.sleep(0.02)
    assert count(http, queue) == messages


def test_headers_that_nobody_can_read_do_not_stop_the_broker(node: Node) -> None:
    http = node.http
    http.put("/api/queues/%2F/dead")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.put("/api/queues/%2F/brief", {"arguments": {"x-message-ttl": 50, **letters}})
    put_unreadable(node, "brief")
    wait_for(http, "dead", 1)
    (message,) = http.post("/api/queues/%2F/dead/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}).body
    assert message["properties"]["headers"]["x-first-death-reason"] == "expired"
    put_unreadable(node, "dead")
    got = http.post("/api/queues/%2F/dead/get", {"count": 2, "ackmode": "ack_requeue_true", "encoding": "auto"})
    assert [each["payload"] for each in got.body] == ["x", "x"]
    assert http.put("/api/queues/%2F/next") == 201


@pytest.mark.parametrize("overflow", ["drop-head", "reject-publish", "reject-publish-dlx"])
def test_a_move_neither_loses_nor_copies(node: Node, overflow: str) -> None:
    http = node.http
    for queue in ("from", "dead"):
        http.put(f"/api/queues/%2F/{queue}")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    http.put("/api/queues/%2F/to", {"arguments": {"x-max-length": 2, "x-overflow": overflow, **letters}})
    put_unreadable(node, "from", 5)
    for _ in range(3):
        assert http.post("/api/queues/%2F/from/move", {"destination": "to"}).status == 200
    expected = {"drop-head": (0, 2, 3)}.get(overflow, (3, 2, 0))
    assert (count(http, "from"), count(http, "to"), count(http, "dead")) == expected


def test_a_policy_beyond_reason_is_refused_and_one_in_a_file_is_ignored(node: Node) -> None:
    http = node.http
    http.put("/api/queues/%2F/q")
    policy = {"pattern": "^q$", "definition": {"message-ttl": 2**63 - 1}}
    assert http.call("PUT", "/api/policies/%2F/p", policy).status == 400
    assert http.post("/api/definitions", {"policies": [{"name": "p", "vhost": "/", **policy}]}).status == 204
    message = {"properties": {"delivery_mode": 2}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert http.post("/api/exchanges/%2F/amq.default/publish", message).body == {"routed": True}
    assert count(http, "q") == 1


def test_an_expression_that_would_take_ages_takes_no_time(http: Http) -> None:
    http.put(f"/api/queues/%2F/{'a' * 60}!")
    assert http.get("/api/queues?page=1&use_regex=true&name=(a%2B)%2B%24")["items"] == []


def test_the_count_of_bodies_in_memory_goes_down_again(node: Node) -> None:
    http = node.http
    for queue in ("q", "r"):
        http.put(f"/api/queues/%2F/{queue}")
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.put("q", *[bytes(1000)] * 50)
        channel.settle()
    assert http.get("/api/nodes")[0]["bodies_in_memory"] == 50_000
    http.post("/api/queues/%2F/q/move", {"destination": "r", "count": 20})
    assert http.get("/api/nodes")[0]["bodies_in_memory"] == 50_000
    http.delete("/api/queues/%2F/r/contents")
    assert http.get("/api/nodes")[0]["bodies_in_memory"] == 30_000
    http.delete("/api/queues/%2F/q")
    assert http.get("/api/nodes")[0]["bodies_in_memory"] == 0


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
        {"parameters": None},
        {"parameters": [5]},
        {"policies": [{"name": "p", "vhost": "new", "pattern": "a{99999999999999999999}", "definition": {}}]},
    ],
)
def test_definitions_that_are_refused_change_nothing(http: Http, part: dict[str, Any]) -> None:
    http.put("/api/exchanges/%2F/known", {"type": "headers"})
    http.put("/api/queues/%2F/q")
    before = http.get("/api/definitions")
    answer = http.post("/api/definitions", {"vhosts": [{"name": "new"}], **part})
    assert answer.status == 400, answer
    assert http.get("/api/definitions") == before


def test_keys_that_look_alike_are_told_apart(http: Http) -> None:
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


def test_a_broker_without_vhosts_can_still_be_looked_at(http: Http) -> None:
    assert http.delete("/api/vhosts/%2F") == 204
    assert http.get("/api/overview")["queue_totals"]["messages"] == 0
    assert http.put("/api/vhosts/%2F") == 201
    assert http.get("/api/overview?msg_rates_age=10&msg_rates_incr=5")["message_stats"]["publish"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/api/queues/{}", None, {}, 404),
        ("POST", "/api/definitions", {}, {"origin": "http://["}, 403),
        ("GET", f"/reports/{'9' * 5000}-x/a", None, {}, 401),
        ("GET", "/api/queues?page=1&use_regex=true&name=a{99999999999999999999}", None, {}, 200),
        ("PUT", "/api/policies/%2F/p", {"pattern": "(" * 3000 + ")" * 3000, "definition": {"max-length": 1}}, {}, 400),
        ("POST", "/api/exchanges/%2F/amq.direct/publish", {"routing_key": "k" * 300, "payload": ""}, {}, 400),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "", "properties": {"type": "t" * 300}},
            {},
            400,
        ),
        ("DELETE", "/api/topic-permissions/%2F/guest/", None, {}, 404),
    ],
)
def test_odd_requests_are_answered(http: Http, method: str, path: str, body: Any, headers: dict[str, str], status: int) -> None:
    answer = http.call(method, path, body, **headers)
    assert answer.status == status, answer


def test_arguments_nested_without_end_are_refused(http: Http) -> None:
    nested: Any = 1
    for _ in range(300):
        nested = {"x": nested}
    assert http.call("PUT", "/api/queues/%2F/q", {"arguments": nested}).status in (201, 400)
    assert http.call("GET", "/api/queues").status == 200


def test_a_head_without_end_is_cut_off(node: Node) -> None:
    host, port = node.http.base.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.sendall((b"x: " + b"y" * 4000 + b"\r\n") * 50)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_the_port_in_use_is_an_error_where_it_was_asked_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "holtmq", "serve", "--data", ":memory:", "--amqp-port", "0", "--http-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 1
        assert done.stderr == f"holtmq: 127.0.0.1:{port}: cannot listen for HTTP: Address already in use\n"
        monkeypatch.setattr(server, "DEFAULT_HTTP_PORT", port)
        config = Config(data=":memory:", amqp_port=0, http_port=port)
        with caplog.at_level(logging.WARNING), running(config) as started:
            assert started.http_address is None
            Amqp(int(started.address.rsplit(":", 1)[1])).close()
        assert "choose a port with --http-port" in caplog.text


def test_reports_with_odd_names_open(tmp_path: Path) -> None:
    names = ["a#1.html", "50%25.html", "ü.html"]
    for name in names:
        (tmp_path / name).write_text("<title>t</title>")
    (tmp_path / "gone.html").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.html").mkdir()
    with running_node(reports=str(tmp_path)) as node:
        assert {report["name"] for report in node.http.get("/api/reports")} == set(names)
        for name in names:
            path = node.http.post(f"/api/reports/{segment(name)}/ticket", {}).body["path"]
            assert node.http.as_user(None).call("GET", path).status == 200


def test_who_may_enter_no_vhost_sees_no_numbers(node: Node) -> None:
    node.http.put("/api/queues/%2F/q")
    node.http.put("/api/users/u", {"password": "p", "tags": "management"})
    put_unreadable(node, "q")
    assert node.http.get("/api/overview")["queue_totals"]["messages"] == 1
    assert node.http.as_user("u:p").get("/api/overview")["queue_totals"]["messages"] == 0


def test_publishing_is_refused_while_the_disk_fails(node: Node) -> None:
    node.server._disk_failed(StoreError("full"))
    message = {"properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string"}
    assert node.http.post("/api/exchanges/%2F/amq.default/publish", message).status == 503
