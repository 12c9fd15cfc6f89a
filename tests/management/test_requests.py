"""What all requests have in common: names, limits, errors, TLS, other sites."""

from __future__ import annotations

import base64
import json
import logging
import re
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import trustme

from holtmq.config import Config
from holtmq.server import server
from holtmq.server.run import running
from tests.amqp_client import Amqp, raw_socket
from tests.deadline import PATIENCE_S
from tests.management.conftest import Node, running_node
from tests.management.http import Http, assert_answer, segment

HARD_NAMES = ["<script>alert(1)</script>", "a/b", "100%", "ünï 🦦", "a?b#c&d=e", "'\"`", "..a", " ", "{x}", "%2F"]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_names_may_contain_any_character(http: Http, name: str) -> None:
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


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/api/overview?msg_rates_age=9999999&msg_rates_incr=1", None, 400, "at most 1000 steps"),
        ("GET", "/api/queues/%FF/q", None, 400, "UTF-8"),
        ("GET", "/api/nothing", None, 404, "no resource at '/api/nothing'"),
        ("GET", "/nothing", None, 404, "the web pages are at /"),
        ("PATCH", "/api/queues", None, 405, "expected one of GET, HEAD, OPTIONS, got PATCH"),
        ("POST", "/metrics", {}, 405, "expected GET or HEAD"),
    ],
)
def test_malformed_requests_are_refused_with_a_reason(
    http: Http, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    assert_answer(http.call(method, path, body), status, reason)


def test_a_body_that_is_too_large_is_refused_before_it_is_read(node: Node) -> None:
    with raw_socket(int(node.http.base.rsplit(":", 1)[1])) as connection:
        head = f"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\n{LOGIN}\r\n"
        connection.sendall(f"{head}Content-Length: 999999999999\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_changes_survive_a_restart(tmp_path: Path) -> None:
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


def test_requests_from_other_sites_are_refused(http: Http) -> None:
    assert http.call("PUT", "/api/queues/%2F/q", {}, origin="https://evil.example").status == 403
    assert http.call("PUT", "/api/queues/%2F/q", {}, origin=http.base).status == 201
    assert http.call("GET", "/api/whoami", host="evil.example").status == 403
    assert http.call("GET", "/api/whoami", host=f"localhost:{http.base.rsplit(':', 1)[1]}").status == 200
    answer = http.call("GET", "/")
    for header in ("content-security-policy", "x-content-type-options", "x-frame-options", "referrer-policy"):
        assert answer.headers[header]
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-cache"
    assert http.call("GET", "/api/definitions").headers["cache-control"] == "no-store"


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
        with urlopen(request, context=context, timeout=PATIENCE_S) as response:
            assert json.loads(response.read()) == {"status": "ok"}
        request.full_url = request.full_url.replace("1/days", "2/weeks")
        with pytest.raises(Exception, match="503"):
            urlopen(request, context=context, timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/api/queues/{}", None, {}, 404),
        ("POST", "/api/definitions", {}, {"origin": "http://["}, 403),
        ("GET", f"/reports/{'9' * 5000}-x/a", None, {}, 401),
        ("GET", "/api/queues?page=1&use_regex=true&name=a{99999999999999999999}", None, {}, 200),
        ("PUT", "/api/policies/%2F/p", {"pattern": "(" * 3000 + ")" * 3000, "definition": {"max-length": 1}}, {}, 201),
        ("POST", "/api/exchanges/%2F/amq.direct/publish", {"routing_key": "k" * 300, "payload": ""}, {}, 400),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "", "properties": {"type": "t" * 300}},
            {},
            400,
        ),
        ("DELETE", "/api/topic-permissions/%2F/guest/", None, {}, 404),
        ("GET", "/api/whoami", None, {"authorization": "Basic é"}, 401),
        (
            "POST",
            "/api/exchanges/%2F/amq.direct/publish",
            {"routing_key": "", "payload": "", "properties": {"headers": {"price": {"$decimal": "123456789012.34"}}}},
            {},
            200,
        ),
        ("GET", "/api/queues?columns=" + "a," * 20_000, None, {}, 200),
        ("GET", "/api/queues?columns=" + ",".join(map(str, range(5000))), None, {}, 400),
        ("GET", "/api/queues?columns=" + "a." * 20_000, None, {}, 400),
        ("PUT", "/api/queues/%2F/q", b'{"arguments": {"x": "' + b"y" * 1024 * 1024 + b'"}}', {}, 413),
        ("PUT", "/api/queues/%2F/q", {}, {"sec_fetch_site": "cross-site"}, 403),
        ("PUT", "/api/queues/%2F/q", {}, {"sec_fetch_site": "same-site"}, 403),
        ("PUT", "/api/queues/%2F/q", {}, {"sec_fetch_site": "same-origin"}, 201),
        ("GET", "/api/queues", None, {"sec_fetch_site": "cross-site"}, 200),
    ],
)
def test_unusual_requests_get_an_answer(
    http: Http, method: str, path: str, body: Any, headers: dict[str, str], status: int
) -> None:
    answer = http.call(method, path, body, **headers)
    assert answer.status == status, answer


def test_deeply_nested_arguments_do_not_stop_the_broker(http: Http) -> None:
    nested: Any = 1
    for _ in range(300):
        nested = {"x": nested}
    assert http.call("PUT", "/api/queues/%2F/q", {"arguments": nested}).status in (201, 400)
    assert http.call("GET", "/api/queues").status == 200


