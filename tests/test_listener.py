"""Accepting connections: limits before a handshake, and survival when descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import uvloop

from holtmq import listener as listening
from holtmq.config import Config
from holtmq.listener import Listener
from holtmq.server.descriptors import DescriptorShares
from holtmq.server.run import running
from holtmq.testing import running_broker
from tests.amqp_client import Amqp, is_closed, raw_socket
from tests.management.http import Http


class Greeter(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(b"hello")


async def greeting(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    try:
        return await reader.read(5)
    finally:
        writer.close()


class Exhausted(socket.socket):
    """A socket whose first calls of `accept` fail."""

    failures = 2

    def accept(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_accepting_goes_on_when_descriptors_are_available_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", 0.01)

    async def run() -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Exhausted)
            listener = Listener("TEST", "127.0.0.1", 0, Greeter, has_room=lambda: True, handshake_timeout_s=1)
        listener.start()
        try:
            return await greeting(listener.addresses[0])
        finally:
            listener.close()

    with caplog.at_level(logging.WARNING):
        assert uvloop.run(run()) == b"hello"
    (record,) = caplog.records
    assert "cannot accept connections for TEST: Too many open files" in record.getMessage()


def test_without_room_a_connection_is_refused_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[BaseException | bytes]:
        listener = Listener("TEST", "127.0.0.1", 0, Greeter, has_room=lambda: False, handshake_timeout_s=1)
        listener.start()
        try:
            return [(await asyncio.gather(greeting(listener.addresses[0]), return_exceptions=True))[0] for _ in range(3)]
        finally:
            listener.close()

    with caplog.at_level(logging.WARNING):
        assert [type(answer) for answer in uvloop.run(run())] == [ConnectionResetError] * 3
    assert len(caplog.records) == 1


def test_a_host_name_stands_for_all_its_addresses() -> None:
    async def run() -> list[bytes]:
        listener = Listener("TEST", "localhost", 0, Greeter, has_room=lambda: True, handshake_timeout_s=1)
        listener.start()
        try:
            return [await greeting(address) for address in listener.addresses]
        finally:
            listener.close()

    assert set(uvloop.run(run())) == {b"hello"}


@pytest.fixture
def tls(tmp_path: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    authority, certificate = trustme.CA(), str(tmp_path / "server.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    settings = {"data": ":memory:", "amqp_port": 0, "tls_port": 0, "http_port": -1, "https_port": 0}
    return {**settings, "tls_certificate": certificate, "tls_key": certificate}, context


def ports_of(addresses: list[str]) -> tuple[int, int]:
    amqps, https = (int(address.rsplit(":", 1)[1]) for address in addresses[1:])
    return amqps, https


def test_connections_that_never_begin_a_handshake_keep_nobody_out(
    tls: tuple[dict[str, Any], ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, context = tls
    shares = DescriptorShares(limit=1024, amqp=10, http=10, handshakes=4)
    monkeypatch.setattr(DescriptorShares, "of", lambda _: shares)
    with running(Config(**settings)) as server, ExitStack() as stack:
        amqps, https = ports_of(server.addresses)
        silent = [stack.enter_context(raw_socket(port)) for port in (amqps, https) for _ in range(30)]
        with Amqp(amqps, wrap=lambda plain: context.wrap_socket(plain, server_hostname="127.0.0.1")) as amqp:
            amqp.channel().declare("q")
        with raw_socket(https) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
            connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert all(map(is_closed, (*silent[:20], *silent[30:50])))


def test_a_connection_without_room_is_refused_before_its_handshake(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    settings, _ = tls
    with (
        running(Config(**settings, max_connections=1)) as server,
        Amqp(int(server.address.rsplit(":", 1)[1])),
        raw_socket(ports_of(server.addresses)[0]) as connection,
    ):
        assert is_closed(connection)


def test_a_handshake_must_end_in_time(tls: tuple[dict[str, Any], ssl.SSLContext]) -> None:
    settings, _ = tls
    with running(Config(**settings, handshake_timeout_s=0.1)) as server:
        for port in ports_of(server.addresses):
            with raw_socket(port) as connection:
                assert is_closed(connection, b"\x16\x03\x01")


def test_clients_that_do_not_log_in_make_room_for_others() -> None:
    with running_broker(max_connections=3) as broker, Amqp(broker.port) as known, ExitStack() as stack:
        silent = [stack.enter_context(raw_socket(broker.port)) for _ in range(10)]
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q")
        known.channel().declare("q")
        assert is_closed(silent[0])


@pytest.mark.parametrize(
    ("limit", "amqp", "http"), [(256, 128, 64), (1024, 704, 256), (1_000_000, 10_000, 500), (20, 1, 5), (-1, 10_000, 500)]
)
def test_http_gets_a_quarter_of_the_descriptors_at_most(limit: int, amqp: int, http: int) -> None:
    shares = DescriptorShares.of(Config(), limit)
    assert (shares.amqp, shares.http) == (amqp, http)


def test_http_works_while_amqp_is_full() -> None:
    with running_broker(max_connections=1, http_port=0) as broker, Amqp(broker.port):
        assert broker.http_url is not None
        assert Http(broker.http_url).get("/api/whoami")["name"] == "guest"
