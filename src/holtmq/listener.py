"""Listening sockets: the only place where connections are accepted, and where TLS handshakes are limited before they are made.

A connection that comes in while the process is out of file descriptors stays in the backlog of the kernel. A connection that
there is no room for is closed before it costs a handshake.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTS_PER_CALL = 8
"""Connections accepted before other work of the event loop gets its turn."""
MAX_HANDSHAKES = 64
"""TLS handshakes under way at a time, for each listener. The oldest one gives way to a new connection."""
OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 1.0
"""Time until the next attempt to accept, after the process ran out of file descriptors or memory."""
LOG_INTERVAL_S = 60.0
TLS_CLOSE_S = 5.0
"""Longest wait for a peer's goodbye at the end of a TLS connection."""
RESET = struct.pack("ii", 1, 0)


class Listener:
    """The sockets of one service, such as AMQP over TLS.

    `has_room` says whether one more connection can be served. It is asked before the handshake.
    """

    def __init__(
        self,
        service: str,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        *,
        has_room: Callable[[], bool],
        context: ssl.SSLContext | None = None,
        max_handshakes: int = MAX_HANDSHAKES,
        handshake_timeout_s: float,
    ) -> None:
        self._service = service
        self._place = f"{host}:{port}"
        self._protocol = protocol
        self._has_room = has_room
        self._context = context
        self._max_handshakes = max_handshakes
        self._handshake_timeout_s = handshake_timeout_s
        self._arriving: dict[socket.socket, asyncio.Task[None]] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._next_log_at = 0.0
        self._refused = 0
        self.sockets = _bind(service, host, port)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each socket."""
        return [listening.getsockname()[:2] for listening in self.sockets]

    def start(self) -> None:
        """Accept connections."""
        try:
            for listening in self.sockets:
                listening.listen(BACKLOG)
        except OSError as error:  # another process has bound the port too, and was faster
            raise _refusal(error, self._service, self._place) from error
        self._resume()

    def close(self) -> None:
        """Close the sockets, and abandon the handshakes under way."""
        self._pause()
        for listening in self.sockets:
            listening.close()
        for connection in self._arriving:
            _hang_up(connection)

    def _resume(self) -> None:
        self._retry = None
        for listening in self.sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _pause(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        for listening in self.sockets:
            if listening.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_CALL):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in OUT_OF_RESOURCES:
                    self._wait_for_resources(error)
                    return
                continue  # the peer is gone already
            if self._has_room():
                self._attach(connection)
            else:
                self._refuse(connection)

    def _wait_for_resources(self, error: OSError) -> None:
        """Stop accepting for a moment: the socket stays readable, and the event loop would call at once again."""
        self._pause()
        self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._resume)
        self._warn("cannot accept connections for %s: %s; raise the limit (ulimit -n)", self._service, error.strerror)

    def _refuse(self, connection: socket.socket) -> None:
        self._refused += 1
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
        text = "refusing connections for %s: the maximum is reached; %d refused so far"
        self._warn(text, self._service, self._refused)

    def _attach(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if self._context is not None and len(self._arriving) >= self._max_handshakes:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            _hang_up(oldest)
        task = asyncio.get_running_loop().create_task(self._hand_over(connection))
        self._arriving[connection] = task
        task.add_done_callback(lambda _: self._arriving.pop(connection, None))

    async def _hand_over(self, connection: socket.socket) -> None:
        """Give a connection to a new protocol. Errors are those of the peer: a handshake that failed or took too long."""
        timeouts = {"ssl_handshake_timeout": self._handshake_timeout_s, "ssl_shutdown_timeout": TLS_CLOSE_S}
        with suppress(OSError):
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol, connection, ssl=self._context, **(timeouts if self._context is not None else {})
            )

    def _warn(self, text: str, *values: object) -> None:
        """Log a warning, unless there was one not long ago: peers must not fill the log."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_log_at:
            self._next_log_at = now + LOG_INTERVAL_S
            log.warning(text, *values)


def url_of(scheme: str, address: tuple[str, int]) -> str:
    """Return the URL of an address. IPv6 addresses are in brackets."""
    host, port = address
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def _hang_up(connection: socket.socket) -> None:
    """End a handshake. The transport, which owns the descriptor, sees the end of the stream and closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _bind(service: str, host: str, port: int) -> list[socket.socket]:
    """Return a bound socket for each address of a host."""
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            bound.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.setblocking(False)
    except OSError as error:
        for listening in bound:
            listening.close()
        raise _refusal(error, service, f"{host}:{port}") from error
    return bound


def _refusal(error: OSError, service: str, place: str) -> OSError:
    return OSError(error.errno, f"cannot listen for {service}: {error.strerror}", place)
