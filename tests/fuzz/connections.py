"""Fuzz targets: both sides of a connection, given what a hostile peer sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import takewhile

from holtmq.errors import AmqpError
from holtmq.protocol.client_connection import ClientConnection, ClientOptions, ClientState, Settlement
from holtmq.protocol.server_connection import ConnectionState, Limits, ServerConnection
from holtmq.wire import methods as wire
from holtmq.wire.content import Properties
from holtmq.wire.frames import BODY, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, frame, method_frame
from holtmq.wire.methods import METHODS, encode_method
from tests.fuzz.choices import Choices, slices
from tests.protocol.test_connection import Recorder, assert_is_well_formed, cut

CHANNELS = 3
LIMITS = Limits(channels=10, frame_size=8192, message_size=10_000)
KINDS = (METHOD, HEADER, BODY, HEARTBEAT, METHOD, METHOD, BODY, 9)
OPENING = PROTOCOL_HEADER + b"".join(
    method_frame(0, method)
    for method in (
        wire.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"),
        wire.ConnectionTuneOk(CHANNELS, 4096, 0),
        wire.ConnectionOpen("/"),
    )
)
SERVER_OPENING = b"".join(
    method_frame(0, method)
    for method in (
        wire.ConnectionStart(0, 9, {}, b"PLAIN", b"en_US"),
        wire.ConnectionTune(CHANNELS, 4096, 0),
        wire.ConnectionOpenOk(),
    )
)
MOST_OUTPUT = 1024
MOST_OUTPUT_PER_BYTE = 40
"""A publish of 40 bytes can be answered by the close of its channel, with a text of 255 bytes; nothing is answered by more."""


def server_bytes(data: bytes) -> None:
    """Send any bytes to a server, from the first byte on. The first byte of the input is the size of the slices."""
    _serve(data[1:], data[0] if data else 0)


def server_frames(data: bytes) -> None:
    """Send any frames to a server after the handshake."""
    choices = Choices(data)
    size = choices.number()
    _serve(OPENING + method_frame(1, wire.ChannelOpen()) + b"".join(_frames(choices)), size)


def _serve(data: bytes, slice_size: int) -> None:
    """Receive the data in slices and as a whole: both must do the same, answer with valid AMQP, and leave nothing behind."""
    sliced, whole = [_received(pieces) for pieces in (slices(data, slice_size), [data])]
    assert sliced == whole, "slices make a difference"


def _received(pieces: Iterable[bytes]) -> tuple[object, ...]:
    recorder = Recorder()
    connection = ServerConnection(recorder, LIMITS)
    size = 0
    for piece in pieces:
        if connection.state >= ConnectionState.CLOSING:
            break  # what follows an invalid frame has no meaning
        size += len(piece)
        connection.receive_buffer(memoryview(piece))
    assert connection.unsent == sum(map(len, connection.output))
    assert connection.assembling == sum(channel.expects_content for channel in connection.channels.values())
    assert len(connection.channels) <= CHANNELS
    state, output = connection.state, b"".join(connection.take_output())
    assert_is_well_formed(output, connection)
    assert len(output) <= MOST_OUTPUT + MOST_OUTPUT_PER_BYTE * size, "more output than the input accounts for"
    left = list(connection.channels) if state < ConnectionState.CLOSING else []
    closing = [number for number in left if connection.channels[number].is_closing]
    connection.lost()
    assert not connection.channels
    opened, closed = Counter(_numbers(recorder, "open")), Counter(_numbers(recorder, "close"))
    assert closed <= opened
    if state < ConnectionState.CLOSING:
        assert opened - closed == Counter(set(left) - set(closing)), "a channel was closed twice or not at all"
    return recorder.seen, state >= ConnectionState.CLOSING, _before_close(output)


def _before_close(output: bytes) -> list[bytes]:
    """Return the frames up to the close or close-ok of the connection. A client may or may not have answered that."""
    frames = [] if output.endswith(PROTOCOL_HEADER) else cut(output)
    return list(takewhile(lambda piece: piece[7:11] not in (b"\0\x0a\0\x32", b"\0\x0a\0\x33"), frames))


def _numbers(recorder: Recorder, what: str) -> list[int]:
    return sorted(entry[1] for entry in recorder.seen if entry[0] == what)


def client(data: bytes) -> None:
    """Send any frames to a client, after the handshake of a server or instead of it."""
    choices = Choices(data)
    size, start = choices.number(), choices.pick((SERVER_OPENING, b""))
    received = start + (b"".join(_frames(choices)) if choices.flag() else choices.rest())
    sliced, whole = [_seen_by_client(pieces) for pieces in (slices(received, size), [received])]
    assert sliced == whole, "slices make a difference"


def _seen_by_client(pieces: Iterable[bytes]) -> tuple[object, ...]:
    connection = ClientConnection(ClientOptions())
    events, has_failed = [], False
    try:
        for piece in pieces:
            if connection.state == ClientState.CLOSED:
                break
            connection.receive(piece)
            events += connection.take_events()
    except AmqpError:
        events += connection.take_events()
        has_failed = True
    for event in events:
        if not isinstance(event, Settlement):
            with suppress(AmqpError):
                Properties(event.raw_properties).to_dict()
    assert not events or connection.state >= ClientState.OPEN, "events before the handshake is over"
    return events, has_failed, connection.take_output()


def _frames(choices: Choices) -> Iterable[bytes]:
    while not choices.is_over:
        kind, number = choices.pick(KINDS), choices.number(5)
        make = choices.pick((_payload, _method, _header))
        content = make(choices)
        end = choices.number()
        whole = frame(kind, number, content)
        yield whole if end else whole[:-1] + b"\x00"


def _payload(choices: Choices) -> bytes:
    return choices.take(choices.number())


def _method(choices: Choices) -> bytes:
    """Encode a method with any arguments."""
    kind = choices.pick(tuple(METHODS.values()))
    return encode_method(kind(*(_argument(choices, type_) for _, type_ in kind.layout)))


def _argument(choices: Choices, type_: object) -> object:
    match type_:
        case "bit":
            return choices.flag()
        case "shortstr":
            return choices.take(choices.number(8)).decode("latin-1")
        case "longstr":
            return choices.take(choices.number(20))
        case "table":
            return {"a": choices.number()} if choices.flag() else {}
        case _:
            return choices.number()


def _header(choices: Choices) -> bytes:
    """Encode a content header with any properties."""
    size = choices.number() * choices.pick((1, 0, 64))
    return b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + choices.pick((b"\x00\x00", b"\x10\x00\x02")) + _payload(choices)
