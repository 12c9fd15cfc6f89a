"""Deliveries of a stream: a row of messages is the same bytes as the messages one by one."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.broker.stream_row import StreamRow
from holtmq.protocol.server_channel import ServerChannel
from holtmq.protocol.server_connection import Limits, ServerConnection
from holtmq.queueing.offset_header import offset_header
from holtmq.wire.content import Properties, encode_properties


class Handler:
    def has_output(self) -> None: ...


class Subscriber:
    def __init__(self, tag: str) -> None:
        self.tag = tag


def sent(number: int, frame_max: int, deliver: Any) -> bytes:
    connection = ServerConnection(cast("Any", Handler()), Limits())
    connection.frame_max = frame_max
    deliver(ServerChannel(connection, number))
    return b"".join(connection.take_output())


@given(
    st.integers(0, 40).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=9)),
    st.text(max_size=20),
    st.integers(1, 2047),
    st.integers(1, 2**40),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)
def test_a_row_is_sent_as_its_messages_are(
    bodies: list[bytes], key: str, channel: int, first: int, headers: dict[str, str]
) -> None:
    check(bodies, key, channel, first, headers, 4096)


@pytest.mark.parametrize("size", [4000, 4088, 4089, 20_000])
def test_bodies_in_several_frames_are_sent_as_well(size: int) -> None:
    check([bytes((number,)) * size for number in range(3)], "k", 3, 70_000, {}, 4096)


def check(bodies: list[bytes], key: str, channel: int, first: int, headers: dict[str, str], frame_max: int) -> None:
    origin, consumer = Origin("x", key), Subscriber("tag")
    frames = offset_header(encode_properties({"headers": headers})).frames(len(bodies[0]), channel)
    row = StreamRow(origin, frames, first, bodies)
    contents = [frames.content(first + place, body) for place, body in enumerate(bodies)]
    messages = [
        QueuedMessage(first + place, origin, Properties(bytes(2)), content, len(bodies[0]), 1)
        for place, content in enumerate(contents)
    ]
    together = sent(channel, frame_max, lambda one: one.deliver_row(consumer, 17, row))
    assert together == sent(channel, frame_max, lambda one: one.deliver(consumer, 17, messages, ()))
