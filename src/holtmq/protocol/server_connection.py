"""An AMQP connection from the server's side (AMQP 0-9-1 §2.2): bytes in, calls to a handler, bytes out.

Theory of operation. Input may arrive in slices of any size. `receive` cuts it into frames and carries out each frame before
it looks at the next. A connection passes through the states of `ConnectionState` in order. In `OPEN`, each channel is in one
of three states: not in `channels`, open, or closing. An error closes the channel or the connection, depending on its type.
Everything that arrives on a closing channel or connection is discarded until the client answers with close-ok. `receive`
never raises an `AmqpError`.

A publish is recognised by the bytes of its method: a `basic.publish` frame seen before leads straight to its target in
the broker, and the content is passed on undecoded.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from holtmq.errors import (
    AmqpChannelError,
    AmqpError,
    ChannelNumberError,
    CommandInvalidError,
    FrameError,
    InternalError,
    LoginRefusedError,
    NotAllowedError,
    UnexpectedFrameError,
)
from holtmq.protocol.connection_handler import ConnectionHandler, PublishTarget
from holtmq.protocol.server_channel import ServerChannel
from holtmq.table import FieldValue
from holtmq.wire.content import Buffer
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
    frame,
    method_frame,
)
from holtmq.wire.methods import (
    BasicPublish,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
    Method,
    decode_method,
)
from holtmq.wire.tables import decode_short_string, short_string

log = logging.getLogger(__name__)

REPLY_NAMES = {
    320: "CONNECTION_FORCED", 403: "ACCESS_REFUSED", 404: "NOT_FOUND", 405: "RESOURCE_LOCKED", 406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR", 502: "SYNTAX_ERROR", 503: "COMMAND_INVALID", 504: "CHANNEL_ERROR", 505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR", 530: "NOT_ALLOWED", 540: "NOT_IMPLEMENTED", 541: "INTERNAL_ERROR",
}  # fmt: skip
PUBLISH_TARGETS_BYTES = 16 * 1024 * 1024
TARGETS_LEFT_OUT = 100_000
"""Memory for the publish targets that a connection remembers. When it is full, this many further ones are not remembered before
all are forgotten: if every message has a key of its own, it is cheaper not to."""
LARGE_PIECE = 4096
LARGE_BODY = 16 * 1024
"""Bodies of this size are worth a way of their own. The other way takes more copies and less Python."""
UNSENT_BYTES = 1024 * 1024
"""Deliveries to a client pause when this many bytes wait to be sent to it. Its input waits when it has asked for as many."""
LONGEST_LOGIN_FRAME = 8192
"""The limit for frames until the client has logged in and agreed on another one."""
ACK_START = bytes((0, BASIC, 0, 80))
ACK_SIZE = 13
ACK_ARGUMENTS = Struct(">QB")
ACK_TAG_AT = FRAME_START.size + len(ACK_START)
ACK_BYTES = ACK_SIZE + OVERHEAD
ACK_END = bytes((0, FRAME_END))
ACK_END_AT = ACK_BYTES - len(ACK_END)
"""The end of the frame of a basic.ack for a single message, and its offset."""
PUBLISH_START = bytes((0, BASIC, 0, 40))
PUBLISH_AT = FRAME_START.size + len(PUBLISH_START) + 2
"""Offset of the exchange in the frame of a basic.publish: the ticket comes before it."""
LONGEST_PUBLISH = 600
"""The upper limit for a basic.publish payload: two short strings and a few octets."""
FRAME_START_SIZE = FRAME_START.size
CONTENT_START_SIZE = CONTENT_START.size
END_OCTET = bytes((FRAME_END,))
NO_HEADER = b"\xff"
"""The start of no frame that is valid."""
SHORTEST_HEADER = CONTENT_START.size - FRAME_START.size + 2
PUBLISH = (60, 40)
ACK = (60, 80)


class ConnectionState(IntEnum):
    HEADER = 0
    START_OK = 1
    LOGGING_IN = 2
    TUNE_OK = 3
    OPENING = 4
    OPEN = 5
    CLOSING = 6
    CLOSED = 7


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that the server proposes to clients and enforces."""

    channels: int = 2047
    frame_size: int = 131_072
    message_size: int = 64 * 1024 * 1024
    heartbeat_s: int = 60


