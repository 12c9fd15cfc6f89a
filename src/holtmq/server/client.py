"""A connected client: the socket on one side, the protocol and the handler of its requests on the other."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from holtmq.broker.session import Session
from holtmq.errors import AmqpError, ConnectionForcedError
from holtmq.protocol.server_connection import ConnectionState, ServerConnection
from holtmq.server.handler import ClientHandler
from holtmq.server.heartbeat import Heartbeat
from holtmq.server.login import Login

if TYPE_CHECKING:
    from holtmq.server.server import Server

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
CLOSE_TIMEOUT_S = 5.0


class Client(asyncio.Protocol):
    """The socket of one client. Handler and connection exist from `connection_made` on."""

    def __init__(self, server: Server) -> None:
        self.handler: ClientHandler
        self.connection: ServerConnection
        self.name = ""
        self.connected_at = 0.0
        self.bytes_received = self.bytes_sent = self.reads = self.writes = 0
        self.is_reading = True
        """Whether the server reads from the socket. It does not while the client is blocked or throttled."""
        self._server = server
        self._turns = server.turns
        self._transport: asyncio.Transport
        self._timers: list[asyncio.TimerHandle] = []
        self._heartbeat: Heartbeat | None = None
        self._has_left = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.name = f"{_text(transport, 'peername')} -> {_text(transport, 'sockname')}"
        self.connected_at = time.time()
        server = self._server
        peer = transport.get_extra_info("peername")
        login = Login(
            server.broker.authorization,
            host=peer[0] if isinstance(peer, tuple) else None,
            certified_name=_certified_name(transport),
            guest_from_anywhere=server.config.guest_from_anywhere,
        )
        self.handler = ClientHandler(server, self, login)
        self.connection = ServerConnection(self.handler, server.limits)
        if not server.admit(self):
            transport.abort()
            return
        self._call_later(server.config.handshake_timeout_s, self._end_handshake)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        self.reads += 1
        self._turns.begin()
        try:
            self.connection.receive(data)
        except Exception:
            # The edge between a client and the broker: a defect must not affect any other client.
            log.exception("internal error while serving %s", self.name)
            self.connection.fail_inside()
        if self.connection.state >= ConnectionState.CLOSING:
            self._leave()
        self._turns.received(len(data))

    def eof_received(self) -> None:
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._turns.begin()
        self.connection.lost()
        self.handler.close_session()
        self._server.dismiss(self)

    def pause_writing(self) -> None:
        self.connection.is_congested = True

    def resume_writing(self) -> None:
        self.connection.is_congested = False
        self.resume()

    def resume(self) -> None:
        """Resume deliveries to the client, because it can receive messages again."""
        self._turns.begin()
        if self.session is not None:
            for channel in self.session.channels.values():
                channel.resume()

    def flush(self) -> None:
        """Send the output. Called at the end of a turn, unless the output waits for the disk."""
        if self._transport.is_closing():
            return
        connection = self.connection
        was_full = not connection.is_writable
        self.bytes_sent += connection.unsent
        self.writes += 1
        self._transport.writelines(connection.take_output())
        if was_full and connection.is_writable:
            self.resume()
        if connection.state == ConnectionState.CLOSED:
            self._transport.close()

    def pause_reading(self) -> None:
        """Stop reading from the client, which makes it stop sending."""
        if self.is_reading and not self._transport.is_closing():
            self.is_reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading and not self._transport.is_closing():
            self.is_reading = True
            self._transport.resume_reading()

    def start_heartbeat(self, interval_s: float) -> None:
        self._heartbeat = Heartbeat(self, self._transport, interval_s)

    def close(self, error: AmqpError) -> None:
        """Close the connection and tell the client why."""
        self.connection.close(error)
        self._leave()

    @property
    def session(self) -> Session | None:
        return self.handler.session

    @property
    def mechanism(self) -> str:
        return self.handler.mechanism

    @property
    def heartbeat_s(self) -> int:
        return self.handler.heartbeat_s

    @property
    def peer(self) -> tuple[str, int]:
        """Host and port of the client."""
        return _address(self._transport, "peername")

    @property
    def here(self) -> tuple[str, int]:
        """Host and port of the server, as the client sees them."""
        return _address(self._transport, "sockname")

    @property
    def tls(self) -> tuple[str, str] | None:
        """Protocol and cipher of an encrypted connection."""
        cipher = self._transport.get_extra_info("cipher")
        return (cipher[1], cipher[0]) if cipher else None

    def _leave(self) -> None:
        """End the session of a connection that is closed, or closing until the client answers with close-ok."""
        if self.connection.state == ConnectionState.CLOSED and not self.connection.has_output:
            self._transport.close()
        if self._has_left:
            return
        self._has_left = True
        self.handler.close_session()
        self._call_later(CLOSE_TIMEOUT_S, self._transport.abort)
        reason = self.connection.close_reason
        if reason is not None:
            level = logging.INFO if isinstance(reason, ConnectionForcedError) else logging.WARNING
            log.log(level, "closing %s: %s %s", self.name, reason.reply_code, reason)

    def _end_handshake(self) -> None:
        if self.connection.state < ConnectionState.OPEN:
            timeout_s = self._server.config.handshake_timeout_s
            log.warning("closing %s: the client did not log in within %g s", self.name, timeout_s)
            self._transport.abort()

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self._timers.append(asyncio.get_running_loop().call_later(delay_s, call))


def _certified_name(transport: asyncio.Transport) -> str | None:
    """Return the common name in a client certificate that the server trusts, or None."""
    certificate = transport.get_extra_info("peercert")
    if not certificate or not isinstance(transport.get_extra_info("ssl_object"), ssl.SSLObject):
        return None
    names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    return names[0] if names else None


def _address(transport: asyncio.Transport, side: str) -> tuple[str, int]:
    address = transport.get_extra_info(side)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else (str(address or "local"), 0)


def _text(transport: asyncio.Transport, side: str) -> str:
    address = transport.get_extra_info(side)
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address or "local")
