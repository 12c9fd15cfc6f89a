"""One channel of a server connection: assembles incoming content from its frames and encodes outgoing deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING

from holtmq.errors import FrameError, PreconditionFailedError, UnexpectedFrameError
from holtmq.protocol.connection_handler import AckTarget, ConsumerOnWire, MessageOnWire, PublishTarget, RowOnWire
from holtmq.wire.content import Buffer, Content, frames_on_channel, join_content, on_channel
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
METHOD_START = Struct(">BHIHH")
"""The start of a method frame, with the class and the method."""
OFFSET_BYTES = 8
ROW_FORMATS_KEPT = 8
"""Formats of rows of a stream that are kept. One for 500 messages takes 100 KB."""
DELIVERY_BYTES = 100
"""Memory that a delivery takes in the output, beyond its content."""
_origin, _content = attrgetter("origin"), attrgetter("content")
FORMATS_KEPT = 1024
"""Consumers of one channel whose delivery format is cached. When the cache is full, it is cleared."""


class DeliveryFormat:
    """The encoder of `basic.deliver` frames for one consumer. An origin's address is the rest of a frame."""

    __slots__ = ("base", "packers", "tag")

    def __init__(self, consumer_tag: str) -> None:
        self.tag = short_string(consumer_tag)
        self.base = 4 + len(self.tag) + 9 - 1  # class and method, consumer tag, delivery tag and flag, less the frame end
        self.packers: dict[int, Callable[..., bytes]] = {}
        """By the length of the address, which is at most two short strings long."""

    def packer(self, address: bytes) -> Callable[..., bytes]:
        """Return the encoder of frames with an address of this length."""
        size = len(address)
        packer = self.packers[size] = Struct(f">BHIHH{len(self.tag)}sQB{size}s").pack
        return packer