class ServerConnection:
    """The state of one connection. The caller passes on what the socket receives and sends what `take_output` returns."""

    def __init__(self, handler: ConnectionHandler, limits: Limits) -> None:
        self.limits = limits
        self.has_output = False
        self.state = ConnectionState.HEADER
        self.output: list[Buffer] = []
        """Encoded frames that wait to be sent."""
        self.frame_max = min(limits.frame_size, LONGEST_LOGIN_FRAME)
        self.channel_max = limits.channels
        self.client_properties: Mapping[str, FieldValue] = {}
        self.can_be_cancelled = False
        self.can_be_blocked = False
        self.is_congested = False
        """Whether the client reads too slowly, so that the socket's write buffer is full."""
        self.awaits_commit = False
        """Whether the output must wait until the journal is on disk. A flag of its own: a commit must not resume deliveries
        to a client that reads too slowly."""
        self.is_blocked = False
        self.is_paused = False
        """Whether input is kept and not carried out."""
        self.methods_at_once = sys.maxsize
        """Number of methods, without publishes and acks, after which the input is left for another call."""
        self._methods_left = sys.maxsize
        self.has_large_input = False
        """Whether large bodies have arrived of late, so that a large buffer is worth it."""
        self.is_failed = False
        """Whether an internal error occurred. The owner of the connection closes it when the turn ends."""
        self.assembling = 0
        """Number of channels in the middle of a message."""
        self.close_reason: AmqpError | None = None
        self.channels: dict[int, ServerChannel] = {}
        self.assembled = 0
        """Bytes of the messages that are being assembled."""
        self.owed = 0
        """Bytes of messages that the client has asked for or gets back, since its output was last sent."""
        self._handler = handler
        self._publish_targets: dict[bytes, PublishTarget] = {}
        self._publish_targets_bytes = 0
        self._targets_left_out = 0
        """Number of targets that the full cache did not take."""
        self._rest = b""
        self.unsent = 0
        """Size of `output` in bytes, without the methods of deliveries."""

    @property
    def is_writable(self) -> bool:
        return self.unsent < UNSENT_BYTES and not self.is_congested and not self.awaits_commit and not self.is_failed

    @property
    def is_owed_much(self) -> bool:
        """Whether the client must read what it has asked for before it may ask for more."""
        return self.owed >= UNSENT_BYTES

    @property
    def has_input(self) -> bool:
        """Whether input is left that was not carried out: the start of a frame, or all that came while it was paused."""
        return bool(self._rest)

    @property
    def has_given_way(self) -> bool:
        """Whether input is left because it had many methods. Another call of `receive`, also without data, goes on with it."""
        return self._methods_left <= 0 and self.state != ConnectionState.CLOSED

    @property
    def memory(self) -> int:
        """Bytes that the connection holds: unfinished input, output, and cached publish targets."""
        return len(self._rest) + self.unfinished + self.unsent + self._publish_targets_bytes

    @property
    def unfinished(self) -> int:
        """Bytes that unfinished messages take, including the copy that is made when one is complete."""
        return 2 * self.assembled

    def send(self, data: bytes) -> None:
        self.output.append(data)
        self.sent(len(data))

    def sent(self, size: int) -> None:
        """Note that the caller itself added `size` bytes to the output."""
        self.unsent += size
        if not self.has_output:
            self.has_output = True
            self._handler.has_output()

    def take_output(self) -> list[Buffer]:
        """Return and clear the output. Small pieces are joined; large ones are not copied."""
        output, size = self.output, self.unsent
        self.output, self.unsent, self.has_output = [], 0, False
        return output if size > len(output) * LARGE_PIECE else [b"".join(output)]

    def block(self, reason: str) -> None:
        if self.state == ConnectionState.OPEN and self.can_be_blocked and not self.is_blocked:
            self.is_blocked = True
            self.send(method_frame(0, ConnectionBlocked(reason)))

    def unblock(self) -> None:
        if self.state == ConnectionState.OPEN and self.is_blocked:
            self.is_blocked = False
            self.send(method_frame(0, ConnectionUnblocked()))

    def close(self, error: AmqpError) -> None:
        """Close the connection for a reason of the server's own."""
        self._fail(error, 0, 0, 0)

    def refuse(self, error: AmqpError, number: int, method: Method) -> None:
        """Report that a method failed after it had taken a while, and close its channel or the connection."""
        self._fail(error, number, method.class_id, method.method_id)

    def forget_targets(self) -> None:
        """Clear the cache of publish targets."""
        self._publish_targets.clear()
        self._publish_targets_bytes = self._targets_left_out = 0

    def receive(self, data: bytes) -> None:
        """Carry out all complete frames and keep the rest until more data arrives."""
        if self.is_paused:
            self._rest += data
        elif self.state != ConnectionState.CLOSED:
            self._receive(data)

    def receive_buffer(self, buffer: memoryview) -> None:
        """Carry out input like `receive`, and keep no reference to the buffer: the caller overwrites it.

        Large bodies are copied once, straight from the buffer to their content. All other input is copied as a whole first,
        because slices of bytes are quicker to make.
        """
        at = 0
        if len(buffer) >= LARGE_BODY and self.state == ConnectionState.OPEN and not self.is_paused:
            at = self._finish_frame(buffer)
            after = at if self._rest else self._receive_large(buffer, at)
            self.has_large_input, at = after > 0, after
        if at < len(buffer) or not at:
            self.receive(bytes(buffer[at:]))

    def _finish_frame(self, buffer: memoryview) -> int:
        """Carry out a large frame that began in an earlier buffer. Return how many bytes of this buffer it takes."""
        rest = self._rest
        missing = self._missing(rest) if len(rest) >= LARGE_PIECE else 0
        if not 0 < missing <= len(buffer):
            return 0
        self._rest = b""
        self._receive(b"".join((rest, buffer[:missing])))
        return missing

    def _receive_large(self, buffer: memoryview, at: int) -> int:
        """Carry out publishes and frames with large bodies, up to the first other or incomplete one. Return where it starts.

        What is not valid is left to `_receive_frames`, which finds the error.
        """
        end, targets = len(buffer), self._publish_targets
        while end - at >= LARGE_BODY and not (self.is_paused or self.is_owed_much):
            kind, number, size = FRAME_START.unpack_from(buffer, at)
            after = at + size + OVERHEAD
            if after > end or buffer[after - 1] != FRAME_END:
                break
            if kind == BODY and size >= LARGE_BODY:
                self._receive_frame(kind, number, bytes(buffer[at + FRAME_START.size : after - 1]))
                at = after
                continue
            target = targets.get(bytes(buffer[at:after])) if size < LONGEST_PUBLISH and not self.assembling else None
            if target is None or end - after < CONTENT_START.size:
                break
            kind, content_number, header_size, class_id, weight, body_size = CONTENT_START.unpack_from(buffer, after)
            body_at = after + header_size + OVERHEAD
            content_end = body_at + body_size + OVERHEAD
            if (
                (kind, content_number, class_id, weight) != (HEADER, number, BASIC, 0)
                or not LARGE_BODY <= body_size <= self._largest_at_once
                or not SHORTEST_HEADER <= header_size < self.frame_max - OVERHEAD
                or content_end > end
                or FRAME_START.unpack_from(buffer, body_at) != (BODY, number, body_size)
                or not buffer[body_at - 1] == buffer[content_end - 1] == FRAME_END
            ):
                break
            raw_properties = bytes(buffer[after + CONTENT_START.size : body_at - 1])
            contents = [bytes(buffer[after:content_end])]
            start, offset, length = bytes(buffer[at : body_at + FRAME_START_SIZE]), after - at, content_end - at
            at, start_size = content_end, len(start)
            # Messages that differ in nothing but their body are often sent in a row.
            while at + length <= end and bytes(buffer[at : at + start_size]) == start and buffer[at + length - 1] == FRAME_END:
                contents.append(bytes(buffer[at + offset : at + length]))
                at += length
            self._publish(target, raw_properties, contents, number)
        return at

    def _receive(self, data: bytes) -> None:
        self._methods_left = self.methods_at_once
        at = 0
        if self._rest:
            rest, self._rest = self._rest, b""
            at = self._missing(rest) if data and len(rest) > LARGE_PIECE else 0
            if at > len(data) or not at:
                data, at = rest + data, 0
            else:
                # Join only the missing bytes to the rest, so that the whole of the data is not copied.
                piece = b"".join((rest, memoryview(data)[:at]))
                taken = self._receive_frames(piece, 0)
                if taken < len(piece):  # a publish whose header is now complete, but whose body has not arrived
                    data, at = piece[taken:] + data[at:], 0
        if self.state == ConnectionState.HEADER:
            if len(data) < len(PROTOCOL_HEADER) and PROTOCOL_HEADER.startswith(data):
                self._rest = data
                return
            if not self._greet(data):
                return
            at = len(PROTOCOL_HEADER)
        if not (self.is_paused or self.is_owed_much):
            at = self._receive_frames(data, at)
        if at < len(data) and self.state != ConnectionState.CLOSED:
            self._rest = data[at:] if at else data

    @staticmethod
    def _missing(rest: bytes) -> int:
        """Return how many bytes the incomplete last frame lacks, or 0 if its length is not known yet."""
        at = 0
        while len(rest) - at >= FRAME_START.size:
            at += FRAME_START.unpack_from(rest, at)[2] + OVERHEAD
        return max(0, at - len(rest))

    def _receive_frames(self, data: bytes, at: int) -> int:  # noqa: C901  # see the docstring
        """Carry out frame by frame and return where the first incomplete frame starts.

        This is the hot path, hence long and plain (benchmarks/broker.py). A publish waits until its content is complete and
        is then carried out in one step, unless the body comes in several frames. An ack is decoded in place. Every other
        frame is cut out and passed on. What is not valid in a row of publishes ends the row, and is found out after that.
        """
        end = len(data)
        unpack_frame, unpack_content, unpack_ack = FRAME_START.unpack_from, CONTENT_START.unpack_from, ACK_ARGUMENTS.unpack_from
        targets, channels = self._publish_targets, self.channels
        header, header_channel, raw_properties, content_size, body_size = NO_HEADER, -1, b"", 0, 0
        while end - at >= FRAME_START_SIZE:
            kind, number, size = unpack_frame(data, at)
            after = at + size + OVERHEAD
            # Many messages differ from the one before only in routing key and body: their headers need no second look.
            target = None
            if data.startswith(header, after) and number == header_channel:
                method = data[at:after]
                target = targets.get(method) or self._new_target(number, method)
                if target is not None:
                    content_end = after + content_size
                    if content_end > end:
                        break
                    if data[content_end - 1] != FRAME_END:
                        target = None
            if target is None:
                if after > end:
                    if size + OVERHEAD > self.frame_max:
                        self._fail(
                            FrameError(f"expected frames of at most {self.frame_max} bytes, got {size + OVERHEAD}"), 0, 0, 0
                        )
                        return end
                    break
                if data[after - 1] != FRAME_END:
                    self._fail(FrameError(f"expected a frame to end with {FRAME_END:#x}, got {data[after - 1]:#x}"), 0, 0, 0)
                    return end
                if (
                    size == ACK_SIZE
                    and data.startswith(ACK_START, at + FRAME_START_SIZE)
                    and kind == METHOD
                    and number in channels
                    and channels[number].takes_methods
                ):
                    start, (tag, multiple) = data[at : at + ACK_TAG_AT], unpack_ack(data, at + ACK_TAG_AT)
                    tags, at = [tag], after
                    while not multiple and data.startswith(start, at) and data.startswith(ACK_END, at + ACK_END_AT):
                        tags.append(unpack_ack(data, at + ACK_TAG_AT)[0])
                        at += ACK_BYTES
                    try:
                        if multiple:
                            channels[number].target.ack(tag, multiple=multiple & 1 == 1)
                            if self.is_paused:
                                break
                        else:
                            channels[number].target.ack_each(tags)
                    except AmqpError as error:
                        self._fail(error, number, *ACK)
                    continue
                if size < LONGEST_PUBLISH and not self.assembling:
                    method = data[at:after]
                    target = targets.get(method) or self._new_target(number, method)
                if target is not None:
                    if end - after < CONTENT_START.size:
                        break
                    content_kind, content_number, header_size, class_id, weight, body_size = unpack_content(data, after)
                    body_at = after + header_size + OVERHEAD
                    content_end = body_at + body_size + OVERHEAD if body_size else body_at
                    if (
                        content_kind == HEADER
                        and content_number == number
                        and class_id == BASIC
                        and weight == 0
                        and SHORTEST_HEADER <= header_size < self.frame_max - OVERHEAD
                        and body_size <= self._largest_at_once
                    ):
                        if end < content_end and end < body_at + FRAME_START_SIZE:
                            break
                        if data[body_at - 1] != FRAME_END or (
                            body_size and unpack_frame(data, body_at) != (BODY, number, body_size)
                        ):
                            target = None
                        elif end < content_end:
                            break
                        elif data[content_end - 1] != FRAME_END:
                            target = None
                    else:
                        target = None
                if target is None:
                    self._receive_frame(kind, number, data[at + FRAME_START_SIZE : after - 1])
                    if self.is_paused or self.owed >= UNSENT_BYTES or self._methods_left <= 0:
                        end = at  # leave the loop after this frame
                    at, header_channel = after, -1
                    continue
                header, header_channel = data[after : body_at + FRAME_START_SIZE if body_size else body_at], number
                raw_properties = data[after + CONTENT_START.size : body_at - 1]
                content_size = content_end - after
            contents, raw = [data[after:content_end]], raw_properties
            start_at, at = at, content_end
            # Messages to one target are often sent in a row. Those with the same properties are published together.
            if body_size and data.startswith(method, at):
                start, length, offset = data[start_at : after + len(header)], content_end - start_at, after - start_at
                while True:
                    if (
                        raw is raw_properties
                        and data.startswith(start, at)  # the next message has the size of the first, too
                        and at + length <= end
                        and data[at + length - 1] == FRAME_END
                    ):
                        contents.append(data[at + offset : at + length])
                        at += length
                        continue
                    header_at = at + offset
                    if header_at + CONTENT_START_SIZE > end or not data.startswith(method, at):
                        break
                    content_kind, content_number, header_size, class_id, weight, size = unpack_content(data, header_at)
                    body_at = header_at + header_size + OVERHEAD
                    content_end = body_at + size + OVERHEAD
                    if (
                        content_kind != HEADER
                        or content_number != number
                        or class_id != BASIC
                        or weight
                        or not SHORTEST_HEADER <= header_size < self.frame_max - OVERHEAD
                        or not 0 < size <= self._largest_at_once
                        or content_end > end
                        or data[body_at - 1] != FRAME_END
                        or unpack_frame(data, body_at) != (BODY, number, size)
                        or data[content_end - 1] != FRAME_END
                    ):
                        break
                    next_raw = data[header_at + CONTENT_START_SIZE : body_at - 1]
                    if next_raw != raw:
                        if not self._publish(target, raw, contents, number):
                            contents = []
                            break
                        contents, raw = [], next_raw
                    contents.append(data[header_at:content_end])
                    at = content_end
            if contents:
                self._publish(target, raw, contents, number)
            if self.is_paused:
                break
        return at

    def _publish(self, target: PublishTarget, raw_properties: bytes, contents: list[bytes], number: int) -> bool:
        """Publish messages of a channel. Return whether the client may go on."""
        try:
            target.publish(raw_properties, contents)
        except AmqpError as error:
            self._fail(error, number, *PUBLISH)
            return False
        return not self.is_paused

    def _new_target(self, number: int, method: bytes) -> PublishTarget | None:
        """Return the target of a frame if it is a basic.publish that is not known yet, and remember it.

        The method is decoded by hand, because every message with a routing key of its own passes here (benchmarks/broker.py).
        Anything unusual is left to `_receive_frame`, and so is a publish that was refused here: its channel is closing.
        """
        channel = self.channels.get(number)
        if channel is None or not channel.takes_methods or method[0] != METHOD:
            return None
        last, key_at = channel.last_publish, channel.key_at
        try:
            if (
                method.startswith(channel.publish_start, FRAME_START_SIZE)
                and method.endswith(channel.publish_end)
                and key_at + 1 + method[key_at] + 2 == len(method)
                and last is not None
            ):
                routing_key, address = method[key_at + 1 : -2].decode(), method[PUBLISH_AT:-2] + END_OCTET
                return self._remember(method, last.with_key(routing_key, address))
            return self._decode_target(channel, method)
        except (FrameError, UnicodeDecodeError):
            return None
        except AmqpError as error:
            self._fail(error, number, *PUBLISH)
            return None

    def _decode_target(self, channel: ServerChannel, method: bytes) -> PublishTarget | None:
        """Return the target of a publish to another exchange, or with other flags, than the one before it on its channel."""
        if not method.startswith(PUBLISH_START, FRAME_START_SIZE) or method[-1] != FRAME_END:
            return None
        exchange, key_at = decode_short_string(method, PUBLISH_AT)
        routing_key, at = decode_short_string(method, key_at)
        if at + 2 != len(method):
            return None
        publish = BasicPublish(0, exchange, routing_key, method[at] & 1 == 1, method[at] & 2 == 2)
        target = self._handler.publication(channel, publish)
        channel.last_publish, channel.key_at = target, key_at
        channel.publish_start, channel.publish_end = method[FRAME_START_SIZE:key_at], method[-2:]
        return self._remember(method, target)

    def _remember(self, method: bytes, target: PublishTarget) -> PublishTarget:
        """Remember the target of a publish by the frame of the method."""
        if self._publish_targets_bytes >= PUBLISH_TARGETS_BYTES:
            self._targets_left_out += 1
            if self._targets_left_out < TARGETS_LEFT_OUT:
                return target
            self.forget_targets()
        self._publish_targets[method] = target
        self._publish_targets_bytes += target.memory
        return target

    def _receive_frame(self, kind: int, number: int, payload: bytes) -> None:
        method: Method | None = None
        try:
            if len(payload) + OVERHEAD > self.frame_max:
                raise FrameError(f"expected frames of at most {self.frame_max} bytes, got {len(payload) + OVERHEAD}")
            if kind == METHOD:
                if self._is_discarded(number, payload):
                    return
                method = decode_method(payload)
                self._receive_method(number, method, payload)
            elif self.state == ConnectionState.CLOSING:
                return
            elif kind == HEARTBEAT:
                if number or payload:
                    raise UnexpectedFrameError(
                        f"expected an empty heartbeat on channel 0, got {len(payload)} bytes on {number}"
                    )
            elif kind in (HEADER, BODY):
                self._receive_content(kind, number, payload)
            else:
                raise FrameError(f"expected a frame of type 1, 2, 3 or 8, got type {kind}")
        except AmqpError as error:
            class_id, method_id = (method.class_id, method.method_id) if method is not None else (0, 0)
            if method is None and isinstance(error, AmqpChannelError):
                class_id, method_id = PUBLISH
            self._fail(error, number, class_id, method_id)

    def _is_discarded(self, number: int, payload: bytes) -> bool:
        """Whether to discard a method because its channel or connection is closing. Close and close-ok are kept."""
        start = payload[:4]
        if self.state == ConnectionState.CLOSING:
            return start not in (b"\x00\x0a\x00\x32", b"\x00\x0a\x00\x33")
        channel = self.channels.get(number)
        return channel is not None and channel.is_closing and start not in (b"\x00\x14\x00\x28", b"\x00\x14\x00\x29")

    def _receive_content(self, kind: int, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        if channel is None:
            raise UnexpectedFrameError(f"expected a method, got content on channel {number}, which is not open")
        if channel.is_closing:
            return
        if kind == HEADER:
            channel.receive_header(payload)
        else:
            channel.receive_body(payload)

    def _receive_method(self, number: int, method: Method, payload: bytes) -> None:
        self._methods_left -= 1
        if number == 0:
            self._receive_connection_method(method)
            return
        if self.state != ConnectionState.OPEN or method.class_id == 10:
            raise CommandInvalidError(f"expected {method.label()} on channel 0 of an open connection, got channel {number}")
        channel = self.channels.get(number)
        if channel is None:
            self._open_channel(number, method)
        elif channel.expects_content:
            raise UnexpectedFrameError(f"expected content on channel {number}, got {method.label()}")
        else:
            self._receive_channel_method(channel, method, payload)

    def _receive_channel_method(self, channel: ServerChannel, method: Method, payload: bytes) -> None:
        match method:
            case ChannelOpen():
                raise ChannelNumberError(f"channel {channel.number} is open already")
            case ChannelClose():
                self._remove_channel(channel)
                channel.send(ChannelCloseOk())
            case ChannelCloseOk():
                if channel.is_closing:
                    del self.channels[channel.number]
            case BasicPublish():
                target = self._handler.publication(channel, method)
                channel.begin_content(self._remember(frame(METHOD, channel.number, payload), target))
            case _:
                self._handler.carry_out(channel, method)

    def _open_channel(self, number: int, method: Method) -> None:
        if not isinstance(method, ChannelOpen):
            raise ChannelNumberError(f"expected channel.open on channel {number}, which is not open, got {method.label()}")
        if number > self.channel_max:
            raise NotAllowedError(f"expected a channel from 1 to {self.channel_max}, the negotiated channel_max, got {number}")
        channel = ServerChannel(self, number)
        channel.target = self._handler.open_channel(channel)
        self.channels[number] = channel
        channel.send(ChannelOpenOk())

    def _remove_channel(self, channel: ServerChannel) -> None:
        self.channels.pop(channel.number, None)
        channel.abandon_content()
        self.forget_targets()
        if not channel.is_closing:
            self._handler.close_channel(channel)

    def _receive_connection_method(self, method: Method) -> None:
        match self.state, method:
            case _, ConnectionClose():
                self.send(method_frame(0, ConnectionCloseOk()))
                self._shut()
            case ConnectionState.CLOSING, ConnectionCloseOk():
                self.state = ConnectionState.CLOSED
            case ConnectionState.START_OK, ConnectionStartOk():
                self._log_in(method)
            case ConnectionState.TUNE_OK, ConnectionTuneOk():
                self._tune(method)
            case ConnectionState.OPENING, ConnectionOpen(virtual_host=vhost):
                self._handler.enter(vhost)
                self.state = ConnectionState.OPEN
                self.send(method_frame(0, ConnectionOpenOk()))
            case ConnectionState.OPEN, ConnectionUpdateSecret(new_secret=secret):
                self._handler.update_secret(secret)
                self.send(method_frame(0, ConnectionUpdateSecretOk()))
            case _, ConnectionSecureOk():
                raise CommandInvalidError(
                    "unexpected connection.secure-ok: no SASL mechanism of this broker sends connection.secure"
                )
            case _:
                raise CommandInvalidError(f"unexpected {method.label()} on channel 0 in state {self.state.name.lower()}")

    def _greet(self, data: bytes) -> bool:
        if not data.startswith(PROTOCOL_HEADER):
            self.send(PROTOCOL_HEADER)  # §4.2.2: answer with the supported version and close the socket
            self.state = ConnectionState.CLOSED
            return False
        self.state = ConnectionState.START_OK
        handler = self._handler
        start = ConnectionStart(0, 9, handler.server_properties, handler.mechanisms.encode(), b"en_US")
        self.send(method_frame(0, start))
        return True

    def _log_in(self, method: ConnectionStartOk) -> None:
        self.client_properties = method.client_properties
        self.can_be_cancelled = self._has_capability("consumer_cancel_notify")
        self.can_be_blocked = self._has_capability("connection.blocked")
        try:
            is_done = self._handler.log_in(method.mechanism, method.response, method.client_properties)
        except LoginRefusedError as error:
            self._refuse_login(error)
            return
        self.state = ConnectionState.LOGGING_IN
        if is_done:
            self.finish_login(None)

    def finish_login(self, refusal: LoginRefusedError | None) -> None:
        """Accept or refuse a client whose login was checked. Its owner pauses the input meanwhile."""
        if self.state != ConnectionState.LOGGING_IN:
            return
        if refusal is not None:
            self._refuse_login(refusal)
            return
        self.state = ConnectionState.TUNE_OK
        limits = self.limits
        self.send(method_frame(0, ConnectionTune(limits.channels, limits.frame_size, limits.heartbeat_s)))

    def _refuse_login(self, error: LoginRefusedError) -> None:
        if self._has_capability("authentication_failure_close"):
            self._fail(error, 0, 0, 0)
        else:
            self.close_reason = error
            self.state = ConnectionState.CLOSED

    def _tune(self, method: ConnectionTuneOk) -> None:
        limits = self.limits
        self.channel_max = _agreed("channel_max", method.channel_max, 1, limits.channels)
        self.frame_max = _agreed("frame_max", method.frame_max, SMALLEST_FRAME_MAX, limits.frame_size)
        self._largest_at_once = min(self.frame_max - OVERHEAD, limits.message_size)
        self._handler.tuned(method.heartbeat)
        self.state = ConnectionState.OPENING

    _largest_at_once = 0

    def _has_capability(self, name: str) -> bool:
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, Mapping) and capabilities.get(name) is True

    def _fail(self, error: AmqpError, number: int, class_id: int, method_id: int) -> None:
        """Report an error to the client and close the channel or the connection."""
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            return
        class_id, method_id = error.class_id or class_id, error.method_id or method_id
        text = _reply_text(error)
        channel = self.channels.get(number)
        if isinstance(error, AmqpChannelError) and channel is not None:
            channel.abandon_content()
            self.forget_targets()
            self._handler.close_channel(channel)
            channel.is_closing, channel.takes_methods = True, False
            channel.send(ChannelClose(error.reply_code, text, class_id, method_id))
            return
        self.close_reason = error
        code = error.reply_code
        self._shut()
        self.state = ConnectionState.CLOSING
        self.send(method_frame(0, ConnectionClose(code, text, class_id, method_id)))

    def fail_inside(self) -> None:
        """Close the connection because of a defect in the broker."""
        self._fail(InternalError("internal error"), 0, 0, 0)

    def fail_later(self) -> None:
        """Deliver nothing more, and let the owner of the connection call `fail_inside` when the turn ends."""
        self.is_failed = True
        self.sent(0)

    def _shut(self) -> None:
        """Forget all channels. Whoever owns the connection closes the session of the client, and with it their other side."""
        for channel in self.channels.values():
            channel.abandon_content()
        self.channels.clear()
        self.forget_targets()
        self.state = ConnectionState.CLOSED

    def lost(self) -> None:
        """Close all channels, because the socket is closed."""
        self._shut()


def _agreed(name: str, wanted: int, least: int, most: int) -> int:
    if wanted == 0 or not least <= wanted <= most:
        raise NotAllowedError(f"negotiated {name} = {wanted}: expected {least} to {most}")
    return wanted


def _reply_text(error: AmqpError) -> str:
    """Return the text of a close method, cut to the 255 bytes of a short string."""
    text = f"{REPLY_NAMES[error.reply_code]} - {error}"
    encoded = text.encode(errors="replace")
    if len(encoded) > 255:
        text = encoded[:252].decode(errors="ignore") + "…"
    assert len(short_string(text)) <= 256
    return text
