"""The client's side of a connection, wired in memory to the server's side: no sockets, and slices of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import (
    AmqpError,
    CommandInvalidError,
    FrameError,
    LoginRefusedError,
    NotAllowedError,
    NotFoundError,
    UnexpectedFrameError,
)
from holtmq.protocol.client_connection import (
    ClientConnection,
    ClientOptions,
    ClientState,
    Delivery,
    ReceivedMethod,
    Settlement,
)
from holtmq.protocol.connection_handler import AckTarget, PublishTarget
from holtmq.protocol.server_channel import ServerChannel
from holtmq.protocol.server_connection import ConnectionState, Limits, ServerConnection
from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel, sizes_of
from holtmq.wire.frames import BODY, FRAME_START, HEADER, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, frame, method_frame
from holtmq.wire.methods import Method
from holtmq.wire.tables import short_string

Cuts = list[int]
CUTS = st.lists(st.integers(1, 400), min_size=1, max_size=20)
"""The lengths of slices, used over and over."""
WHOLE = [10**9]
PROPERTIES = encode_properties({"content_type": "text/plain", "delivery_mode": 2})


class Acks:
    """The broker's side of a channel, which remembers acks."""

    def __init__(self) -> None:
        self.tags: list[tuple[int, bool]] = []

    def ack_each(self, tags: Sequence[int]) -> None:
        for tag in tags:
            self.ack(tag, multiple=False)

    def ack(self, tag: int, *, multiple: bool) -> None:
        self.tags.append((tag, multiple))


@dataclass
class PublishedTo:
    """A target that records what is published to it."""

    routing_key: str
    published: list[tuple[str, bytes, int]]
    memory: int = 0

    def with_key(self, routing_key: str, address: bytes) -> PublishedTo:
        return PublishedTo(routing_key, self.published)

    def publish(self, raw_properties: bytes, contents: Sequence[bytes]) -> None:
        self.published += [(self.routing_key, raw_properties, size) for size in sizes_of(raw_properties, contents)]


