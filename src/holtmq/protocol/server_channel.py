"""One channel as the wire sees it: content put together frame by frame on the way in, deliveries spelled on the way out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Protocol

from holtmq.errors import FrameError, PreconditionFailedError, UnexpectedFrameError
from holtmq.wire.content import Content, make_content, on_channel
from holtmq.wire.frames import BASIC, FRAME_END, METHOD, method_frame
from holtmq.wire.methods import BasicCancel, BasicReturn, Method
from holtmq.wire.tables import short_string

if TYPE_CHECKING:
    from holtmq.protocol.server_connection import ServerConnection

ACK, NACK, DELIVER = 80, 120, 60
NO_ROUTE = 312
CONFIRM = Struct(">BHIHHQBB")
CONFIRM_SIZE = 13
HEADER_PAYLOAD = Struct(">HHQ")


class Origin(Protocol):
    exchange: str
    routing_key: str
    address: bytes


class Message(Protocol):
    """What of a message is put on the wire."""

    id: int
    content: Content

    @property
    def origin(self) -> Origin: ...


class Consumer(Protocol):
    tag: str
    spelling: Any


class Publisher(Protocol):
    """A channel as the broker sees it, as far as messages go."""

    def publish(self, publication: Any, raw_properties: bytes, content: Content, size: int) -> None: ...
    def ack(self, tag: int, *, multiple: bool) -> None: ...


class Publication(Protocol):
    """One way to publish that the broker remembers, so that it is found by the bytes of its method."""

    @property
    def channel(self) -> Publisher: ...


class Spelling:
    """What is the same in all deliveries to one consumer: the method up to its delivery tag."""

    __slots__ = ("base", "pack", "tag")

    def __init__(self, consumer_tag: str) -> None:
        self.tag = short_string(consumer_tag)
        self.base = 4 + len(self.tag) + 9 - 1  # class and method, consumer tag, delivery tag and flag, less the end mark
        self.pack = Struct(f">BHIHH{len(self.tag)}sQB").pack


class ServerChannel:
    """A channel of a connection. To the broker it is the way to the client."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.target: Any = None
        """The broker's side of it."""
        self.is_closing = False
        self.takes_methods = True
        """Whether it is open and not in the middle of a message."""
        self._start = b"\x02" + number.to_bytes(2, "big")
        """How content starts that is spelled for this channel."""
        self._publication: Publication | None = None
        self._raw_properties: bytes | None = None
        self._body: list[bytes] = []
        self._missing = 0
        self._size = 0

    @property
    def expects_content(self) -> bool:
        return self._publication is not None

    def begin_content(self, publication: Publication) -> None:
        self._publication = publication
        self.takes_methods = False
        self.connection.assembling += 1

    def receive_header(self, payload: bytes) -> None:
        if self._publication is None or self._raw_properties is not None:
            raise UnexpectedFrameError(f"expected a method on channel {self.number}, got a content header")
        if len(payload) < HEADER_PAYLOAD.size:
            raise FrameError(f"expected a content header of at least {HEADER_PAYLOAD.size} bytes, got {len(payload)}")
        class_id, weight, size = HEADER_PAYLOAD.unpack_from(payload)
        if class_id != BASIC or weight != 0:
            raise FrameError(f"expected a content header of class {BASIC} and weight 0, got class {class_id}, weight {weight}")
        limit = self.connection.limits.message_size
        if size > limit:
            raise PreconditionFailedError(f"message size {size} is larger than the limit of {limit} bytes")
        self._raw_properties = payload[HEADER_PAYLOAD.size :]
        self._size = self._missing = size
        if not size:
            self._finish()

    def receive_body(self, payload: bytes) -> None:
        if self._raw_properties is None:
            raise UnexpectedFrameError(f"expected a method or a content header on channel {self.number}, got a body")
        if len(payload) > self._missing:
            raise FrameError(f"expected at most {self._missing} more bytes of the body, got {len(payload)}")
        self._body.append(payload)
        self._missing -= len(payload)
        if not self._missing:
            self._finish()

    def abandon_content(self) -> None:
        if self._publication is not None:
            self.takes_methods = True
            self.connection.assembling -= 1
        self._publication = self._raw_properties = None
        self._body = []

    def _finish(self) -> None:
        publication, raw_properties, body = self._publication, self._raw_properties, b"".join(self._body)
        assert publication is not None
        assert raw_properties is not None
        self.abandon_content()
        content = make_content(raw_properties, body, self.number)
        publication.channel.publish(publication, raw_properties, content, self._size)

    @property
    def is_writable(self) -> bool:
        return self.connection.is_writable

    def send(self, method: Method) -> None:
        self.connection.send(method_frame(self.number, method))

    def deliver(self, consumer: Consumer, first_tag: int, messages: Sequence[Message], redelivered: Collection[int]) -> None:
        """Spell deliveries. On the hot path, so the method is packed by hand, and content passes as it came wherever the
        channel's number is the same (benchmarks/broker.py)."""
        spelling = consumer.spelling
        if spelling is None:
            spelling = consumer.spelling = Spelling(consumer.tag)
        pack, base, consumer_tag = spelling.pack, spelling.base, spelling.tag
        connection, number, start = self.connection, self.number, self._start
        largest = connection.frame_max
        parts, size = connection.output, 0
        for tag, message in enumerate(messages, first_tag):
            address, content = message.origin.address, message.content
            if len(content) > largest or not content.startswith(start):
                content = on_channel(content, number, largest)
            flag = 1 if redelivered and message.id in redelivered else 0
            parts += (pack(METHOD, number, base + len(address), BASIC, DELIVER, consumer_tag, tag, flag), address, content)
            size += len(content)
        connection.sent(size)

    def send_content(self, method: Method, content: Content) -> None:
        self.connection.send(method_frame(self.number, method) + on_channel(content, self.number, self.connection.frame_max))

    def confirm(self, tag: int, *, multiple: bool) -> None:
        self.connection.send(CONFIRM.pack(METHOD, self.number, CONFIRM_SIZE, BASIC, ACK, tag, multiple, FRAME_END))

    def refuse(self, tag: int) -> None:
        self.connection.send(CONFIRM.pack(METHOD, self.number, CONFIRM_SIZE, BASIC, NACK, tag, 0, FRAME_END))

    def give_back(self, message: Message) -> None:
        origin = message.origin
        self.send_content(BasicReturn(NO_ROUTE, "NO_ROUTE", origin.exchange, origin.routing_key), message.content)

    def cancel(self, consumer: Consumer) -> None:
        if self.connection.can_be_cancelled:
            self.send(BasicCancel(consumer.tag, no_wait=True))
