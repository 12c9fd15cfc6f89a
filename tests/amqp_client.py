"""An AMQP client for tests: it reports every method with its codes, channel and content, in the order of arrival.

`holtmq.protocol.ClientConnection` parses what the broker sends and checks that it is valid AMQP. This module adds a socket,
and assertions about what comes next.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from holtmq.protocol.client_connection import (
    CAPABILITIES,
    ClientConnection,
    ClientEvent,
    ClientOptions,
    ClientState,
    Delivery,
    Settlement,
)
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import Properties, body_of, encode_properties, make_content, on_channel
from holtmq.wire.frames import HEARTBEAT, frame, method_frame
from holtmq.wire.methods import Method
from tests.deadline import PATIENCE_S

M = TypeVar("M", bound=Method)
TIMEOUT_S = PATIENCE_S
SILENCE_S = 0.25
"""Nothing more is expected when nothing has arrived for this long."""
UNASKED = (wire.BasicDeliver, wire.BasicReturn, wire.BasicAck, wire.BasicNack, wire.BasicCancel)


class ClosedError(Exception):
    """The broker closed the channel or the connection."""

    def __init__(self, scope: str, close: wire.ChannelClose | wire.ConnectionClose) -> None:
        super().__init__(f"{scope} closed: {close.reply_code} {close.reply_text}")
        self.scope = scope
        self.code = close.reply_code
        self.text = close.reply_text
        self.method = (close.failing_class, close.failing_method)


@dataclass
class Event:
    """A method from the broker, with its content if it has any."""

    channel: int
    method: Any
    properties: dict[str, Any] = field(default_factory=dict)
    body: bytes = b""
    raw_properties: bytes = b""

    @classmethod
    def of(cls, event: ClientEvent) -> Event:
        if isinstance(event, Settlement):
            kind = wire.BasicAck if event.is_accepted else wire.BasicNack
            return cls(event.channel, kind(event.tag, event.multiple))
        method: Method
        if isinstance(event, Delivery):
            method = wire.BasicDeliver(event.consumer_tag, event.tag, event.redelivered, event.exchange, event.routing_key)
        else:
            method = event.method
        properties = Properties(event.raw_properties).to_dict() if method.has_content else {}
        return cls(event.channel, method, properties, event.body, event.raw_properties)


class Amqp:
    """A connection."""

    def __init__(
        self,
        port: int,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: Mapping[str, FieldValue] = CAPABILITIES,
        frame_max: int | None = None,
        channel_max: int | None = None,
        heartbeat: int = 0,
        wrap: Any = None,
    ) -> None:
        about = {"capabilities": capabilities}
        self.protocol = ClientConnection(
            ClientOptions(user, password, vhost, mechanism, response, about, frame_max, channel_max, heartbeat)
        )
        self.waiting: list[Event] = []
        """Events that were read while the test waited for another one."""
        self._unread: deque[Event] = deque()
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._send_output()
            while not self.protocol.is_open:
                self._receive(TIMEOUT_S)
                self._raise_if_closed()
        except BaseException:
            self.socket.close()
            raise

    @property
    def start(self) -> wire.ConnectionStart:
        return self.protocol.start

    @property
    def frame_max(self) -> int:
        return self.protocol.frame_max

    def channel(self, number: int = 1) -> Channel:
        self.send(number, wire.ChannelOpen())
        self.expect(number, wire.ChannelOpenOk)
        return Channel(self, number)

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, channel: int, method: Method) -> None:
        self.write(method_frame(channel, method))

    def expect(self, channel: int, kind: type[M]) -> M:
        """Return the next reply on a channel, which must be of this kind. Deliveries and the like are kept for later."""
        unasked = []
        while isinstance((event := self.next_event(channel)).method, UNASKED):
            unasked.append(event)
        self.waiting = unasked + self.waiting
        assert isinstance(event.method, kind), f"expected {kind.label()}, got {event.method}"
        return event.method

    def next_event(self, channel: int, timeout_s: float = TIMEOUT_S) -> Event:
        """Return the next event on a channel. Events of other channels are kept for later."""
        for event in self.waiting:
            if event.channel == channel:
                self.waiting.remove(event)
                return event
        while True:
            event = self._read_event(timeout_s)
            if isinstance(event.method, wire.ConnectionClose):
                raise ClosedError("connection", event.method)
            if isinstance(event.method, wire.ChannelClose) and event.channel == channel:
                raise ClosedError("channel", event.method)
            if event.channel == channel:
                return event
            self.waiting.append(event)

    def wait_for_heartbeat(self, timeout_s: float = TIMEOUT_S) -> None:
        seen = self.protocol.heartbeats_received
        while self.protocol.heartbeats_received == seen:
            self._receive(timeout_s)

    def close(self) -> None:
        self.protocol.close()
        self._send_output()
        while self.protocol.state < ClientState.CLOSED:
            self._receive(TIMEOUT_S)
        self.socket.close()

    def drop(self) -> None:
        """Close the socket without closing the connection."""
        self.socket.close()

    def is_at_end(self) -> bool:
        """Whether the broker closes the socket, after whatever else it sends."""
        self.socket.settimeout(TIMEOUT_S)
        try:
            while self.socket.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return True
        return True

    def _read_event(self, timeout_s: float) -> Event:
        while not self._unread:
            self._receive(timeout_s)
        return self._unread.popleft()

    def _receive(self, timeout_s: float) -> None:
        self.socket.settimeout(timeout_s)
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self.protocol.receive(data)
        with suppress(OSError):  # reading reports it, after what the broker sent before
            self._send_output()
        self._unread += map(Event.of, self.protocol.take_events())

    def _send_output(self) -> None:
        output = self.protocol.take_output()
        if output:
            self.write(output)

    def _raise_if_closed(self) -> None:
        for event in self._unread:
            if isinstance(event.method, wire.ConnectionClose):
                raise ClosedError("connection", event.method)

    def __enter__(self) -> Amqp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.drop()


class Channel:
    def __init__(self, amqp: Amqp, number: int) -> None:
        self.amqp = amqp
        self.number = number

    def send(self, method: Method) -> None:
        self.amqp.send(self.number, method)

    def call(self, method: Method, reply: type[M]) -> M:
        self.send(method)
        return self.amqp.expect(self.number, reply)

    def next(self, timeout_s: float = TIMEOUT_S) -> Event:
        return self.amqp.next_event(self.number, timeout_s)

    def is_silent(self) -> bool:
        """Whether nothing more arrives."""
        try:
            event = self.next(SILENCE_S)
        except TimeoutError:
            return True
        self.amqp.waiting.insert(0, event)
        return False

    def reopen(self) -> Channel:
        """Open the channel again, after the broker closed it."""
        return self.amqp.channel(self.number)

    def close(self) -> None:
        self.call(wire.ChannelClose(200, "bye", 0, 0), wire.ChannelCloseOk)

    def declare(
        self,
        queue: str = "",
        *,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        **arguments: FieldValue,
    ) -> wire.QueueDeclareOk:
        table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        method = wire.QueueDeclare(0, queue, passive, durable, exclusive, auto_delete, False, table)
        return self.call(method, wire.QueueDeclareOk)

    def declare_exchange(
        self,
        exchange: str,
        kind: str = "direct",
        *,
        passive: bool = False,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> None:
        method = wire.ExchangeDeclare(0, exchange, kind, passive, durable, auto_delete, internal, False, arguments or {})
        self.call(method, wire.ExchangeDeclareOk)

    def bind(self, queue: str, exchange: str, key: str = "", arguments: Mapping[str, FieldValue] | None = None) -> None:
        self.call(wire.QueueBind(0, queue, exchange, key, False, arguments or {}), wire.QueueBindOk)

    def delete(self, queue: str, *, if_unused: bool = False, if_empty: bool = False) -> int:
        return self.call(wire.QueueDelete(0, queue, if_unused, if_empty), wire.QueueDeleteOk).message_count

    def count(self, queue: str) -> int:
        """Return the number of ready messages. RabbitMQ may count before it has stored the messages of a settled channel."""
        return self.declare(queue, passive=True).message_count

    def publish(
        self,
        exchange: str,
        key: str,
        body: bytes = b"m",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        self.publish_raw(exchange, key, encode_properties(properties), body, mandatory=mandatory, immediate=immediate)

    def publish_raw(
        self, exchange: str, key: str, raw_properties: bytes, body: bytes, *, mandatory: bool = False, immediate: bool = False
    ) -> None:
        """Publish a message with encoded properties. Bytes of the key that are not UTF-8 are escaped as surrogates."""
        content = make_content(raw_properties, body)
        assert body_of(content) == body
        publish = wire.BasicPublish(0, exchange, key, mandatory, immediate)
        method = method_frame(self.number, publish, "surrogateescape")
        self.amqp.write(method + on_channel(content, self.number, self.amqp.frame_max))

    def put(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        """Publish messages to a queue and wait until the broker has put them there."""
        for body in bodies:
            self.publish("", queue, body, **properties)
        self.settle()

    def settle(self) -> None:
        """Wait until the broker has carried out everything that was sent on this channel."""
        self.call(wire.BasicQos(0, 0, False), wire.BasicQosOk)

    def confirm(self) -> None:
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)

    def get(self, queue: str, *, no_ack: bool = True) -> Event | None:
        self.send(wire.BasicGet(0, queue, no_ack))
        event = self.next()
        return event if isinstance(event.method, wire.BasicGetOk) else None

    def drain(self, queue: str) -> list[bytes]:
        """Take all messages out of a queue and return their bodies, in order."""
        return [event.body for event in iter(lambda: self.get(queue), None)]

    def qos(self, count: int, *, is_global: bool = False) -> None:
        self.call(wire.BasicQos(0, count, is_global), wire.BasicQosOk)

    def consume(
        self,
        queue: str,
        tag: str = "",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> str:
        method = wire.BasicConsume(0, queue, tag, False, no_ack, exclusive, False, arguments or {})
        return self.call(method, wire.BasicConsumeOk).consumer_tag

    def cancel(self, tag: str) -> None:
        self.call(wire.BasicCancel(tag), wire.BasicCancelOk)

    def deliveries(self, count: int) -> list[Event]:
        events = [self.next() for _ in range(count)]
        assert all(isinstance(event.method, wire.BasicDeliver) for event in events), events
        return events

    def bodies(self, count: int) -> list[bytes]:
        return [event.body for event in self.deliveries(count)]

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        self.send(wire.BasicAck(tag, multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self.send(wire.BasicNack(tag, multiple, requeue))

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self.send(wire.BasicReject(tag, requeue))


@contextmanager
def raw_socket(port: int) -> Iterator[socket.socket]:
    """A connection, which the broker may have closed before we noticed that it was open."""
    with socket.socket() as connection:
        connection.settimeout(TIMEOUT_S)
        with suppress(ConnectionResetError):
            connection.connect(("127.0.0.1", port))
        yield connection


def is_closed(connection: socket.socket, sent: bytes = b"") -> bool:
    """Send some bytes. Return whether the broker closes the socket without an answer, perhaps before they are sent."""
    try:
        connection.sendall(sent)
        return connection.recv(1) == b""
    except TimeoutError:
        raise
    except OSError:  # closed, or never open
        return True


def heartbeat(channel: int = 0) -> bytes:
    return frame(HEARTBEAT, channel, b"")
