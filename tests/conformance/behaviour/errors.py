"""Errors that close a channel or a connection, and their reply codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties
from holtmq.wire.frames import BODY, FRAME_START, HEADER, METHOD, frame, method_frame
from holtmq.wire.tables import encode_value, long_string, short_string
from tests.amqp_client import Amqp, ClosedError, heartbeat, raw_socket
from tests.conformance.behaviour.rule import Scene, closing, code, rule

SECTION = "Errors"


def _after(scene: Scene, data: bytes, closing: Callable[[Callable[[], Any]], Any] = closing) -> object:
    """Return what the broker does about some bytes on an open connection with one channel."""
    amqp = scene.connect()
    amqp.channel()
    amqp.write(data)
    return closing(lambda: amqp.next_event(1))


def _published_with(scene: Scene, fields: bytes) -> object:
    """Return what the broker does about a message with these headers."""
    channel = scene.channel()
    channel.publish_raw("amq.direct", "k", encode_properties({"headers": long_string(fields)}), b"m")
    return closing(channel.settle)


@rule(
    SECTION,
    "a protocol header of another version: the broker answers with its own and closes the socket",
    b"AMQP\x00\x00\x09\x01",
)
def other_version(scene: Scene) -> object:
    with raw_socket(scene.port) as connection:
        connection.sendall(b"AMQP\x00\x01\x00\x00")
        return connection.recv(8)


@rule(SECTION, "a wrong password, from a client with the capability authentication_failure_close", ("connection", 403))
def wrong_password(scene: Scene) -> object:
    try:
        Amqp(scene.port, password="wrong")
    except ClosedError as error:
        return error.scope, error.code
    return "logged in"


@rule(SECTION, "a wrong password, from a client without that capability: the socket closes", "hung up")
def wrong_password_silent(scene: Scene) -> object:
    try:
        Amqp(scene.port, password="wrong", capabilities={})
    except (ConnectionResetError, BrokenPipeError):
        return "hung up"
    return "logged in"


@rule(SECTION, "a vhost that does not exist", ("connection", 530, (10, 40)))
def missing_vhost(scene: Scene) -> object:
    return closing(lambda: Amqp(scene.port, vhost="no-such-vhost"))


@rule(SECTION, "a frame larger than frame_max, before its payload has arrived", 501)
def large_frame(scene: Scene) -> object:
    return _after(scene, FRAME_START.pack(METHOD, 1, 1_000_000), closing=code)


@rule(SECTION, "a frame without the frame-end octet", 501)
def no_end_mark(scene: Scene) -> object:
    return _after(scene, method_frame(1, wire.BasicQos(0, 0, False))[:-1] + b"\x00" * 100, closing=code)


@rule(SECTION, "a frame of an unknown type", 501)
def unknown_type(scene: Scene) -> object:
    return _after(scene, frame(7, 1, b"abc"), closing=code)


@rule(SECTION, "an unknown method", 503, rabbitmq="hung up")
def unknown_method(scene: Scene) -> object:
    return _after(scene, frame(METHOD, 1, b"\x00\x3c\x03\xe7"), closing=code)


@rule(SECTION, "a method on a channel that is not open", ("connection", 504, (60, 10)))
def channel_not_open(scene: Scene) -> object:
    return _after(scene, method_frame(9, wire.BasicQos(0, 1, False)))


@rule(SECTION, "opening a channel twice", 504)
def channel_twice(scene: Scene) -> object:
    return _after(scene, method_frame(1, wire.ChannelOpen()), closing=code)


@rule(SECTION, "a body without a header", 505)
def body_first(scene: Scene) -> object:
    return _after(scene, frame(BODY, 1, b"abc"), closing=code)


@rule(SECTION, "a header without a method", 505)
def header_first(scene: Scene) -> object:
    return _after(scene, frame(HEADER, 1, b"\x00\x3c" + bytes(12)), closing=code)


@rule(SECTION, "a method in place of content", 505)
def method_in_content(scene: Scene) -> object:
    publish = method_frame(1, wire.BasicPublish(0, "", "k"))
    return _after(scene, publish + method_frame(1, wire.BasicQos(0, 1, False)), closing=code)


@rule(SECTION, "a body longer than its header says", 501, rabbitmq="nothing closed")
def long_body(scene: Scene) -> object:
    publish = method_frame(1, wire.BasicPublish(0, "", "k"))
    header = frame(HEADER, 1, b"\x00\x3c\x00\x00" + (2).to_bytes(8, "big") + b"\x00\x00")
    amqp = scene.connect()
    amqp.channel()
    amqp.write(publish + header + frame(BODY, 1, b"abc"))
    return code(lambda: amqp.channel(2))


@rule(SECTION, "a routing key that is not UTF-8", ("connection", 501, (0, 0)), rabbitmq="nothing closed")
def key_that_is_not_utf8(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish_raw("amq.direct", "k\udcff", b"\x00\x00", b"m")
    return closing(channel.settle)


@rule(SECTION, "a header whose name is not UTF-8", "nothing closed")
def header_that_is_not_utf8(scene: Scene) -> object:
    return _published_with(scene, b"\x01\xffV")


@rule(SECTION, "the same in a message with CC or BCC", ("connection", 501, (60, 40)), rabbitmq="nothing closed")
def header_beside_cc_that_is_not_utf8(scene: Scene) -> object:
    return _published_with(scene, b"\x01\xffV" + short_string("CC") + encode_value(["k"]))


@rule(SECTION, "content on channel 0", 505)
def content_on_zero(scene: Scene) -> object:
    return _after(scene, frame(HEADER, 0, b"\x00\x3c" + bytes(12)), closing=code)


@rule(SECTION, "channel.flow that asks the broker to stop", ("connection", 540, (20, 20)))
def flow(scene: Scene) -> object:
    return _after(scene, method_frame(1, wire.ChannelFlow(active=False)))


@rule(SECTION, "a frame_max below the minimum", ("connection", 530, (10, 31)), rabbitmq="hung up")
def small_frame_max(scene: Scene) -> object:
    return closing(lambda: Amqp(scene.port, frame_max=100))


@rule(SECTION, "a channel_max above the broker's", ("connection", 530, (10, 31)), rabbitmq="hung up")
def large_channel_max(scene: Scene) -> object:
    return closing(lambda: Amqp(scene.port, channel_max=65_535))


@rule(
    SECTION, "after a channel error the channel ignores what follows, and the connection stays open",
    (("channel", 404, (60, 40)), [b"other channel", b"reopened"]),
)  # fmt: skip
def channel_after_error(scene: Scene) -> object:
    amqp, queue = scene.connect(), scene.queue()
    channel = amqp.channel(1)
    channel.declare(queue)
    channel.publish("no-such-exchange", "k")
    for _ in range(3):
        channel.publish("", queue, b"ignored")
    closed = closing(channel.settle)
    amqp.channel(2).put(queue, b"other channel")
    channel = amqp.channel(1)
    channel.put(queue, b"reopened")
    return closed, channel.drain(queue)


@rule(SECTION, "an unknown SASL mechanism", 503, rabbitmq="hung up")
def unknown_mechanism(scene: Scene) -> object:
    return code(lambda: Amqp(scene.port, mechanism="MAGIC"))


@rule(SECTION, "a malformed PLAIN response", 502, rabbitmq="hung up")
def malformed_plain(scene: Scene) -> object:
    return code(lambda: Amqp(scene.port, response=b"guest:guest"))


@rule(SECTION, "logging in by AMQPLAIN", [b"from guest"])
def amqplain(scene: Scene) -> object:
    from holtmq.wire.tables import encode_table

    response = encode_table({"LOGIN": "guest", "PASSWORD": "guest"})[4:]
    channel, queue = scene.channel(mechanism="AMQPLAIN", response=response), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"from guest", user_id="guest")
    return channel.drain(queue)


@rule(SECTION, "a heartbeat on a channel", 505)
def heartbeat_on_channel(scene: Scene) -> object:
    return _after(scene, heartbeat(1), closing=code)
