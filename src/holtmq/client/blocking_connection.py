"""A blocking connection with one channel: `protocol.ClientConnection` with a socket.

It is made for bulk. A consumer takes all deliveries that have arrived as a list; a publisher writes many messages at a time
and looks for confirms only when it has to. Heartbeats are off, because a task that computes for minutes between two messages
is not dead. TCP keep-alive detects a broken connection.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from holtmq.client.address import Address
from holtmq.errors import AmqpError, HoltmqError
from holtmq.protocol.client_connection import (
    CAPABILITIES,
    ClientConnection,
    ClientOptions,
    ClientState,
    Delivery,
    ReceivedMethod,
    Settlement,
)
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import Method

M = TypeVar("M", bound=Method)
CHANNEL = 1
READ_BYTES = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 60.0


class ConnectionLostError(HoltmqError):
    """The broker cannot be reached, or the connection broke. A new connection may succeed."""


class RefusedError(HoltmqError):
    """The broker refused a request with an AMQP reply code. Retrying would not help."""

    def __init__(self, message: str, reply_code: int) -> None:
        super().__init__(message)
        self.reply_code = reply_code


TRANSIENT_CODES = (320, 506, 541)
"""Reply codes of closed connections that are worth a retry: closed by an operator or a shutdown, or an internal error."""


class BlockingConnection:
    """An open connection, for one thread at a time. Deliveries, confirms and returned messages collect in its lists."""

    def __init__(self, address: Address, *, name: str = "holtmq") -> None:
        self.deliveries: list[Delivery] = []
        self.settlements: list[Settlement] = []
        self.returns: list[str] = []
        self.is_cancelled = False
        self.is_open = False
        self._address = address
        self._replies: list[Method] = []
        about: dict[str, FieldValue] = {"product": "HoltMQ client", "connection_name": name, "capabilities": CAPABILITIES}
        self._protocol = ClientConnection(ClientOptions(address.user, address.password, address.vhost, properties=about))
        self._socket = _connect(address)
        try:
            self._open()
        except BaseException:
            self._socket.close()
            raise

    @property
    def frame_max(self) -> int:
        """Size of the largest frame that the broker accepts."""
        return self._protocol.frame_max

    @property
    def server_properties(self) -> Mapping[str, FieldValue]:
        """What the broker says about itself."""
        return self._protocol.start.server_properties

    def call(self, method: Method, reply: type[M]) -> M:
        """Send a method and wait for its reply."""
        self.send(CHANNEL, method)
        return self._expect(reply)

    def send(self, channel: int, method: Method) -> None:
        self.write(method_frame(channel, method))

    def write(self, data: bytes) -> None:
        """Send encoded frames."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float) -> bool:
        """Read once and sort what has arrived into the lists. Return False if nothing arrives within the timeout."""
        try:
            is_pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
            if not is_pending and not select.select([self._socket], [], [], timeout_s)[0]:
                return False
            data = self._socket.recv(READ_BYTES)
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost("the broker closed it")
        try:
            self._protocol.receive(data)
        except AmqpError as error:
            raise self._lost(error) from error
        self._send_output()
        self._sort()
        return True

    def close(self) -> None:
        """Close the connection. The broker requeues messages that were not acknowledged."""
        if self.is_open:
            self.is_open = False
            self._protocol.close()
            with suppress(HoltmqError):  # the connection ends either way
                self._send_output()
                self._wait_for(ClientState.CLOSED)
        self._socket.close()

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _open(self) -> None:
        self._send_output()
        self._wait_for(ClientState.OPEN)
        self.is_open = True
        self.call(wire.ChannelOpen(), wire.ChannelOpenOk)

    def _send_output(self) -> None:
        output = self._protocol.take_output()
        if output:
            with suppress(OSError):  # reading reports a broken connection, after what the broker sent before it broke
                self._socket.sendall(output)

    def _lost(self, why: object) -> ConnectionLostError:
        self.is_open = False
        return ConnectionLostError(f"lost the connection to {self._address}: {why}")

    def _wait_for(self, state: ClientState) -> None:
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while self._protocol.state < state:
            self._receive_before(deadline, f"the connection to be {state.name.lower()}")

    def _expect(self, kind: type[M]) -> M:
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while True:
            for number, method in enumerate(self._replies):
                if isinstance(method, kind):
                    del self._replies[number]
                    return method
            self._receive_before(deadline, kind.label())

    def _receive_before(self, deadline: float, expected: str) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._lost(f"expected {expected}, got nothing for {REPLY_TIMEOUT_S:g} s")
        self.receive(left)

    def _sort(self) -> None:
        deliveries = self.deliveries
        for event in self._protocol.take_events():
            if isinstance(event, Delivery):
                deliveries.append(event)
            elif isinstance(event, Settlement):
                self.settlements.append(event)
            else:
                self._on_method(event)

    def _on_method(self, event: ReceivedMethod) -> None:
        match event.method:
            case wire.BasicReturn() as method:
                where = f"exchange {method.exchange!r} with key {method.routing_key!r}"
                self.returns.append(f"{method.reply_text} at {where}")
            case wire.BasicCancel():
                self.is_cancelled = True
            case wire.ConnectionBlocked() | wire.ConnectionUnblocked():
                pass  # a blocked broker stops reading, so writing waits as well
            case wire.ChannelClose() as method:
                self.is_open = False
                raise RefusedError(f"{self._address}: {method.reply_text}", method.reply_code)
            case wire.ConnectionClose() as method:
                self.is_open = False
                if method.reply_code in TRANSIENT_CODES:
                    raise self._lost(method.reply_text)
                raise RefusedError(f"{self._address}: {method.reply_text}", method.reply_code)
            case method:
                self._replies.append(method)


def _connect(address: Address) -> socket.socket:
    try:
        connection = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is not None:
            connection = address.tls.context().wrap_socket(connection, server_hostname=address.host)
        connection.settimeout(None)
    except OSError as error:
        raise ConnectionLostError(f"no broker at {address}: {error}") from error
    return connection


Connect = Callable[[], BlockingConnection]