@dataclass
class Handler:
    """A server's handler that refuses what it is told to refuse."""

    refusal: AmqpError | None = None
    server_properties: Mapping[str, FieldValue] = field(default_factory=lambda: {"product": "test"})
    mechanisms: str = "PLAIN"
    entered: list[tuple[str, bytes, str]] = field(default_factory=list)
    heartbeat_s: int | None = None
    published: list[tuple[str, bytes, int]] = field(default_factory=list)
    channels: dict[int, ServerChannel] = field(default_factory=dict)
    acks: Acks = field(default_factory=Acks)
    _login: tuple[str, bytes] = ("", b"")

    def has_output(self) -> None: ...
    def update_secret(self, secret: bytes) -> None: ...
    def close_channel(self, channel: ServerChannel) -> None: ...

    def log_in(self, mechanism: str, response: bytes, client_properties: Mapping[str, FieldValue]) -> bool:
        self._login = (mechanism, response)
        if isinstance(self.refusal, LoginRefusedError):
            raise self.refusal
        return True

    def tuned(self, heartbeat_s: int) -> None:
        self.heartbeat_s = heartbeat_s

    def enter(self, vhost: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.entered.append((*self._login, vhost))

    def open_channel(self, channel: ServerChannel) -> AckTarget:
        self.channels[channel.number] = channel
        return self.acks

    def publication(self, channel: ServerChannel, method: wire.BasicPublish) -> PublishTarget:
        return PublishedTo(method.routing_key, self.published)

    def carry_out(self, channel: ServerChannel, method: Method) -> None:
        raise NotFoundError("no queue 'q'")


class Wire:
    """A client and a server, connected by nothing but calls."""

    def __init__(
        self,
        cuts: Cuts = WHOLE,
        options: ClientOptions = ClientOptions(),  # noqa: B008  # frozen
        refusal: AmqpError | None = None,
    ) -> None:
        self.cuts = cuts
        self.handler = Handler(refusal)
        self.client = ClientConnection(options)
        self.server = ServerConnection(self.handler, Limits())
        self.exchange()

    def exchange(self) -> None:
        """Pass bytes in both directions until both sides are silent."""
        while True:
            to_server = self.client.take_output()
            self._pass(to_server, self.server.receive)
            to_client = b"".join(self.server.take_output())
            self._pass(to_client, self.client.receive)
            if not to_server and not to_client:
                return

    def call(self, channel: int, method: Method) -> list[object]:
        self.client.send(channel, method)
        self.exchange()
        return list(self.client.take_events())

    def _pass(self, data: bytes, receive: Callable[[bytes], None]) -> None:
        at, number = 0, 0
        while at < len(data):
            size = self.cuts[number % len(self.cuts)]
            receive(data[at : at + size])
            at, number = at + size, number + 1


@dataclass
class Origin:
    exchange: str
    routing_key: str

    @property
    def address(self) -> bytes:
        return short_string(self.exchange) + short_string(self.routing_key) + b"\xce"

    @address.setter
    def address(self, value: bytes) -> None: ...


@dataclass
class Message:
    id: int
    content: bytes
    origin: Origin


@dataclass
class Subscriber:
    tag: str


def messages(bodies: Iterable[bytes]) -> list[Message]:
    return [
        Message(number, make_content(PROPERTIES, body), Origin("orders", f"key.{number}")) for number, body in enumerate(bodies)
    ]


@given(CUTS)
def test_the_handshake_completes_in_slices_of_any_size(cuts: Cuts) -> None:
    options = ClientOptions("clerk", "secret", "shop", frame_max=8192, channel_max=7, heartbeat_s=30)
    wired = Wire(cuts, options)
    assert wired.client.is_open
    assert wired.server.state == ConnectionState.OPEN
    assert wired.handler.entered == [("PLAIN", b"\0clerk\0secret", "shop")]
    assert wired.client.start.server_properties == {"product": "test"}
    assert (wired.client.frame_max, wired.client.channel_max, wired.handler.heartbeat_s) == (8192, 7, 30)
    assert (wired.server.frame_max, wired.server.channel_max) == (8192, 7)
    assert wired.server.can_be_blocked
    assert wired.client.take_events() == []


def test_the_servers_limits_are_accepted_by_default() -> None:
    wired = Wire()
    assert (wired.client.frame_max, wired.client.channel_max) == (Limits().frame_size, Limits().channels)


@pytest.mark.parametrize(
    ("refusal", "code"), [(LoginRefusedError("no"), 403), (NotAllowedError("vhost 'shop' not found"), 530)]
)
def test_a_refused_login_is_an_event_and_closes_both_sides(refusal: AmqpError, code: int) -> None:
    wired = Wire(refusal=refusal)
    (event,) = wired.client.take_events()
    assert isinstance(event, ReceivedMethod)
    assert isinstance(event.method, wire.ConnectionClose)
    assert event.method.reply_code == code
    assert wired.client.state == ClientState.CLOSED
    assert wired.server.state == ConnectionState.CLOSED


def test_limits_that_the_server_refuses_are_reported_even_if_its_answer_exceeds_them() -> None:
    wired = Wire(options=ClientOptions(frame_max=10))
    (event,) = wired.client.take_events()
    assert isinstance(event, ReceivedMethod)
    assert isinstance(event.method, wire.ConnectionClose)
    assert event.method.reply_code == 530


@given(CUTS, st.lists(st.integers(0, 12_000), max_size=8))
def test_deliveries_arrive_whole_and_in_order(cuts: Cuts, sizes: list[int]) -> None:
    wired = Wire(cuts, ClientOptions(frame_max=4096))
    wired.call(1, wire.ChannelOpen())
    channel = wired.handler.channels[1]
    bodies = [bytes((number,)) * size for number, size in enumerate(sizes)]
    channel.deliver(Subscriber("c"), 5, messages(bodies), {1})
    channel.confirm(9, multiple=True)
    channel.refuse(10)
    channel.give_back(messages([b"returned"])[0])
    channel.send_content(wire.BasicGetOk(1, False, "orders", "k", 0), make_content(PROPERTIES, b"got"))
    wired.exchange()
    assert wired.client.take_events() == [
        *(
            Delivery(5 + number, number == 1, "orders", f"key.{number}", PROPERTIES, body, "c", 1)
            for number, body in enumerate(bodies)
        ),
        Settlement(9, True, True, 1),
        Settlement(10, False, False, 1),
        ReceivedMethod(1, wire.BasicReturn(312, "NO_ROUTE", "orders", "key.0"), PROPERTIES, b"returned"),
        ReceivedMethod(1, wire.BasicGetOk(1, False, "orders", "k", 0), PROPERTIES, b"got"),
    ]


def test_texts_that_are_not_utf8_are_escaped() -> None:
    client = Wire().client
    content = make_content(PROPERTIES, b"m")
    for method in (wire.BasicDeliver("c", 1, False, "", "k\udcff"), wire.BasicReturn(312, "NO_ROUTE", "", "k\udcff")):
        client.receive(method_frame(1, method, "surrogateescape") + content)
    assert client.take_events() == [
        Delivery(1, False, "", "k\udcff", PROPERTIES, b"m", "c", 1),
        ReceivedMethod(1, wire.BasicReturn(312, "NO_ROUTE", "", "k\udcff"), PROPERTIES, b"m"),
    ]


def test_content_of_several_channels_may_interleave() -> None:
    client = Wire().client
    parts = []
    for channel, body in ((1, b"a" * 10_000), (2, b"b" * 10_000)):
        deliver = method_frame(channel, wire.BasicDeliver(f"c{channel}", 1, False, "", "k"))
        parts.append(split(deliver + on_channel(make_content(PROPERTIES, body), channel, 4096)))
    client.receive(b"".join(piece for pair in zip(*parts, strict=True) for piece in pair))
    assert [(event.channel, event.consumer_tag, event.body[:1]) for event in deliveries(client)] == [
        (1, "c1", b"a"),
        (2, "c2", b"b"),
    ]


def split(data: bytes) -> list[bytes]:
    frames, at = [], 0
    while at < len(data):
        after = at + FRAME_START.unpack_from(data, at)[2] + 8
        frames.append(data[at:after])
        at = after
    return frames


def deliveries(client: ClientConnection) -> list[Delivery]:
    return [event for event in client.take_events() if isinstance(event, Delivery)]


def test_publishes_and_acks_reach_the_server() -> None:
    wired = Wire()
    wired.call(1, wire.ChannelOpen())
    wired.client.send(1, wire.BasicPublish(0, "", "q"))
    wired.server.receive(wired.client.take_output() + on_channel(make_content(PROPERTIES, b"body"), 1, 4096))
    wired.call(1, wire.BasicAck(3, True))
    assert wired.handler.published == [("q", PROPERTIES, 4)]
    assert wired.handler.acks.tags == [(3, True)]


def test_a_channel_that_the_server_closes_can_be_opened_again() -> None:
    wired = Wire()
    assert wired.call(1, wire.ChannelOpen()) == [ReceivedMethod(1, wire.ChannelOpenOk())]
    (event,) = wired.call(1, wire.QueueDeclare(0, "q"))
    assert isinstance(event, ReceivedMethod)
    assert isinstance(event.method, wire.ChannelClose)
    assert (event.method.reply_code, event.method.reply_text) == (404, "NOT_FOUND - no queue 'q'")
    assert wired.server.channels == {}
    assert wired.call(1, wire.ChannelOpen()) == [ReceivedMethod(1, wire.ChannelOpenOk())]


def test_a_close_by_the_client_closes_both_sides() -> None:
    wired = Wire()
    wired.client.close()
    wired.client.close()
    wired.exchange()
    assert wired.client.state == ClientState.CLOSED
    assert wired.server.state == ConnectionState.CLOSED


def test_what_follows_a_close_is_ignored() -> None:
    client = Wire().client
    close = wire.ConnectionClose(320, "CONNECTION_FORCED", 0, 0)
    client.receive(method_frame(0, close) + b"not a frame")
    client.receive(b"not a frame either")
    assert client.take_events() == [ReceivedMethod(0, close)]


def test_blocking_is_an_event() -> None:
    wired = Wire()
    wired.server.block("the disk is full")
    wired.server.unblock()
    wired.exchange()
    assert wired.client.take_events() == [
        ReceivedMethod(0, wire.ConnectionBlocked("the disk is full")),
        ReceivedMethod(0, wire.ConnectionUnblocked()),
    ]


def test_heartbeats_are_counted() -> None:
    client = Wire().client
    client.receive(HEARTBEAT_FRAME * 2)
    assert (client.heartbeats_received, client.take_events()) == (2, [])


@given(CUTS)
def test_a_server_of_another_version_is_recognised(cuts: Cuts) -> None:
    wired = Wire(cuts)
    wired.client = ClientConnection(ClientOptions())
    wired.server.send(b"AMQP\x00\x01\x00\x00")
    with pytest.raises(CommandInvalidError, match="expected a server for AMQP 0-9-1"):
        wired.exchange()


def test_what_is_not_parsed_yet_can_be_taken() -> None:
    client = Wire().client
    client.receive(HEARTBEAT_FRAME + HEARTBEAT_FRAME[:5])
    assert client.take_rest() == HEARTBEAT_FRAME[:5]


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (FRAME_START.pack(METHOD, 1, 200_000), FrameError, "frames of at most 131072 bytes, got 200008"),
        (frame(METHOD, 1, b"")[:-1] + b"\0", FrameError, "to end with 0xce, got 0x0"),
        (frame(9, 1, b""), FrameError, "type 1, 2, 3 or 8, got type 9"),
        (frame(HEADER, 1, bytes(14)), UnexpectedFrameError, "expected a method on channel 1, got a content header"),
        (frame(BODY, 1, b"x"), UnexpectedFrameError, "got a body"),
        (frame(METHOD, 1, bytes((0, 60, 0, 60, 255))) + frame(HEADER, 1, bytes(14)), FrameError, "basic.deliver"),
        (
            method_frame(1, wire.BasicReturn(312, "NO_ROUTE", "", "k")) + method_frame(1, wire.BasicAck(1, False)),
            UnexpectedFrameError,
            "expected content on channel 1",
        ),
    ],
)
def test_bytes_that_are_not_amqp_are_errors(data: bytes, error: type[AmqpError], text: str) -> None:
    client = Wire().client
    with pytest.raises(error, match=text):
        client.receive(data)


