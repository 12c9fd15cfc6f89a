"""Finding the HTTP API of a broker: only HoltMQ names it, and the password goes nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme

from holtmq.client.address import Address, Tls
from holtmq.client.blocking_connection import RefusedError
from holtmq.client.broker_api import find_api
from holtmq.client.http_api import ApiError
from holtmq.client.run_announcer import Announcement, RunAnnouncer
from holtmq.config import Config
from holtmq.server.run import running
from tests.management.conftest import Node
from tests.peers.rabbitmq import RabbitMQ


@pytest.fixture
def elsewhere() -> Iterator[ThreadingHTTPServer]:
    """Another web server, which notes the requests that it gets."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    seen: list[Mapping[str, str]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen = seen  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(node: Node, password: str = "guest") -> Address:
    return Address("127.0.0.1", node.amqp_port, password=password)


def test_the_broker_names_its_http_api(node: Node) -> None:
    api = find_api(address(node))
    assert api is not None
    assert api.get("whoami")["name"] == "guest"


def test_over_tls_the_password_is_sent_over_tls_only(tmp_path: Path) -> None:
    authority, certificate, ca = trustme.CA(), str(tmp_path / "server.pem"), str(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    authority.cert_pem.write_to_path(ca)
    settings: dict[str, Any] = {"tls_port": 0, "tls_certificate": certificate, "tls_key": certificate}
    with running(Config(data=":memory:", amqp_port=0, http_port=-1, https_port=0, **settings)) as server:
        plain, encrypted = (Address.parse(url) for url in server.addresses[:2])
        assert find_api(plain) is None
        api = find_api(replace(encrypted, tls=Tls(ca_file=ca)))
        assert api is not None
        assert api.get("whoami")["name"] == "guest"
    with running(Config(data=":memory:", amqp_port=0, http_port=0, **settings)) as server:
        plain, encrypted = (Address.parse(url) for url in server.addresses[:2])
        assert find_api(plain) is not None
        assert find_api(replace(encrypted, tls=Tls(ca_file=ca))) is None


def test_a_broker_without_an_http_api_names_none() -> None:
    with running(Config(data=":memory:", amqp_port=0, http_port=-1)) as server:
        assert find_api(Address.parse(server.address)) is None


@pytest.mark.rabbitmq
def test_rabbitmq_names_none(rabbitmq: RabbitMQ) -> None:
    assert find_api(Address("127.0.0.1", rabbitmq.amqp_port)) is None


def test_another_server_at_the_port_does_not_get_the_password(node: Node, elsewhere: ThreadingHTTPServer) -> None:
    named = node.server.properties["http_api"]
    assert isinstance(named, Mapping)
    node.server.properties = {**node.server.properties, "http_api": {**named, "http": elsewhere.server_port}}
    assert find_api(address(node)) is None
    (headers,) = elsewhere.seen  # type: ignore[attr-defined]
    assert not [name for name in headers if name.lower() == "authorization"]


def test_a_proxy_does_not_get_the_password(node: Node, elsewhere: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{elsewhere.server_port}")
    monkeypatch.delenv("no_proxy", raising=False)
    api = find_api(address(node))
    assert api is not None
    api.get("whoami")
    assert elsewhere.seen == []  # type: ignore[attr-defined]


def test_a_wrong_password_is_not_tried_over_http(node: Node) -> None:
    with pytest.raises(RefusedError):
        find_api(address(node, "wrong"))


def test_a_job_stops_to_announce_itself_if_its_user_has_no_rights(node: Node) -> None:
    node.http.put("/api/users/bob", {"password": "hush", "tags": ""})
    node.http.put("/api/permissions/%2F/bob", {"configure": "", "write": "", "read": ""})
    bob = replace(address(node, "hush"), user="bob")
    api = find_api(bob)
    assert api is not None
    with pytest.raises(ApiError, match="user 'bob' has none"):
        api.put("runs", "/", "1", body={"job": "archive", "state": "running"})
    for broker in (bob, replace(bob, password="wrong"), replace(bob, port=1)):
        with RunAnnouncer("archive", Announcement(lambda found=broker: find_api(found), "in"), lambda: 0, str):  # type: ignore[misc]
            pass
    assert node.http.get("/api/runs") == []