@pytest.mark.parametrize("path", ["/api/parameters/c/%2F/n", "/api/global-parameters/n"])
def test_a_deeply_nested_parameter_does_not_make_lists_fail(http: Http, path: str) -> None:
    nested: Any = 1
    for _ in range(200):
        nested = [nested]
    assert_answer(http.call("PUT", path, {"value": nested}), 400, "expected a value of at most 100 levels")
    section = {"name": "n", "value": nested, "component": "c", "vhost": "/"}
    for name in ("parameters", "global_parameters"):
        assert http.post("/api/definitions", {name: [section]}).status == 400
    assert http.call("GET", "/api/definitions").status == 200


def test_bodies_have_a_limit_in_total(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.management.bodies.MAX_TOTAL_BYTES", 1000)
    for _ in range(20):  # what is over does not count
        assert http.put("/api/queues/%2F/q", {"arguments": {"x": "y" * 800}}) in (201, 204)
    refused = http.call("PUT", "/api/queues/%2F/q", {"arguments": {"x": "y" * 1000}})
    assert_answer(refused, 503, "try again later")
    assert refused.headers["retry-after"] == "1"


LOGIN = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q="
CHUNKED = "2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (["POST /api/definitions HTTP/1.1", "Host: localhost", LOGIN, "Transfer-Encoding: chunked"], CHUNKED, 204),
        (
            ["POST /api/definitions HTTP/1.1", "Host: localhost", LOGIN, "Content-Length: 4", "Transfer-Encoding: chunked"],
            CHUNKED,
            400,
        ),
        (["POST /api/definitions HTTP/1.0", "Host: localhost", LOGIN, "Transfer-Encoding: chunked"], CHUNKED, 400),
        (["POST /api/definitions HTTP/1.1", "Host: localhost", LOGIN, "Transfer-Encoding: xchunked"], CHUNKED, 400),
        (["POST /api/definitions HTTP/1.1", "Host: localhost", LOGIN, "Content-Length: 2", "Content-Length: 3"], "{} ", 400),
        (["POST /api/definitions HTTP/1.1", "Host: localhost", LOGIN, "Content-Length: +2"], "{}", 400),
        (["GET / HTTP/1.1", "Host: localhost", "Host: localhost"], "", 400),
        (["GET / HTTP/1.1", "Host : localhost"], "", 400),
        (["GET / HTTP/1.1"], "", 400),
        (["GET /api/whoami?a=b HTTP/1.1", "Host: [::1", LOGIN], "", 403),
        (["GET http://localhost/api/whoami HTTP/1.1", "Host: localhost", LOGIN], "", 404),
        (["GET /../../etc/passwd HTTP/1.1", "Host: localhost"], "", 404),
        (["CONNECT localhost:22 HTTP/1.1", "Host: localhost"], "", 405),
        (["OPTIONS * HTTP/1.1", "Host: localhost"], "", 405),
        (["GET /api/whoami HTTP/1.1", "Host: localhost", LOGIN, "Connection: Upgrade", "Upgrade: websocket"], "", 200),
        (["GET / HTTP/1.1", "Host: localhost", "Range: bytes=0-0,0-0"], "", 200),
    ],
)
def test_requests_that_proxies_may_read_differently_are_not_guessed_at(
    node: Node, head: list[str], body: str, status: int
) -> None:
    with raw_socket(int(node.http.base.rsplit(":", 1)[1])) as connection:
        connection.sendall(("\r\n".join(head) + "\r\n\r\n" + body).encode())
        assert connection.recv(100).startswith(f"HTTP/1.1 {status}".encode())


def test_a_body_that_nobody_reads_is_not_taken_for_a_request(node: Node) -> None:
    hidden = "DELETE /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\n" + LOGIN + "\r\n\r\n"
    assert node.http.put("/api/queues/%2F/q") == 201
    with raw_socket(int(node.http.base.rsplit(":", 1)[1])) as connection:
        head = f"PUT /api/queues/%2F/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(hidden)}\r\n\r\n"
        connection.sendall((head + hidden + "GET /logo.svg HTTP/1.0\r\nHost: localhost\r\n\r\n").encode())
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert re.findall(rb"HTTP/1\.1 (\d+)", answers) == [b"401", b"200"]
    assert node.http.call("GET", "/api/queues/%2F/q").status == 200


def test_any_host_may_be_named_on_other_interfaces(http: Http) -> None:
    with running_node(http_host="0.0.0.0") as node:
        remote = Http(node.http.base.replace("0.0.0.0", "127.0.0.1"))
        for host in ("broker.example", "[", "[::1", "a b"):
            assert remote.call("GET", "/api/queues?page=1", host=host).status == 200, host


def test_an_oversized_request_head_is_refused(node: Node) -> None:
    with raw_socket(int(node.http.base.rsplit(":", 1)[1])) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        connection.sendall((b"x: " + b"y" * 4000 + b"\r\n") * 50)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_an_explicit_port_that_is_in_use_is_an_error(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "holtmq", "serve", "--data", ":memory:", "--amqp-port", "0", "--http-port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 1
        assert done.stderr == f"holtmq: 127.0.0.1:{port}: cannot listen for HTTP: Address already in use\n"
        monkeypatch.setattr(server, "DEFAULT_HTTP_PORT", port)
        config = Config(data=":memory:", amqp_port=0, http_port=port)
        with caplog.at_level(logging.WARNING), running(config) as started:
            assert started.http_address is None
            Amqp(int(started.address.rsplit(":", 1)[1])).close()
        assert "choose a port with --http-port" in caplog.text
