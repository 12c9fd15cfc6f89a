"""The method codec, compared with an independent one."""

from __future__ import annotations

from typing import Any

import pamqp.commands
import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import CommandInvalidError, FrameError
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import METHODS, Method, decode_method, encode_method

SAMPLES: dict[object, Any] = {
    "bit": True, 1: 7, 2: 300, 4: 70_000, 8: 2**40, "shortstr": "name", "longstr": b"long", "table": {"a": 1, "b": "two"},
}  # fmt: skip


def sample(kind: type[Method]) -> Method:
    return kind(*(SAMPLES[type_] for _, type_ in kind.layout))


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.label())
def test_a_method_comes_back_as_it_was(kind: type[Method]) -> None:
    assert decode_method(encode_method(sample(kind))) == sample(kind)


@pytest.mark.filterwarnings("ignore:This command is deprecated")
@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.label())
def test_another_codec_knows_the_method_and_its_arguments(kind: type[Method]) -> None:
    theirs: Any = pamqp.commands.INDEX_MAPPING[kind.class_id << 16 | kind.method_id]
    assert theirs.name.replace(".", "").lower() == kind.__name__.lower()
    if kind.label() in ("connection.open", "connection.open-ok", "channel.open-ok", "channel.open", "basic.get-empty"):
        return  # it checks reserved fields for being empty
    decoded: Any
    _, channel, decoded = pamqp.frame.unmarshal(method_frame(3, sample(kind)))
    assert channel == 3
    values = [getattr(decoded, name) for name in decoded.attributes()]
    expected = [SAMPLES[type_] if type_ != "longstr" else "long" for _, type_ in kind.layout]
    assert [value.decode() if isinstance(value, bytes) else value for value in values] == expected


@given(st.binary(max_size=100))
def test_bytes_that_are_no_method_are_refused(payload: bytes) -> None:
    try:
        decode_method(payload)
    except (FrameError, CommandInvalidError):
        return


@given(st.sampled_from(list(METHODS.values())), st.data())
def test_a_method_that_is_cut_off_or_too_long_is_refused(kind: type[Method], data: st.DataObject) -> None:
    payload = encode_method(sample(kind))
    if len(payload) > 4:
        with pytest.raises(FrameError):
            decode_method(payload[: data.draw(st.integers(4, len(payload) - 1))])
    with pytest.raises(FrameError):
        decode_method(payload + b"\x00")
