"""A connected client: the socket on one side, the protocol and the handler of its requests on the other."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from holtmq.broker.chores import Chore
from holtmq.broker.memory import CONNECTION_BYTES, TLS_BYTES, memory_of_table
from holtmq.broker.session import Session
from holtmq.errors import AmqpError, ConnectionForcedError, LoginRefusedError
from holtmq.protocol.server_connection import ConnectionState, ServerConnection
from holtmq.server.handler import ClientHandler
from holtmq.server.heartbeat import Heartbeat
from holtmq.server.login import Login
from holtmq.server.pause import Pause
from holtmq.server.sending_thread import LARGE_OUTPUT
from holtmq.table import FieldValue
from holtmq.wire.content import Buffer

if TYPE_CHECKING:
    from holtmq.server.server import Server

log = logging.getLogger(__name__)

WRITE_BUFFER_BYTES = 1024 * 1024
LARGEST_OUTPUT = 64 * 1024 * 1024
"""A client that leaves more than this unread, and a message of the largest size, is disconnected if there is more to send."""
INPUT_BYTES = 256 * 1024
LARGE_INPUT_BYTES = 1024 * 1024
"""Sizes of a read. The larger one is for large bodies, of which fewer are then cut; with small messages it would be a long
turn (benchmarks/broker.py)."""
ALARMED_INPUT_BYTES = 64 * 1024
"""Size of a read during a memory alarm: a client that may finish a message should not send much of the next one."""
METHODS_AT_ONCE = 250
"""Methods of one client, without publishes and acks, that are carried out before others are served (benchmarks/stalls.py)."""
CLOSE_TIMEOUT_S = 5.0
"""Longest time that a closed connection waits for the client to close its side."""


class Client(asyncio.BufferedProtocol):
    """The socket of one client. Handler and connection exist from `connection_made` on."""

    def __init__(self, server: Server) -> None:
        self.handler: ClientHandler
        self.connection: ServerConnection
        self.name = ""
        self.connected_at = 0.0
        self.bytes_received = self.bytes_sent = self.reads = self.writes = 0
        self.counted_memory = 0
        """What the budget counts for this client."""
        self._pauses = Pause.NONE
        self._server = server
        self._buffer = server.input_buffer
        self._turns = server.turns
        self._pressure = server.pressure
        self._memory = server.broker.memory
        self._errors = server.broker.internal_errors
        self._base_memory = CONNECTION_BYTES
        self._transport: asyncio.Transport
        self._timers: list[asyncio.TimerHandle] = []
        self._heartbeat: Heartbeat | None = None
        self._asked = 0
        """Size of the last buffer for input."""
        self._has_left = self._is_shut = self._is_session_closed = self._is_giving_way = self._has_eof = False
        self._sender = server.sender
        self._sending = 0
        """Bytes that the sending thread has. Nothing else is sent meanwhile."""
        self._is_encrypted = False
        self._chores = 0
        """Number of chores before which nothing more is read from the client."""
        self._last_chores = 0
        """Number of those before which nothing more is sent to it, either."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        try:
            self._start(self._transport)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._errors.report("accepting a client", self.name)
            self._transport.abort()

    def _start(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self.name = f"{_text(transport, 'peername')} -> {_text(transport, 'sockname')}"
        self.connected_at = time.time()
        server = self._server
        peer = transport.get_extra_info("peername")
        login = Login(
            server.broker.authorization,
            server.passwords,
            host=peer[0] if isinstance(peer, tuple) else None,
            certified_name=_certified_name(transport),
            guest_from_anywhere=server.config.guest_from_anywhere,
        )
        self._is_encrypted = transport.get_extra_info("cipher") is not None
        if self._is_encrypted:
            self._base_memory += TLS_BYTES
        self.handler = ClientHandler(server, self, login)
        self.connection = ServerConnection(self.handler, server.limits)
        self.connection.methods_at_once = METHODS_AT_ONCE
        if not server.admit(self):
            transport.abort()
            return
        self._call_later(server.config.handshake_timeout_s, self._end_handshake)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = LARGE_INPUT_BYTES if self.connection.has_large_input else INPUT_BYTES
        self._asked = size if not self._memory.is_alarmed else ALARMED_INPUT_BYTES
        return self._buffer[: self._asked]

    def buffer_updated(self, size: int) -> None:
        self.bytes_received += size
        self.reads += 1
        self._turns.begin()
        self._receive(self._buffer[:size])
        self._turns.received(size)
        if size == self._asked:
            self._give_way()

    def _give_way(self) -> None:
        """Serve others before this client goes on. libuv reads a socket that has more up to 32 times in a row."""
        if self._is_giving_way or self._transport.is_closing():
            return
        self._is_giving_way = True
        self._transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_giving_way = False
        if self.connection.has_given_way:
            self._go_on()
        if not (self._is_giving_way or self._pauses or self._transport.is_closing()):
            self._transport.resume_reading()

    def _receive(self, data: memoryview) -> None:
        connection = self.connection
        try:
            connection.receive_buffer(data)
        except Exception:  # noqa: BLE001  # contained: it is reported
            # The edge between a client and the broker: a defect must not affect any other client.
            self._errors.report("serving a client", self.name)
            self._fail()
        if connection.state >= ConnectionState.CLOSING:
            self._leave()
        elif connection.is_owed_much:
            self.pause_reading(Pause.OUTPUT)
        if connection.has_given_way:
            self._give_way()
        self._pressure.count(self)

    def finish_login(self, refusal: LoginRefusedError | None) -> None:
        """Go on after the login was checked, and carry out what has arrived since. `refusal` says why it failed."""
        self._turns.begin()
        self.connection.finish_login(refusal)
        self.resume_reading(Pause.LOGIN)
        self._receive(self._buffer[:0])

    def eof_received(self) -> bool:
        self._has_eof = True
        return self.is_sending  # then the transport stays open until that is done

    def connection_lost(self, error: Exception | None) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._heartbeat is not None:
            self._heartbeat.stop()
        self._turns.begin()
        if self in self._server.clients:
            try:
                with self._errors.contain("closing a connection", self.name):
                    self.connection.lost()
                if not self._is_session_closed:
                    self._server.broker.chores.add("closing a session", self.name, self.handler.close_session)
            finally:
                self._server.dismiss(self)

    def pause_writing(self) -> None:
        self.connection.is_congested = True

    def resume_writing(self) -> None:
        self.connection.is_congested = False
        self._sent()
        self.resume()

    def resume(self) -> None:
        """Resume deliveries to the client, because it can receive messages again."""
        self._turns.begin()
        if self.session is not None:
            for channel in self.session.channels.values():
                channel.resume()

    def flush(self) -> None:
        """Send the output. Called at the end of a turn, unless the output waits for the disk."""
        if self._transport.is_closing() or self._is_shut or self._last_chores or self._sending:
            return
        connection = self.connection
        if connection.is_failed:
            self._fail()
        if self._transport.get_write_buffer_size() > LARGEST_OUTPUT + connection.limits.message_size:
            log.warning("closing %s: it does not read, and %d bytes wait to be sent to it", self.name, self.memory)
            self._transport.abort()
            return
        was_full = not connection.is_writable
        output = connection.take_output()
        size = sum(map(len, output))
        self.bytes_sent += size
        self.writes += 1
        if size >= LARGE_OUTPUT and self._send_beside(output):
            self._sending = size
        else:
            self._transport.writelines(output)
            if not connection.is_congested:
                self._sent()
        if was_full and connection.is_writable:
            self.resume()
        if connection.state >= ConnectionState.CLOSING:
            self._leave()
        self._pressure.count(self)

    def _send_beside(self, output: Sequence[Buffer]) -> bool:
        """Let the sending thread have large output, unless the transport must encrypt it or has something to send before it."""
        if self._is_encrypted or self._transport.get_write_buffer_size() or not self._sender.is_worth(output):
            return False
        return self._sender.add(self._transport.get_extra_info("socket").fileno(), output, self._sent_beside)

    @property
    def is_sending(self) -> bool:
        """Whether the sending thread has output for the client."""
        return self._sending > 0

    def _sent_beside(self, rest: Sequence[Buffer] | None) -> None:
        """Go on after the thread has sent what the socket took. Without knowing what that was, nothing more can be sent."""
        self._sending = 0
        if rest is None:
            self._transport.abort()
        if self._transport.is_closing():
            return
        self._turns.begin()
        if rest:
            self._transport.writelines(rest)
        if not self.connection.is_congested:
            self._sent()
        if self.connection.has_output:
            self._turns.flush_later(self)
        elif self.connection.state == ConnectionState.CLOSED:
            self._shut_output()
        if self._has_eof:
            self._transport.close()
        self._pressure.count(self)

    def _sent(self) -> None:
        """Note that the output was sent, or is about to be: the client may ask for more."""
        self.connection.owed = 0
        self.resume_reading(Pause.OUTPUT)

    @property
    def is_reading(self) -> bool:
        """Whether the server reads from the socket. It does not while the client is blocked or throttled."""
        return not self._pauses

    def pause_reading(self, reason: Pause) -> None:
        """Stop reading from the client, which makes it stop sending, and keep what it has sent for later."""
        if self._transport.is_closing() or self._has_left:
            return
        if not self._pauses:
            self._transport.pause_reading()
            self.connection.is_paused = True
        self._pauses |= reason

    def resume_reading(self, reason: Pause) -> None:
        """Resume reading from the client, unless there is another reason not to."""
        if self._pauses is Pause.NONE or not self._pauses & reason:  # asked for whenever output was sent
            return
        self._pauses &= ~reason
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()
            self.connection.is_paused = False
            if self.connection.has_input:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        """Carry out what the client had sent before the pause."""
        if not self._pauses and not self._transport.is_closing():
            self._turns.begin()
            self._receive(self._buffer[:0])

    @property
    def memory(self) -> int:
        """Bytes that the client makes the broker hold, apart from messages in queues."""
        session = self.session
        held = self.connection.memory + self.unread + self._base_memory
        return held if session is None else held + session.memory

    @property
    def unread(self) -> int:
        """Bytes that wait until the client reads."""
        return self._sending + self._transport.get_write_buffer_size()

    @property
    def unfinished(self) -> int:
        """Bytes of unfinished messages and transactions, which only the client can finish."""
        session = self.session
        return self.connection.unfinished + (session.uncommitted if session is not None else 0)

    def logged_in(self, client_properties: Mapping[str, FieldValue]) -> None:
        self._base_memory += memory_of_table(client_properties)

    def start_heartbeat(self, interval_s: float) -> None:
        self._heartbeat = Heartbeat(self, self._transport, interval_s)

    def close(self, error: AmqpError) -> None:
        """Close the connection and tell the client why."""
        with self._errors.contain("closing a connection", self.name):
            self.connection.close(error)
        self._leave()

    def abort(self) -> None:
        """Drop the connection without another word."""
        self._transport.abort()

    def expel(self, error: AmqpError) -> None:
        """Close the connection now, and drop what waits to be sent to a client that does not read."""
        self.close(error)
        if self.unread:
            self._transport.abort()

    def disown(self, error: AmqpError) -> None:
        """Close the connection, and send the client nothing else: what waits to be sent is not ours to promise any more."""
        self.connection.take_output()
        self.close(error)
        self.flush()

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
        """End the session of a connection that is closed, or closing until the client answers with close-ok.

        The socket stays open until the client closes it, or a timeout: closing it while data from the client is under way
        makes the kernel send a reset, and the client may never see the last reply.
        """
        connection = self.connection
        is_sent = not (connection.has_output or self._sending)
        if connection.state == ConnectionState.CLOSED and is_sent and not self._transport.is_closing():
            self._shut_output()
        if self._has_left:
            return
        self._has_left = True
        for pause in Pause:
            self.resume_reading(pause)
        with self._errors.contain("closing a session", self.name):
            self._close_session()
        reason = self.connection.close_reason
        if reason is not None:
            level = logging.INFO if isinstance(reason, ConnectionForcedError) else logging.WARNING
            log.log(level, "closing %s: %s %s", self.name, reason.reply_code, reason)

    def _close_session(self) -> None:
        """End the session. What is left to send, such as connection.close-ok, waits until that is done."""
        chore = self._server.broker.chores.add("closing a session", self.name, self.handler.close_session)
        self._is_session_closed = True
        self.close_after(chore)
        chore.then(self._session_closed)

    def _session_closed(self) -> None:
        if self in self._server.clients:
            self._call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    def wait_for(self, chore: Chore) -> None:
        """Read nothing more from the client until a chore is done. What goes to it goes on."""
        if not chore.is_done:
            self._chores += 1
            self.pause_reading(Pause.CHORE)
            chore.then(self._chore_done)

    def _chore_done(self) -> None:
        self._chores -= 1
        if not self._chores and self in self._server.clients:
            self._turns.begin()
            self.resume_reading(Pause.CHORE)

    def close_after(self, chore: Chore) -> None:
        """Do nothing more for the client until a chore is done: what it sends waits, and so does the reply to it."""
        if not chore.is_done:
            self._last_chores += 1
            self.wait_for(chore)
            chore.then(self._last_chore_done)

    def _last_chore_done(self) -> None:
        self._last_chores -= 1
        if not self._last_chores and self in self._server.clients and self.connection.has_output:
            self._turns.flush_later(self)

    def _shut_output(self) -> None:
        if not self._transport.can_write_eof():  # TLS: the client closes the socket when it has received close-ok
            if self.connection.close_reason is not None:
                self._transport.close()
        elif not self._is_shut:
            self._is_shut = True
            self._transport.write_eof()

    def _fail(self) -> None:
        """Close the connection because of an internal error, whatever else fails."""
        try:
            self.connection.fail_inside()
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._errors.report("closing a connection", self.name)
            self._transport.abort()

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
