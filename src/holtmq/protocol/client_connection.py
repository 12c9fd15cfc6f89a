"""An AMQP connection from the client's side (AMQP 0-9-1 §2.2): bytes in, events and bytes out.

Theory of operation. `receive` accepts input in slices of any size, cuts it into frames, and appends to `events`: a `Delivery`
for each message to a consumer, a `Settlement` for each confirm, a `ReceivedMethod` for everything else, in the order of the
wire. The handshake runs by itself: the constructor puts the protocol header into the output, and `connection.start` and
`connection.tune` are answered at once. The connection can be used as soon as `is_open` is true. A close by the server is
answered with close-ok and reported as an event. Bytes that are not valid AMQP raise an `AmqpError`; the connection cannot be
used afterwards.

The caller owns the socket: it passes on what it receives, and sends what `take_output` returns after every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from holtmq.errors import CommandInvalidError, FrameError, UnexpectedFrameError
from holtmq.table import FieldValue
from holtmq.wire.frames import (
    BASIC,
    BODY,
    CONTENT_START,
    FRAME_END,
    FRAME_START,
    HEADER,
    HEARTBEAT,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    SMALLEST_FRAME_MAX,
    method_frame,
)
from holtmq.wire.methods import (
    ChannelClose,
    ChannelCloseOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
    decode_method,
)

DEFAULT_FRAME_MAX = 131_072
"""The limit until tuning, and afterwards if the server proposes none."""
CAPABILITIES: Mapping[str, FieldValue] = {
    "publisher_confirms": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
DELIVER, ACK, NACK = (bytes((0, BASIC, 0, number)) for number in (60, 80, 120))
UNLIMITED = 2**32
TAGS_KEPT = 1000
HEADER_SIZE = CONTENT_START.size - FRAME_START.size
SETTLEMENT_SIZE = 13


class ClientState(IntEnum):
    """The states of a connection, in their order. Each is named after the method that the client waits for."""

    START = 0
    TUNE = 1
    OPEN_OK = 2
    OPEN = 3
    CLOSE_OK = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What the client sends during the handshake. A limit of None accepts the server's proposal."""

    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    mechanism: str = "PLAIN"
    response: bytes | None = field(default=None, repr=False)
    """The SASL response; built from user and password if None."""
    properties: Mapping[str, FieldValue] = field(default_factory=lambda: {"capabilities": CAPABILITIES})
    frame_max: int | None = None
    channel_max: int | None = None
    heartbeat_s: int = 0

    @property
    def sasl_response(self) -> bytes:
        """The response to send: as given, or that of the mechanism PLAIN (RFC 4616)."""
        return self.response if self.response is not None else f"\0{self.user}\0{self.password}".encode()


class Delivery(NamedTuple):
    """A message to a consumer."""

    tag: int
    redelivered: bool
    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes
    consumer_tag: str = ""
    channel: int = 1


class Settlement(NamedTuple):
    """A confirm: the broker accepted a published message, or refused it."""

    tag: int
    multiple: bool
    is_accepted: bool
    channel: int = 1


class ReceivedMethod(NamedTuple):
    """Any other method, with the content that followed it."""

    channel: int
    method: Method
    raw_properties: bytes = b""
    body: bytes = b""


ClientEvent: TypeAlias = Delivery | Settlement | ReceivedMethod


class PartialContent:
    """Content of which not all frames have arrived."""

    __slots__ = ("method", "missing", "pieces", "raw_properties")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.raw_properties: bytes | None = None
        self.missing = 0
        self.pieces: list[bytes] = []


