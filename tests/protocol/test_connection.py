"""The server's side of a connection without sockets: slicing makes no difference, and invalid bytes close the connection."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holtmq.errors import PreconditionFailedError
from holtmq.protocol.connection_handler import PublishTarget
from holtmq.protocol.server_channel import ServerChannel
from holtmq.protocol.server_connection import ConnectionState, Limits, ServerConnection
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel, sizes_of
from holtmq.wire.frames import BODY, FRAME_END, FRAME_START, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, frame, method_frame
from holtmq.wire.methods import Method, decode_method
from holtmq.wire.tables import short_string


@dataclass
class Recording:
    """A target that records what is published to it."""

    seen: list[Any]
    channel: int
    routing_key: str
    memory: ClassVar[int] = 0
    exchange: str = ""
    is_mandatory: bool = False

    def with_key(self, routing_key: str, address: bytes) -> Recording:
        assert address == short_string(self.exchange) + short_string(routing_key) + bytes((FRAME_END,))
        return replace(self, routing_key=routing_key)

    def publish(self, raw_properties: bytes, contents: Sequence[bytes]) -> None:
        for content, size in zip(contents, sizes_of(raw_properties, contents), strict=True):
            body = content[len(content) - size - 1 : -1] if size else b""
            self.seen.append((self.channel, self.routing_key, raw_properties, body, self.exchange, self.is_mandatory))


class Recorder:
    """A handler that accepts and records everything."""

    server_properties: Mapping[str, FieldValue] = {}
    mechanisms = "PLAIN"

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def has_output(self) -> None: ...
    def log_in(self, mechanism: str, response: bytes, client_properties: Mapping[str, FieldValue]) -> bool:
        return True

    def tuned(self, heartbeat_s: int) -> None: ...
    def enter(self, vhost: str) -> None: ...
    def update_secret(self, secret: bytes) -> None: ...

    def open_channel(self, channel: ServerChannel) -> Target:
        self.seen.append(("open", channel.number))
        return Target(self, channel.number)

    def close_channel(self, channel: ServerChannel) -> None:
        self.seen.append(("close", channel.number))

    def publication(self, channel: ServerChannel, method: wire.BasicPublish) -> PublishTarget:
        return Recording(self.seen, channel.number, method.routing_key, method.exchange, method.mandatory)

    def carry_out(self, channel: ServerChannel, method: Method) -> None:
        self.seen.append((channel.number, method))


@dataclass
class RefusingTarget(Recording):
    """A target that refuses messages with some properties."""

    refused: bytes = b""

    def publish(self, raw_properties: bytes, contents: Sequence[bytes]) -> None:
        if raw_properties == self.refused:
            raise PreconditionFailedError("refused")
        super().publish(raw_properties, contents)


class Refusing(Recorder):
    """A handler with such targets."""

    def __init__(self, refused: bytes) -> None:
        super().__init__()
        self._refused = refused

    def publication(self, channel: ServerChannel, method: wire.BasicPublish) -> PublishTarget:
        names = method.exchange, method.mandatory
        return RefusingTarget(self.seen, channel.number, method.routing_key, *names, refused=self._refused)


class Target:
    def __init__(self, recorder: Recorder, number: int) -> None:
        self._recorder = recorder
        self._number = number

    def ack_each(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self.ack(tag, multiple=False)

    def ack(self, tag: int, *, multiple: bool) -> None:
        self._recorder.seen.append((self._number, "ack", tag, multiple))


def handshake(frame_max: int = 4096) -> bytes:
    return b"".join((
        PROTOCOL_HEADER,
        method_frame(0, wire.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")),
        method_frame(0, wire.ConnectionTuneOk(2047, frame_max, 0)),
        method_frame(0, wire.ConnectionOpen("/")),
    ))  # fmt: skip


def publish(channel: int, key: str, body: bytes) -> bytes:
    content = make_content(encode_properties({"delivery_mode": 2}), body)
    return method_frame(channel, wire.BasicPublish(0, "", key)) + on_channel(content, channel, 4096)


def session() -> bytes:
    """Encode a session of two channels: new and repeated publishes of many sizes, acks, heartbeats and other methods."""
    parts = [handshake(), method_frame(1, wire.ChannelOpen()), method_frame(2, wire.ChannelOpen())]
    for number in range(12):
        parts.append(publish(1 + number % 2, f"key.{number % 3}", bytes(number * number * 90)))
        parts.append(method_frame(1, wire.BasicAck(number + 1, number % 2 == 0)))
        parts.append(frame(HEARTBEAT, 0, b""))
    parts.append(method_frame(2, wire.QueueDeclare(0, "q")))
    parts.append(method_frame(2, wire.ChannelClose(200, "bye", 0, 0)))
    return b"".join(parts)


def receive(data: bytes, cuts: list[int]) -> tuple[Recorder, ServerConnection, bytes]:
    recorder = Recorder()
    connection = ServerConnection(recorder, Limits())
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        buffer = bytearray(data[start:end])
        connection.receive_buffer(memoryview(buffer))
        buffer[:] = b"\xff" * len(buffer)  # as the next read overwrites it
    return recorder, connection, b"".join(connection.take_output())


WHOLE = receive(session(), [])


def test_a_session_is_carried_out() -> None:
    recorder, connection, _ = WHOLE
    published = [entry for entry in recorder.seen if len(entry) == 6]
    assert [len(entry[3]) for entry in published] == [number * number * 90 for number in range(12)]
    assert [entry for entry in recorder.seen if entry[1] == "ack"] == [
        (1, "ack", number + 1, number % 2 == 0) for number in range(12)
    ]
    assert recorder.seen[-1] == ("close", 2)
    assert connection.state == ConnectionState.OPEN


class Resolver(Recorder):
    """A handler that records which publish targets it is asked for."""

    def publication(self, channel: ServerChannel, method: wire.BasicPublish) -> PublishTarget:
        self.seen.append(method.routing_key)
        return Sized(self.seen, channel.number, method.routing_key)


class Sized(Recording):
    """A target that records which others it is asked for."""

    memory: ClassVar[int] = 1

    def with_key(self, routing_key: str, address: bytes) -> Recording:
        self.seen.append(routing_key)
        return super().with_key(routing_key, address)

    def publish(self, raw_properties: bytes, contents: Sequence[bytes]) -> None: ...


def test_a_full_cache_of_publish_targets_is_kept_for_a_while_before_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.protocol.server_connection.PUBLISH_TARGETS_BYTES", 2)
    monkeypatch.setattr("holtmq.protocol.server_connection.TARGETS_LEFT_OUT", 3)
    resolver = Resolver()
    connection = ServerConnection(resolver, Limits())
    connection.receive(handshake() + method_frame(1, wire.ChannelOpen()))
    resolver.seen.clear()
    for key in ("a", "b", "c", "a", "c", "b", "d", "d", "a"):
        connection.receive(publish(1, key, b"m"))
    assert resolver.seen == ["a", "b", "c", "c", "d", "a"]  # with the first d, all others are forgotten


@given(st.lists(st.integers(0, 10**6), max_size=200))
def test_slices_make_no_difference(cuts: list[int]) -> None:
    recorder, connection, output = receive(session(), cuts)
    assert recorder.seen == WHOLE[0].seen
    assert output == WHOLE[2]
    assert connection.state == ConnectionState.OPEN


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_slices_make_no_difference_to_large_headers_and_bodies(cuts: list[int]) -> None:
    properties = encode_properties({"headers": {"large": "x" * 20_000}})
    sizes = (0, 1, 50_000, 3, 0, 100_000, 20_000, 300_000, 60_000, 60_000)
    parts = [handshake(131_072), method_frame(1, wire.ChannelOpen())]
    for size in sizes:
        content = on_channel(make_content(properties, bytes(size)), 1, 131_072)
        parts.append(method_frame(1, wire.BasicPublish(0, "", "key")) + content)
    recorder, connection, _ = receive(b"".join(parts), cuts)
    assert [entry[1:4] for entry in recorder.seen if len(entry) == 6] == [("key", properties, bytes(size)) for size in sizes]
    assert connection.state == ConnectionState.OPEN


RUN_OF_MESSAGES = [publish(1, "key", bytes((number,)) * 50) for number in range(8)]
RUN_OF_ACKS = [method_frame(1, wire.BasicAck(tag, tag == 6)) for tag in range(1, 9)]


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_slices_make_no_difference_to_messages_and_acks_in_a_row(cuts: list[int]) -> None:
    parts = [handshake(), method_frame(1, wire.ChannelOpen()), *RUN_OF_MESSAGES, *RUN_OF_ACKS, *RUN_OF_MESSAGES[:2]]
    recorder, _, _ = receive(b"".join(parts), cuts)
    bodies = [bytes((number,)) * 50 for number in (*range(8), 0, 1)]
    assert [entry[3] for entry in recorder.seen if entry[1] == "key"] == bodies
    assert [entry[2:] for entry in recorder.seen if entry[1] == "ack"] == [(tag, tag == 6) for tag in range(1, 9)]


ALIKE = [
    method_frame(channel, wire.BasicPublish(0, exchange, key, is_mandatory)) + on_channel(content, channel, 4096)
    for channel, exchange, key, is_mandatory, content in itertools.product(
        (1, 2),
        ("", "x"),
        ("a", "b", "longer", "ü"),
        (False, True),
        (
            make_content(b"\x10\0\x01", b"one"),
            make_content(b"\x10\0\x01", b"two"),
            make_content(b"\x10\0\x01", b"three"),
            make_content(b"\x10\0\x02", b"one"),
            make_content(b"\x80\0\x04text", b"one"),
            make_content(bytes(2), b""),
        ),
    )
]
"""Messages that differ from each other in channel, exchange, routing key, flags, properties or body."""
ONE_TARGET = 6
"""Number of messages at the start of the list that differ only in properties and body."""
CHOICES = st.sampled_from(range(len(ALIKE))) | st.sampled_from(range(ONE_TARGET))


@settings(max_examples=300)
@given(st.lists(CHOICES, max_size=30), st.lists(st.integers(0, 10**6), max_size=5))
def test_messages_that_are_partly_alike_are_told_apart(chosen: list[int], cuts: list[int]) -> None:
    start = handshake() + method_frame(1, wire.ChannelOpen()) + method_frame(2, wire.ChannelOpen())
    recorder, connection, _ = receive(start + b"".join(ALIKE[place] for place in chosen), cuts)
    expected = [each for place in chosen for each in receive(start + ALIKE[place], [])[0].seen[2:]]
    assert recorder.seen[2:] == expected
    assert connection.state == ConnectionState.OPEN


@settings(max_examples=300)
@given(st.lists(CHOICES, min_size=2, max_size=6), st.integers(0, 10**6), st.integers(1, 255))
def test_a_damaged_byte_among_messages_that_are_alike_has_the_same_effect_as_in_slices(
    chosen: list[int], place: int, change: int
) -> None:
    start = handshake() + method_frame(1, wire.ChannelOpen()) + method_frame(2, wire.ChannelOpen())
    messages = bytearray(b"".join(ALIKE[number] for number in chosen))
    messages[place % len(messages)] ^= change
    data = start + messages
    recorder, connection, output = receive(data, [])
    in_slices, same, same_output = receive(data, list(range(len(data))))
    assert recorder.seen == in_slices.seen
    assert (connection.state, output) == (same.state, same_output)


def test_a_message_that_is_refused_ends_the_row_of_its_channel() -> None:
    row = [ALIKE[0], ALIKE[1], ALIKE[3], ALIKE[0], ALIKE[4], ALIKE[4]]
    recorder = Refusing(b"\x10\0\x02")
    connection = ServerConnection(recorder, Limits())
    start = handshake() + method_frame(1, wire.ChannelOpen()) + method_frame(2, wire.ChannelOpen())
    other = method_frame(2, wire.BasicPublish(0, "", "other")) + make_content(bytes(2), b"x", 2)
    again = method_frame(1, wire.ChannelCloseOk()) + method_frame(1, wire.ChannelOpen()) + ALIKE[1]
    connection.receive(start + b"".join(row) + other + again)
    bodies = [entry[3] for entry in recorder.seen if len(entry) == 6]
    assert bodies == [b"one", b"two", b"x", b"two"]
    assert b"PRECONDITION_FAILED - refused" in b"".join(connection.output)


@pytest.mark.parametrize(("run", "kind"), [(RUN_OF_MESSAGES, "key"), (RUN_OF_ACKS, "ack")])
def test_damaged_frame_in_a_row_closes_the_connection_after_those_before_it(run: list[bytes], kind: str) -> None:
    damaged = [*run[:3], run[3][:-1] + b"\x00", *run[4:]]
    recorder, connection, output = receive(handshake() + method_frame(1, wire.ChannelOpen()) + b"".join(damaged), [])
    assert len([entry for entry in recorder.seen if entry[1] == kind]) == 3
    assert connection.state == ConnectionState.CLOSING
    assert b"FRAME_ERROR" in output


@pytest.mark.parametrize("at", [-1, -60_008, -60_009])
def test_damaged_frame_of_a_large_message_closes_the_connection(at: int) -> None:
    message = bytearray(method_frame(1, wire.BasicPublish(0, "", "key")) + make_content(bytes(2), bytes(60_000)))
    start = handshake(131_072) + method_frame(1, wire.ChannelOpen()) + message
    message[at] ^= 0xFF
    recorder, connection, output = receive(start + message + message, [len(start)])
    assert len([entry for entry in recorder.seen if len(entry) == 6]) == 1
    assert connection.state == ConnectionState.CLOSING
    assert b"FRAME" in output


def test_byte_by_byte_makes_no_difference() -> None:
    data = session()
    recorder, _, output = receive(data, list(range(len(data))))
    assert recorder.seen == WHOLE[0].seen
    assert output == WHOLE[2]


def test_channels_may_interleave_their_content() -> None:
    one, other = publish(1, "a", bytes(9000)), publish(2, "b", b"x" * 9000)
    frames = [list(cut(one)), list(cut(other))]
    mixed = b"".join(piece for pair in zip(*frames, strict=True) for piece in pair)
    recorder, _, _ = receive(
        handshake() + method_frame(1, wire.ChannelOpen()) + method_frame(2, wire.ChannelOpen()) + mixed, []
    )
    assert [(entry[1], entry[3]) for entry in recorder.seen if len(entry) == 6] == [("a", bytes(9000)), ("b", b"x" * 9000)]


def cut(data: bytes) -> list[bytes]:
    """Split bytes into frames."""
    frames, at = [], 0
    while at < len(data):
        after = at + FRAME_START.unpack_from(data, at)[2] + 8
        frames.append(data[at:after])
        at = after
    return frames


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 8))
def test_a_mutated_session_ends_in_a_close_with_a_code_or_goes_on(seed: int, changes: int) -> None:
    chance = random.Random(seed)
    data = bytearray(session())
    for _ in range(changes):
        place = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                data[place] = chance.randrange(256)
            case 1:
                del data[place : place + chance.randrange(1, 20)]
            case _:
                data[place:place] = chance.randbytes(chance.randrange(1, 20))
    _, connection, output = receive(bytes(data), [chance.randrange(len(data)) for _ in range(5)])
    assert_is_well_formed(output, connection)


@given(st.binary(max_size=300))
def test_any_bytes_after_the_handshake_end_well(data: bytes) -> None:
    _, connection, output = receive(handshake() + method_frame(1, wire.ChannelOpen()) + data, [])
    assert_is_well_formed(output, connection)


@given(
    st.lists(
        st.tuples(st.sampled_from([METHOD, HEADER, BODY, HEARTBEAT, 9]), st.integers(0, 3), st.binary(max_size=60)), max_size=12
    )
)
def test_any_frames_after_the_handshake_end_well(frames: list[tuple[int, int, bytes]]) -> None:
    data = b"".join(frame(*one) for one in frames)
    _, connection, output = receive(handshake() + method_frame(1, wire.ChannelOpen()) + data, [])
    assert_is_well_formed(output, connection)


def assert_is_well_formed(output: bytes, connection: ServerConnection) -> None:
    """Check that the output consists of valid method frames, and that a close has a reply code."""
    if output.endswith(PROTOCOL_HEADER):
        assert connection.state == ConnectionState.CLOSED
        return
    methods = [decode_method(piece[7:-1]) for piece in cut(output)]
    closes = [method for method in methods if isinstance(method, wire.ConnectionClose)]
    assert len(closes) <= 1
    if connection.state == ConnectionState.CLOSING:
        assert closes[0].reply_code in (501, 502, 503, 504, 505, 530, 540)
        assert methods[-1] == closes[0]


def test_input_with_many_methods_is_carried_out_in_several_calls() -> None:
    handler, connection, _ = receive(handshake() + method_frame(1, wire.ChannelOpen("")), [])
    connection.methods_at_once = 3
    methods = [wire.QueuePurge(0, str(number), False) for number in range(7)]
    seen = len(handler.seen)
    connection.receive(b"".join(method_frame(1, method) for method in methods))
    carried_out = [len(handler.seen) - seen]
    while connection.has_given_way:
        connection.receive(b"")
        carried_out.append(len(handler.seen) - seen)
    assert carried_out == [3, 6, 7]
    assert handler.seen[seen:] == [(1, method) for method in methods]
