"""One connection with one channel, blocking: the handshake, calls, and all that comes in sorted as it comes.

Written for bulk. A consumer takes what has come as a list; a publisher writes many messages at a time and looks for
confirms when it must. Heartbeats are off: a task that computes for minutes between two messages is not dead. TCP's own
keep-alive finds a peer that is.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, TypeVar

from holtmq.client.address import Address
from holtmq.errors import HoltmqError
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.frames import BODY, FRAME_END, FRAME_START, HEADER, METHOD, OVERHEAD, PROTOCOL_HEADER, method_frame
from holtmq.wire.methods import Method, decode_method

M = TypeVar("M", bound=Method)
CHANNEL = 1
READ_BYTES = 256 * 1024
CONNECT_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 60.0
CAPABILITIES: dict[str, FieldValue] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
PROPERTIES_AT = 12
"""Where in the payload of a header frame the properties start."""
DELIVER, RETURN, ACK, NACK = (bytes((0, 60, 0, number)) for number in (60, 50, 80, 120))


class ConnectionLostError(HoltmqError):
    """The broker can't be reached, or is gone; it may come back."""


class RefusedError(HoltmqError):
    """The broker said no, and would say so again."""

    def __init__(self, message: str, reply_code: int) -> None:
        super().__init__(message)
        self.reply_code = reply_code


TRANSIENT_CODES = (320, 506, 541)
"""A connection closed with one of these is worth another try: by an operator or a shutdown, or for trouble in the broker."""


class Delivery(NamedTuple):
    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes


class Settlement(NamedTuple):
    """The broker's word on messages that were published."""

    tag: int
    multiple: bool
    is_taken: bool


class BlockingConnection:
    """Open from the start, and for one thread at a time."""

    def __init__(self, address: Address, *, name: str = "holtmq") -> None:
        self._address = address
        self._rest = b""
        self._replies: list[Method] = []
        self._partial: tuple[int, bool, str, str] | None = None
        self._raw_properties = b""
        self._missing = 0
        self._pieces: list[bytes] = []
        self.deliveries: list[Delivery] = []
        self.settlements: list[Settlement] = []
        self.returns: list[str] = []
        self.is_cancelled = False
        self.is_open = False
        self.frame_max = 131_072
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.tls is not None:
                self._socket = address.tls.context().wrap_socket(self._socket, server_hostname=address.host)
            self._socket.settimeout(None)
        except OSError as error:
            raise ConnectionLostError(f"no broker at {address}: {error}") from error
        try:
            self._open(name)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, name: str) -> None:
        address = self._address
        self.write(PROTOCOL_HEADER)
        self._expect(wire.ConnectionStart)
        response = f"\0{address.user}\0{address.password}".encode()
        about: dict[str, FieldValue] = {"product": "HoltMQ client", "connection_name": name, "capabilities": CAPABILITIES}
        self.send(0, wire.ConnectionStartOk(about, "PLAIN", response, "en_US"))
        tune = self._expect(wire.ConnectionTune)
        self.frame_max = tune.frame_max or self.frame_max
        self.send(0, wire.ConnectionTuneOk(tune.channel_max, self.frame_max, 0))
        self.send(0, wire.ConnectionOpen(address.vhost))
        self._expect(wire.ConnectionOpenOk)
        self.is_open = True
        self.call(wire.ChannelOpen(), wire.ChannelOpenOk)

    def call(self, method: Method, reply: type[M]) -> M:
        self.send(CHANNEL, method)
        return self._expect(reply)

    def send(self, channel: int, method: Method) -> None:
        self.write(method_frame(channel, method))

    def write(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, timeout_s: float) -> bool:
        """Read what comes within a time and sort it; False where nothing came."""
        try:
            is_pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
            if not is_pending and not select.select([self._socket], [], [], timeout_s)[0]:
                return False
            data = self._socket.recv(READ_BYTES)
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost("the broker hung up")
        self._sort(self._rest + data if self._rest else data)
        return True

    def close(self) -> None:
        """Say goodbye if the broker still listens; what was not acknowledged goes back to its queue."""
        if self.is_open:
            self.is_open = False
            try:
                self.send(0, wire.ConnectionClose(200, "goodbye", 0, 0))
                self._expect(wire.ConnectionCloseOk)
            except HoltmqError:
                pass  # it is gone either way
        self._socket.close()

    def __enter__(self) -> BlockingConnection:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _lost(self, why: object) -> ConnectionLostError:
        self.is_open = False
        return ConnectionLostError(f"the connection to {self._address} is lost: {why}")

    def _expect(self, kind: type[M]) -> M:
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while True:
            for number, method in enumerate(self._replies):
                if isinstance(method, kind):
                    del self._replies[number]
                    return method
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._lost(f"expected {kind.label()}, got nothing for {REPLY_TIMEOUT_S:g} s")
            self.receive(left)

    def _sort(self, data: bytes) -> None:
        """Take frames apart. Plain and long: this is what consuming costs (benchmarks/pipeline.py)."""
        at, end = 0, len(data)
        unpack = FRAME_START.unpack_from
        while end - at >= OVERHEAD:
            kind, _, size = unpack(data, at)
            start = at + 7
            after = start + size
            if after >= end:
                break
            if data[after] != FRAME_END:
                raise self._lost(f"expected the end of a frame, got {data[after]:#x}")
            at = after + 1
            if kind == BODY:
                self._pieces.append(data[start:after])
                self._missing -= size
                if self._missing <= 0:
                    self._complete()
            elif kind == HEADER:
                self._missing = int.from_bytes(data[start + 4 : start + 12], "big")
                self._raw_properties = data[start + PROPERTIES_AT : after]
                if not self._missing:
                    self._complete()
            elif kind == METHOD:
                self._take_method(data, start, after)
        self._rest = data[at:]

    def _take_method(self, data: bytes, start: int, after: int) -> None:
        ids = data[start : start + 4]
        if ids == DELIVER:
            at = start + 5 + data[start + 4]
            tag = int.from_bytes(data[at : at + 8], "big")
            name_at = at + 10
            key_at = name_at + data[at + 9] + 1
            exchange = data[name_at : key_at - 1].decode("utf-8", "surrogateescape")
            self._partial = (tag, data[at + 8] != 0, exchange, data[key_at:after].decode("utf-8", "surrogateescape"))
        elif ids in (ACK, NACK):
            tag = int.from_bytes(data[start + 4 : start + 12], "big")
            self.settlements.append(Settlement(tag, bool(data[start + 12] & 1), ids == ACK))
        else:
            self._on_method(decode_method(data[start:after]))

    def _complete(self) -> None:
        if self._partial is not None:
            body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self.deliveries.append(Delivery(*self._partial, self._raw_properties, body))
            self._partial = None
        self._pieces = []

    def _on_method(self, method: Method) -> None:
        match method:
            case wire.BasicReturn():
                where = f"exchange {method.exchange!r} with key {method.routing_key!r}"
                self.returns.append(f"{method.reply_text} at {where}")
            case wire.BasicCancel():
                self.is_cancelled = True
            case wire.ConnectionBlocked() | wire.ConnectionUnblocked():
                pass  # the socket holds us back as well
            case wire.ChannelClose():
                self.is_open = False
                raise RefusedError(f"{self._address}: {method.reply_text}", method.reply_code)
            case wire.ConnectionClose():
                self.is_open = False
                if method.reply_code in TRANSIENT_CODES:
                    raise self._lost(method.reply_text)
                raise RefusedError(f"{self._address}: {method.reply_text}", method.reply_code)
            case _:
                self._replies.append(method)


Connect = Callable[[], BlockingConnection]