class ClientConnection:
    """The state of one connection. The caller takes what has arrived out of `events`."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.state = ClientState.START
        self.events: list[ClientEvent] = []
        self.start: ConnectionStart
        """The server's first method, with its properties and mechanisms."""
        self.frame_max = DEFAULT_FRAME_MAX
        self.channel_max = 0
        self.heartbeats_received = 0
        self._output = [PROTOCOL_HEADER]
        self._largest = DEFAULT_FRAME_MAX
        """The largest frame to accept, overhead included."""
        self._rest = b""
        self._partial: dict[int, PartialContent] = {}
        self._consumer_tags: dict[bytes, str] = {}

    @property
    def is_open(self) -> bool:
        return self.state == ClientState.OPEN

    def send(self, channel: int, method: Method) -> None:
        """Put a method into the output."""
        self._output.append(method_frame(channel, method))

    def close(self) -> None:
        """Ask the server to close the connection. The state is CLOSED when it has answered."""
        if self.state < ClientState.CLOSE_OK:
            self.state = ClientState.CLOSE_OK
            self.send(0, ConnectionClose(200, "goodbye", 0, 0))

    def take_output(self) -> bytes:
        """Return and clear the bytes to send."""
        output, self._output = self._output, []
        return b"".join(output)

    def take_events(self) -> list[ClientEvent]:
        """Return and clear the events."""
        events, self.events = self.events, []
        return events

    def take_rest(self) -> bytes:
        """Return and clear the received bytes that are not a complete frame, for a caller that reads on by itself."""
        rest, self._rest = self._rest, b""
        return rest

    def receive(self, data: bytes) -> None:
        """Turn all complete frames into events and keep the rest until more data arrives. Ignore what follows a close."""
        if self.state >= ClientState.CLOSED:
            return
        if self._rest:
            data = self._rest + data
        if self.state == ClientState.START and data.startswith(b"A"):
            self._refuse_version(data)
            return
        at, end, largest, is_open = 0, len(data), self._largest, self.state >= ClientState.OPEN
        while end - at >= FRAME_START.size:
            kind, channel, size = FRAME_START.unpack_from(data, at)
            start, after = at + FRAME_START.size, at + size + OVERHEAD
            if size + OVERHEAD > largest:
                raise FrameError(f"expected frames of at most {largest} bytes, got {size + OVERHEAD}")
            if after > end:
                break
            if data[after - 1] != FRAME_END:
                raise FrameError(f"expected a frame to end with {FRAME_END:#x}, got {data[after - 1]:#x}")
            if kind == METHOD and is_open and data.startswith(DELIVER, start) and channel not in self._partial:
                at = self._receive_delivery(data, start, after, channel)
                continue
            self._receive_frame(kind, channel, data[start : after - 1])
            at, largest, is_open = after, self._largest, self.state >= ClientState.OPEN
            if self.state == ClientState.CLOSED:
                return
        self._rest = data[at:]

    def _receive_frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            self._receive_method(channel, payload)
        elif kind == HEADER:
            self._receive_header(channel, payload)
        elif kind == BODY:
            self._receive_body(channel, payload)
        elif kind == HEARTBEAT:
            self.heartbeats_received += 1
        else:
            raise FrameError(f"expected a frame of type 1, 2, 3 or 8, got type {kind}")

    def _receive_delivery(self, data: bytes, start: int, after: int, channel: int) -> int:
        """Receive a `basic.deliver` and return where the next frame starts.

        This is what consuming costs (benchmarks/pipeline.py), hence long and plain: a message whose header and body have
        arrived in one frame each is decoded in place. Everything else is assembled frame by frame.
        """
        if len(data) - after >= CONTENT_START.size:
            kind, number, header_size, class_id, _, body_size = CONTENT_START.unpack_from(data, after)
            body_at = after + header_size + OVERHEAD
            body_end: int = body_at + FRAME_START.size + body_size
            if (
                kind == HEADER
                and number == channel
                and class_id == BASIC
                and header_size >= HEADER_SIZE
                and 0 < body_size <= self._largest - OVERHEAD
                and body_end < len(data)
                and data[body_at - 1] == FRAME_END
                and FRAME_START.unpack_from(data, body_at) == (BODY, channel, body_size)
                and data[body_end] == FRAME_END
            ):
                raw_properties = data[after + CONTENT_START.size : body_at - 1]
                body = data[body_at + FRAME_START.size : body_end]
                self.events.append(self._delivery(data[start : after - 1], raw_properties, body, channel))
                return body_end + 1
        self._partial[channel] = PartialContent(data[start : after - 1])
        return after

    def _delivery(self, method: bytes, raw_properties: bytes, body: bytes, channel: int) -> Delivery:
        try:
            at = 5 + method[4]
            exchange_at = at + 10
            key_at = exchange_at + method[at + 9] + 1
            if len(method) != key_at + method[key_at - 1]:
                raise FrameError(f"expected basic.deliver to end after {key_at + method[key_at - 1]} bytes, got {len(method)}")
            return Delivery(
                int.from_bytes(method[at : at + 8], "big"),
                method[at + 8] & 1 == 1,
                method[exchange_at : key_at - 1].decode("utf-8", "surrogateescape"),
                method[key_at:].decode("utf-8", "surrogateescape"),
                raw_properties,
                body,
                self._consumer_tags.get(method[5:at]) or self._consumer_tag(method[5:at]),
                channel,
            )
        except IndexError:
            raise FrameError(f"expected a complete basic.deliver, got {len(method)} bytes") from None

    def _consumer_tag(self, encoded: bytes) -> str:
        if len(self._consumer_tags) >= TAGS_KEPT:
            self._consumer_tags.clear()
        tag = self._consumer_tags[encoded] = encoded.decode("utf-8", "surrogateescape")
        return tag

    def _receive_method(self, channel: int, payload: bytes) -> None:
        if channel in self._partial:
            raise UnexpectedFrameError(f"expected content on channel {channel}, got a method")
        if payload.startswith((ACK, NACK)) and len(payload) == SETTLEMENT_SIZE and self.state >= ClientState.OPEN:
            tag, is_multiple = int.from_bytes(payload[4:12], "big"), payload[12] & 1 == 1
            self.events.append(Settlement(tag, is_multiple, payload.startswith(ACK), channel))
            return
        method = decode_method(payload, "surrogateescape")
        if channel == 0:
            self._receive_connection_method(method)
        elif self.state < ClientState.OPEN:
            raise CommandInvalidError(f"unexpected {method.label()} while waiting for {_label(self.state)}")
        elif method.has_content:
            self._partial[channel] = PartialContent(payload)
        else:
            if isinstance(method, ChannelClose):
                self.send(channel, ChannelCloseOk())
            self.events.append(ReceivedMethod(channel, method))

    def _receive_header(self, channel: int, payload: bytes) -> None:
        partial = self._partial.get(channel)
        if partial is None or partial.raw_properties is not None:
            raise UnexpectedFrameError(f"expected a method on channel {channel}, got a content header")
        if len(payload) < HEADER_SIZE:
            raise FrameError(f"expected a content header of at least {HEADER_SIZE} bytes, got {len(payload)}")
        partial.missing = int.from_bytes(payload[4:HEADER_SIZE], "big")
        partial.raw_properties = payload[HEADER_SIZE:]
        if not partial.missing:
            self._complete(channel, partial, partial.raw_properties)

    def _receive_body(self, channel: int, payload: bytes) -> None:
        partial = self._partial.get(channel)
        if partial is None or partial.raw_properties is None:
            raise UnexpectedFrameError(f"expected a method or a content header on channel {channel}, got a body")
        if len(payload) > partial.missing:
            raise FrameError(f"expected at most {partial.missing} more bytes of the body, got {len(payload)}")
        partial.pieces.append(payload)
        partial.missing -= len(payload)
        if not partial.missing:
            self._complete(channel, partial, partial.raw_properties)

    def _complete(self, channel: int, partial: PartialContent, raw_properties: bytes) -> None:
        del self._partial[channel]
        body = partial.pieces[0] if len(partial.pieces) == 1 else b"".join(partial.pieces)
        if partial.method.startswith(DELIVER):
            self.events.append(self._delivery(partial.method, raw_properties, body, channel))
        else:
            self.events.append(ReceivedMethod(channel, decode_method(partial.method, "surrogateescape"), raw_properties, body))

    def _receive_connection_method(self, method: Method) -> None:
        match self.state, method:
            case _, ConnectionClose():
                self.send(0, ConnectionCloseOk())
                self.state = ClientState.CLOSED
                self.events.append(ReceivedMethod(0, method))
            case ClientState.START, ConnectionStart():
                self._log_in(method)
            case ClientState.TUNE, ConnectionTune():
                self._tune(method)
            case ClientState.OPEN_OK, ConnectionOpenOk():
                self.state = ClientState.OPEN
            case ClientState.CLOSE_OK, ConnectionCloseOk():
                self.state = ClientState.CLOSED
            case ((ClientState.OPEN | ClientState.CLOSE_OK), _):
                self.events.append(ReceivedMethod(0, method))
            case _:
                raise CommandInvalidError(f"unexpected {method.label()} while waiting for {_label(self.state)}")

    def _log_in(self, method: ConnectionStart) -> None:
        options = self.options
        self.start = method
        self.send(0, ConnectionStartOk(options.properties, options.mechanism, options.sasl_response, "en_US"))
        self.state = ClientState.TUNE

    def _tune(self, method: ConnectionTune) -> None:
        options = self.options
        self.frame_max = options.frame_max if options.frame_max is not None else method.frame_max or DEFAULT_FRAME_MAX
        self._largest = max(self.frame_max or UNLIMITED, SMALLEST_FRAME_MAX)
        self.channel_max = options.channel_max if options.channel_max is not None else method.channel_max
        self.send(0, ConnectionTuneOk(self.channel_max, self.frame_max, options.heartbeat_s))
        self.send(0, ConnectionOpen(options.vhost))
        self.state = ClientState.OPEN_OK

    def _refuse_version(self, data: bytes) -> None:
        """Report a server that answers with a protocol header, because it does not support AMQP 0-9-1 (§4.2.2)."""
        if len(data) >= len(PROTOCOL_HEADER):
            raise CommandInvalidError(f"expected a server for AMQP 0-9-1, got one that answers {data[:8]!r}")
        self._rest = data


def _label(state: ClientState) -> str:
    return f"connection.{state.name.lower().replace('_', '-')}"
