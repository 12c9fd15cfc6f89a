"""Content: the codec for properties, and frames that move to another channel."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pamqp.commands
import pamqp.header
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import FrameError
from holtmq.wire.content import (
    Properties,
    body_of,
    encode_properties,
    make_content,
    on_channel,
    raw_properties_of,
)
from holtmq.wire.frames import BODY, FRAME_START, HEADER, OVERHEAD

texts = st.text(max_size=20)
properties = st.fixed_dictionaries(
    {},
    optional={
        "content_type": texts,
        "headers": st.dictionaries(texts, st.integers(0, 100) | texts, max_size=3),
        "delivery_mode": st.sampled_from([1, 2]),
        "priority": st.integers(0, 255),
        "correlation_id": texts,
        "expiration": texts,
        "timestamp": st.just(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)),
        "user_id": texts,
        "app_id": texts,
    },
)


@given(properties)
def test_properties_come_back_as_they_were(given_: dict[str, Any]) -> None:
    raw = encode_properties(given_)
    read = Properties(raw)
    assert read.to_dict() == given_
    assert read.is_persistent == (given_.get("delivery_mode") == 2)
    assert read.headers == given_.get("headers", {})


def test_properties_need_not_be_utf8() -> None:
    raw = encode_properties({"content_type": "a\udcff", "message_id": "\udcfe"})
    assert b"a\xff" in raw
    assert Properties(raw).to_dict() == {"content_type": "a\udcff", "message_id": "\udcfe"}
    assert encode_properties(Properties(raw).to_dict()) == raw


def test_another_codec_writes_the_same_properties() -> None:
    ours: dict[str, Any] = {
        "content_type": "text/plain",
        "headers": {"a": "b"},
        "delivery_mode": 2,
        "priority": 4,
        "message_id": "m",
    }
    theirs = pamqp.commands.Basic.Properties(**ours)
    header = pamqp.header.ContentHeader(body_size=3, properties=theirs).marshal()
    assert header[12:] == encode_properties(ours)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_properties_are_refused(raw: bytes) -> None:
    try:
        Properties(raw).to_dict()
    except FrameError:
        return


@given(st.binary(max_size=20_000), st.integers(1, 65_535), st.integers(4096, 10_000))
def test_content_on_another_channel_says_the_same_in_frames_that_fit(body: bytes, channel: int, frame_max: int) -> None:
    raw = encode_properties({"delivery_mode": 2, "message_id": "m"})
    content = make_content(raw, body)
    assert (raw_properties_of(content), body_of(content)) == (raw, body)
    frames, at, pieces = on_channel(content, channel, frame_max), 0, []
    while at < len(frames):
        kind, number, size = FRAME_START.unpack_from(frames, at)
        assert (kind, number) == (HEADER if at == 0 else BODY, channel)
        assert size + OVERHEAD <= frame_max or kind == HEADER
        assert frames[at + size + OVERHEAD - 1] == 0xCE
        if kind == BODY:
            pieces.append(frames[at + FRAME_START.size : at + FRAME_START.size + size])
        at += size + OVERHEAD
    assert b"".join(pieces) == body


def test_flags_beyond_the_properties_of_class_basic_are_refused() -> None:
    with pytest.raises(FrameError, match="flags"):
        Properties(b"\x00\x01")


@given(st.binary(min_size=2, max_size=40) | st.tuples(properties, st.integers(0, 60)).map(lambda drawn: changed(*drawn)))
def test_what_a_queue_needs_of_properties_is_what_all_of_them_are_decoded_to(raw: bytes) -> None:
    try:
        read = Properties(raw)
    except FrameError:
        return  # the next test shows which must be refused
    values = read.without_headers()
    assert read.is_persistent == (values.get("delivery_mode") == 2)
    assert {name: getattr(read, name) for name in NEEDED} == {name: values.get(name) for name in NEEDED}


@given(properties, st.integers(1, 60))
def test_properties_that_are_cut_off_or_go_on_are_refused(given_: dict[str, Any], number: int) -> None:
    raw = encode_properties(given_)
    for wrong in (raw[:-number] if number <= len(raw) - 2 else raw[:1], raw + bytes(number)):
        with pytest.raises(FrameError):
            Properties(wrong)


NEEDED = ("priority", "expiration", "user_id", "reply_to")


def changed(values: dict[str, Any], place: int) -> bytes:
    """Return encoded properties with one byte changed."""
    raw = bytearray(encode_properties(values))
    raw[place % len(raw)] ^= 0x41
    return bytes(raw)