def test_methods_before_the_handshake_is_over_are_errors() -> None:
    client = ClientConnection(ClientOptions())
    assert client.take_output() == PROTOCOL_HEADER
    with pytest.raises(CommandInvalidError, match=r"unexpected connection\.tune while waiting for connection\.start"):
        client.receive(method_frame(0, wire.ConnectionTune(1, 4096, 0)))
    with pytest.raises(CommandInvalidError, match=r"unexpected channel\.open-ok while waiting for connection\.start"):
        ClientConnection(ClientOptions()).receive(method_frame(1, wire.ChannelOpenOk()))


@pytest.mark.parametrize("method", [wire.BasicDeliver("c", 1, False, "", "q"), wire.BasicAck(1), wire.BasicNack(1)])
def test_deliveries_and_confirms_before_the_handshake_is_over_are_errors(method: Method) -> None:
    content = on_channel(make_content(PROPERTIES, b"x"), 1, 4096)
    with pytest.raises(CommandInvalidError, match=r"while waiting for connection\.start"):
        ClientConnection(ClientOptions()).receive(method_frame(1, method) + content)


@given(st.binary(max_size=200))
def test_any_bytes_are_events_or_an_amqp_error(data: bytes) -> None:
    client = Wire().client
    try:
        client.receive(data)
    except AmqpError:
        return
    assert client.take_rest() == data or client.heartbeats_received or client.take_events()
