"""A small AMQP client that shows everything: which method came, with which codes, on which channel, in which order."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import Properties, body_of, encode_properties, make_content, on_channel
from holtmq.wire.frames import BODY, FRAME_START, HEADER, HEARTBEAT, METHOD, OVERHEAD, PROTOCOL_HEADER, frame, method_frame
from holtmq.wire.methods import Method, decode_method

M = TypeVar("M", bound=Method)
TIMEOUT_S = 10.0
SILENCE_S = 0.25
"""Nothing is taken to come any more when nothing came for so long."""
CAPABILITIES = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
    "publisher_confirms": True,
    "basic.nack": True,
}


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
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        if wrap is not None:
            self.socket = wrap(self.socket)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self.waiting: list[Event] = []
        self.closed: set[int] = set()
        self.frame_max = 131_072
        try:
            self._open(user, password, vhost, mechanism, response, capabilities, frame_max, channel_max, heartbeat)
        except BaseException:
            self.socket.close()
            raise

    def _open(
        self,
        user: str,
        password: str,
        vhost: str,
        mechanism: str,
        response: bytes | None,
        capabilities: Mapping[str, FieldValue],
        frame_max: int | None,
        channel_max: int | None,
        heartbeat: int,
    ) -> None:
        self.write(PROTOCOL_HEADER)
        self.start = self.expect(0, wire.ConnectionStart)
        if response is None:
            response = f"\0{user}\0{password}".encode()
        self.send(0, wire.ConnectionStartOk({"capabilities": capabilities}, mechanism, response, "en_US"))
        tune = self.expect(0, wire.ConnectionTune)
        self.tune = tune
        self.frame_max = tune.frame_max if frame_max is None else frame_max
        channels = tune.channel_max if channel_max is None else channel_max
        self.send(0, wire.ConnectionTuneOk(channels, self.frame_max, heartbeat))
        self.send(0, wire.ConnectionOpen(vhost))
        self.expect(0, wire.ConnectionOpenOk)

    def channel(self, number: int = 1) -> Channel:
        self.send(number, wire.ChannelOpen())
        self.expect(number, wire.ChannelOpenOk)
        return Channel(self, number)

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self, channel: int, method: Method) -> None:
        self.write(method_frame(channel, method))

    def expect(self, channel: int, kind: type[M]) -> M:
        """The next event on a channel, which must be of this kind; what comes unasked waits to be asked for."""
        unasked = []
        while isinstance((event := self.next_event(channel)).method, UNASKED):
            unasked.append(event)
        self.waiting = unasked + self.waiting
        assert isinstance(event.method, kind), f"expected {kind.label()}, got {event.method}"
        return event.method

    def next_event(self, channel: int, timeout_s: float = TIMEOUT_S) -> Event:
        """The next event on a channel; those of other channels wait."""
        for event in self.waiting:
            if event.channel == channel:
                self.waiting.remove(event)
                return event
        while True:
            event = self._read_event(timeout_s)
            if isinstance(event.method, wire.ConnectionClose):
                self.send(0, wire.ConnectionCloseOk())
                raise ClosedError("connection", event.method)
            if isinstance(event.method, wire.ChannelClose):
                self.send(event.channel, wire.ChannelCloseOk())
                if event.channel == channel:
                    raise ClosedError("channel", event.method)
            if event.channel == channel:
                return event
            self.waiting.append(event)

    def close(self) -> None:
        self.send(0, wire.ConnectionClose(200, "bye", 0, 0))
        self.expect(0, wire.ConnectionCloseOk)
        self.socket.close()

    def drop(self) -> None:
        """Go without a word."""
        self.socket.close()

    def is_at_end(self) -> bool:
        """Whether the broker hangs up, after whatever it has to say."""
        self.socket.settimeout(TIMEOUT_S)
        try:
            while self.socket.recv(65536):
                pass
        except (ConnectionResetError, BrokenPipeError):
            return True
        return True

    def _read_event(self, timeout_s: float) -> Event:
        kind, channel, payload = self.read_frame(timeout_s)
        while kind == HEARTBEAT:
            kind, channel, payload = self.read_frame(timeout_s)
        assert kind == METHOD
        method = decode_method(payload)
        if not method.has_content:
            return Event(channel, method)
        kind, header_channel, header = self.read_frame(timeout_s)
        assert (kind, header_channel) == (HEADER, channel)
        size, body = int.from_bytes(header[4:12], "big"), b""
        while len(body) < size:
            kind, body_channel, piece = self.read_frame(timeout_s)
            assert (kind, body_channel) == (BODY, channel)
            assert len(piece) + OVERHEAD <= self.frame_max
            body += piece
        return Event(channel, method, Properties(header[12:]).to_dict(), body)

    def read_frame(self, timeout_s: float = TIMEOUT_S) -> tuple[int, int, bytes]:
        head = self._read(FRAME_START.size, timeout_s)
        kind, channel, size = FRAME_START.unpack(head)
        payload = self._read(size + 1, timeout_s)
        assert payload[-1] == 0xCE
        return kind, channel, payload[:-1]

    def _read(self, size: int, timeout_s: float) -> bytes:
        self.socket.settimeout(timeout_s)
        while len(self._buffer) < size:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError("the broker hung up")
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

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
        """Whether nothing comes any more."""
        try:
            event = self.next(SILENCE_S)
        except TimeoutError:
            return True
        self.amqp.waiting.insert(0, event)
        return False

    def reopen(self) -> Channel:
        """The same channel anew, after the broker closed it."""
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
        content = make_content(encode_properties(properties), body)
        assert body_of(content) == body
        method = method_frame(self.number, wire.BasicPublish(0, exchange, key, mandatory, immediate))
        self.amqp.write(method + on_channel(content, self.number, self.amqp.frame_max))

    def put(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        """Put messages straight into a queue, and see to it that they are there."""
        for body in bodies:
            self.publish("", queue, body, **properties)
        self.settle()

    def settle(self) -> None:
        """Wait until the broker has carried out all that was sent on this channel."""
        self.call(wire.BasicQos(0, 0, False), wire.BasicQosOk)

    def confirm(self) -> None:
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)

    def get(self, queue: str, *, no_ack: bool = True) -> Event | None:
        self.send(wire.BasicGet(0, queue, no_ack))
        event = self.next()
        return event if isinstance(event.method, wire.BasicGetOk) else None

    def drain(self, queue: str) -> list[bytes]:
        """All bodies that wait in a queue, in their order."""
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
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        yield connection


def heartbeat(channel: int = 0) -> bytes:
    return frame(HEARTBEAT, channel, b"")