class ServerChannel:
    """A channel of a connection. The broker sends messages and confirms to the client through it."""

    def __init__(self, connection: ServerConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.target: AckTarget
        """The broker's side of the channel; set when it is open."""
        self.is_closing = False
        self.takes_methods = True
        """Whether the channel is open and not in the middle of a message."""
        self.last_publish: PublishTarget | None = None
        """The target of the last publish that was decoded; others to the same exchange differ from it in their routing key."""
        self.publish_start = self.publish_end = b"\xff"
        """The payload of its method up to the routing key, and the end of the frame after that."""
        self.key_at = 0
        """The offset of the routing key in its frame."""
        self._start = b"\x02" + number.to_bytes(2, "big")
        """The first bytes of content that was received on a channel of this number."""
        self._formats: dict[str, DeliveryFormat] = {}
        self._target: PublishTarget | None = None
        self._raw_properties: bytes | None = None
        self._body: list[bytes] = []
        self._missing = 0
        self._size = 0

    @property
    def expects_content(self) -> bool:
        return self._target is not None

    def begin_content(self, target: PublishTarget) -> None:
        """Assemble the content that follows, then publish it."""
        self._target = target
        self.takes_methods = False
        self.connection.assembling += 1

    def receive_header(self, payload: bytes) -> None:
        if self._target is None or self._raw_properties is not None:
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
        self.connection.assembled += len(payload)
        if not self._missing:
            self._finish()

    def abandon_content(self) -> None:
        """Discard the content received so far."""
        if self._target is not None:
            self.takes_methods = True
            self.connection.assembling -= 1
            self.connection.assembled -= self._size - self._missing
        self._target = self._raw_properties = None
        self._body = []
        self._size = self._missing = 0

    def _finish(self) -> None:
        target, raw_properties, body, size = self._target, self._raw_properties, self._body, self._size
        assert target is not None
        assert raw_properties is not None
        self.abandon_content()
        content = join_content(raw_properties, body, size, self.number)
        body.clear()
        target.publish(raw_properties, (content,))

    @property
    def is_writable(self) -> bool:
        return self.connection.is_writable

    def send(self, method: Method) -> None:
        self.connection.send(method_frame(self.number, method))

    def deliver(
        self, consumer: ConsumerOnWire, first_tag: int, messages: Sequence[MessageOnWire], redelivered: Collection[int]
    ) -> None:
        """Send messages with consecutive delivery tags from `first_tag`; `redelivered` holds the ids sent before.

        This is on the hot path (benchmarks/broker.py). The method is therefore packed by hand, content that was received on
        a channel of the same number is sent unchanged, and messages with one origin, of which none is large, are encoded
        without a step in Python for each but the packing.
        """
        delivery_format = self._formats.get(consumer.tag) or self._format(consumer.tag)
        packers, base, consumer_tag = delivery_format.packers, delivery_format.base, delivery_format.tag
        connection, number, start = self.connection, self.number, self._start
        largest, parts = connection.frame_max, connection.output
        if len(messages) > 1 and not redelivered and len(set(map(_origin, messages))) == 1:
            contents: list[Content] = list(map(_content, messages))
            if max(map(len, contents)) <= largest:
                address = messages[0].origin.address
                pack, length = packers.get(len(address)) or delivery_format.packer(address), base + len(address)
                if not all(map(bytes.startswith, contents, repeat(start))):
                    contents = [on_channel(content, number, largest) for content in contents]
                pieces: list[Buffer] = [b""] * (2 * len(contents))
                pieces[::2] = [
                    pack(METHOD, number, length, BASIC, DELIVER, consumer_tag, tag, 0, address)
                    for tag in range(first_tag, first_tag + len(contents))
                ]
                pieces[1::2] = contents
                parts += pieces
                connection.sent(sum(map(len, contents)) + DELIVERY_BYTES * len(contents))
                return
        size = 0
        for tag, message in enumerate(messages, first_tag):
            address, content = message.origin.address, message.content
            flag = 1 if redelivered and message.id in redelivered else 0
            pack = packers.get(len(address)) or delivery_format.packer(address)
            method = pack(METHOD, number, base + len(address), BASIC, DELIVER, consumer_tag, tag, flag, address)
            size += len(content)
            if len(content) > largest:
                parts += (method, *frames_on_channel(content, number, largest))
                continue
            if not content.startswith(start):
                content = on_channel(content, number, largest)
            parts += (method, content)
        connection.sent(size + DELIVERY_BYTES * len(messages))

    def deliver_row(self, consumer: ConsumerOnWire, first_tag: int, row: RowOnWire) -> None:
        """Send messages of a stream with consecutive delivery tags. On the hot path (benchmarks/streams.py).

        All of them are packed in one go, without a step in Python for each.
        """
        delivery_format = self._formats.get(consumer.tag) or self._format(consumer.tag)
        connection, number, address, consumer_tag = self.connection, self.number, row.origin.address, delivery_format.tag
        bodies, (start, middle, end), length = row.bodies, row.frames, delivery_format.base + len(address)
        size, many = len(start) + OFFSET_BYTES + len(middle) + len(bodies[0]) + len(end), len(bodies)
        if size > connection.frame_max:
            pack = delivery_format.packers.get(len(address)) or delivery_format.packer(address)
            for place, body in enumerate(bodies):
                method = pack(METHOD, number, length, BASIC, DELIVER, consumer_tag, first_tag + place, 0, address)
                content = row.frames.content(row.first_offset + place, body)
                connection.output += (method, *frames_on_channel(content, number, connection.frame_max))
        else:
            before = METHOD_START.pack(METHOD, number, length, BASIC, DELIVER) + consumer_tag
            start = b"\0" + address + start  # not redelivered
            # By columns: tag, what follows it, offset, what follows it, body, and what is between it and the next tag.
            values: list[object] = [end + before] * (6 * many + 1)
            values[0], values[-1] = before, end
            values[1::6] = range(first_tag, first_tag + many)
            values[2::6] = [start] * many
            values[3::6] = range(row.first_offset, row.first_offset + many)
            values[4::6] = [middle] * many
            values[5::6] = bodies
            row_format = _row_format(len(before), len(start), len(middle), len(bodies[0]), len(end), many)
            connection.output.append(row_format.pack(*values))
        connection.sent(many * (size + DELIVERY_BYTES))

    def _format(self, consumer_tag: str) -> DeliveryFormat:
        if len(self._formats) >= FORMATS_KEPT:
            self._formats.clear()
        delivery_format = self._formats[consumer_tag] = DeliveryFormat(consumer_tag)
        return delivery_format

    def send_content(self, method: Method, content: Content) -> None:
        connection = self.connection
        connection.output.append(method_frame(self.number, method))
        connection.output += frames_on_channel(content, self.number, connection.frame_max)
        connection.owed += len(content)
        connection.sent(len(content))

    def confirm(self, tag: int, *, multiple: bool) -> None:
        self.connection.send(CONFIRM.pack(METHOD, self.number, CONFIRM_SIZE, BASIC, ACK, tag, multiple, FRAME_END))

    def refuse(self, tag: int) -> None:
        self.connection.send(CONFIRM.pack(METHOD, self.number, CONFIRM_SIZE, BASIC, NACK, tag, 0, FRAME_END))

    def give_back(self, message: MessageOnWire) -> None:
        origin = message.origin
        self.send_content(BasicReturn(NO_ROUTE, "NO_ROUTE", origin.exchange, origin.routing_key), message.content)

    def fail(self) -> None:
        self.connection.fail_later()

    def cancel(self, consumer: ConsumerOnWire) -> None:
        if self.connection.can_be_cancelled:
            self.send(BasicCancel(consumer.tag, no_wait=True))


@lru_cache(ROW_FORMATS_KEPT)
def _row_format(before: int, start: int, middle: int, body: int, end: int, many: int) -> Struct:
    """Return the format of a row of deliveries, from the lengths of their parts."""
    one = f"Q{start}sQ{middle}s{body}s"
    return Struct(f">{before}s" + f"{one}{end + before}s" * (many - 1) + f"{one}{end}s")
