"""Idle, slow and too many HTTP clients: they are cut, and others get through."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from holtmq.management import http as http_server
from holtmq.management import http_connection
from tests.amqp_client import Amqp, is_closed, raw_socket
from tests.deadline import eventually
from tests.management.conftest import Node, running_node
from tests.management.http import Http
from tests.server.process import broker_process

LOGIN = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
HALF_A_HEAD = b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n"
GET = HALF_A_HEAD + LOGIN.encode() + b"\r\n"
HALF_A_BODY = f"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: localhost\r\n{LOGIN}Content-Length: 100\r\n\r\n{{".encode()
MAXIMUM = 5


@pytest.fixture
def full() -> Iterator[Node]:
    with running_node(max_http_connections=MAXIMUM) as node:
        yield node


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A server that looks at its time limits all the time. A test shortens them when it has nothing to lose any more."""
    monkeypatch.setattr(http_server, "CHECK_S", 0.01)
    with running_node() as node:
        yield node


def shorten_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "HEAD_S", 0.1)
    monkeypatch.setattr(http_connection, "STALL_S", 0.1)


@contextmanager
def connect(node: Node, sent: bytes = b"") -> Iterator[socket.socket]:
    with raw_socket(port_of(node.http)) as connection:
        connection.sendall(sent)
        yield connection


def port_of(http: Http) -> int:
    return int(http.base.rsplit(":", 1)[1])


def read_answer(connection: socket.socket) -> None:
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(100_000)
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY])
def test_clients_that_do_not_complete_a_request_keep_nobody_out(full: Node, sent: bytes) -> None:
    with ExitStack() as stack:
        waiting = [stack.enter_context(connect(full, sent)) for _ in range(3 * MAXIMUM)]
        for _ in range(3):
            assert full.http.get("/api/whoami")["name"] == "guest"
        assert all(map(is_closed, waiting[:MAXIMUM]))


def test_idle_connections_make_room_for_new_ones(full: Node) -> None:
    with ExitStack() as stack:
        idle = []
        for _ in range(MAXIMUM):
            idle.append(stack.enter_context(connect(full, GET)))
            read_answer(idle[-1])
        read_answer(stack.enter_context(connect(full, GET)))
        assert is_closed(idle[0])
        idle[-1].sendall(GET)
        read_answer(idle[-1])


def test_a_head_must_arrive_in_time_even_if_it_grows(patient: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(patient, HALF_A_HEAD) as connection:
        shorten_limits(monkeypatch)

        def is_cut() -> bool:
            try:
                connection.sendall(b"x: y\r\n")
            except ConnectionError:
                return True
            return False

        eventually(is_cut, "the end of a connection whose request never ends")


@pytest.mark.parametrize("sent", [b"", HALF_A_HEAD, HALF_A_BODY])
def test_a_client_that_stops_in_the_middle_of_a_request_is_cut(
    patient: Node, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(patient, sent) as connection:
        shorten_limits(monkeypatch)
        assert is_closed(connection)


def test_the_second_request_of_a_connection_has_a_limit_too(patient: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(patient, GET) as connection:
        read_answer(connection)
        shorten_limits(monkeypatch)
        assert is_closed(connection, HALF_A_HEAD)


def test_a_client_that_does_not_read_its_responses_is_cut(patient: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    queues = [{"name": str(number), "vhost": "/", "durable": False} for number in range(300)]
    assert patient.http.post("/api/definitions", {"queues": queues}).status == 204
    request = GET.replace(b"/api/whoami", b"/api/queues")
    with connect(patient, request) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(0.01)
        shorten_limits(monkeypatch)

        def is_cut() -> bool:
            try:
                connection.sendall(request)
            except TimeoutError:
                return False
            except ConnectionError:
                return True
            return False

        eventually(is_cut, "the end of a connection that only sends")


def test_half_requests_and_silent_clients_leave_descriptors_for_amqp(tmp_path: Path) -> None:
    with broker_process(tmp_path / "a.db", "--http-port", "0", open_files=256) as broker, ExitStack() as stack:
        http = Http(f"http://127.0.0.1:{broker.http_port}")
        for _ in range(300):
            stack.enter_context(raw_socket(broker.http_port)).sendall(HALF_A_HEAD)
        clients = [stack.enter_context(Amqp(broker.port)) for _ in range(50)]
        for _ in range(300):
            stack.enter_context(raw_socket(broker.port))
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
        assert http.get("/api/whoami")["name"] == "guest"
        clients[0].channel().declare("q", durable=True)


def test_forwarded_addresses_count_only_if_a_trusted_proxy_sends_them() -> None:
    with running_node() as node:
        assert node.http.call("GET", "/api/whoami", x_forwarded_for="10.0.0.7").status == 200
    with running_node(trusted_proxies="127.0.0.1, 10.1.0.0/16") as node:
        assert node.http.call("GET", "/api/whoami").status == 200
        assert node.http.call("GET", "/api/whoami", x_forwarded_for="10.0.0.7").status == 401
        assert node.http.call("GET", "/api/whoami", x_forwarded_for="127.0.0.1, 10.0.0.7, 10.1.2.3").status == 401
