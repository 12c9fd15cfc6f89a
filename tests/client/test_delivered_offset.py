"""The header x-stream-offset of a delivery: read, and removed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.client.delivered_offset import OFFSET_HEADER, NotAStreamError, OffsetTaker, take_offset
from holtmq.errors import FrameError
from holtmq.wire.content import encode_properties
from holtmq.wire.tables import join_table, long_string, short_string, split_table

NAME = "\x0fx-stream-offset"
texts = st.sampled_from(["", "text", f"{NAME}l12345678", NAME])
headers = st.dictionaries(st.sampled_from(["a", "b", "z"]), st.sampled_from([1, "text", f"{NAME}l12345678", {"x": NAME}]))
properties = st.fixed_dictionaries(
    {}, optional={"content_type": texts, "content_encoding": texts, "headers": headers, "priority": st.just(3), "type": texts}
)


def with_offset(published: dict[str, Any], encoded_offset: bytes) -> bytes:
    """Return the properties of a delivery, as a broker encodes them."""
    fields = split_table(encode_properties({"headers": published.get("headers", {})})[2:])
    return encode_properties({**published, "headers": join_table({OFFSET_HEADER: encoded_offset, **fields})})


@given(letter=st.sampled_from([b"l", b"I", b"L"]), published=properties, offset=st.integers(0, 2**31 - 1))
def test_the_offset_is_taken_out_of_the_properties(letter: bytes, published: dict[str, Any], offset: int) -> None:
    encoded = letter + offset.to_bytes(4 if letter == b"I" else 8, "big")
    expected = {name: value for name, value in published.items() if name != "headers" or value}
    raw = with_offset(published, encoded)
    assert take_offset(raw) == (offset, encode_properties(expected))
    taker = OffsetTaker("q")
    assert [taker.take(raw), taker.take(raw)] == [(offset, encode_properties(expected))] * 2


def test_the_offset_is_found_beside_names_that_are_not_utf8() -> None:
    odd = b"\x01\xffV" + b"\x06nestedF" + long_string(b"\x01\xfeV")
    field = short_string(OFFSET_HEADER) + b"l" + (7).to_bytes(8, "big")
    published = encode_properties({"content_type": "text", "headers": long_string(odd), "type": "t"})
    for table in (odd + field, field + odd):
        raw = encode_properties({"content_type": "text", "headers": long_string(table), "type": "t"})
        assert take_offset(raw) == OffsetTaker("q").take(raw) == (7, published)
    with pytest.raises(FrameError, match="got the end of the data"):
        take_offset(encode_properties({"headers": long_string(field[:-1])}))


@given(messages=st.lists(st.tuples(properties, st.integers(0, 2**31 - 1)), max_size=8))
def test_the_offset_of_each_message_is_taken_whatever_came_before(messages: list[tuple[dict[str, Any], int]]) -> None:
    taker = OffsetTaker("q")
    for published, offset in messages:
        raw = with_offset(published, b"l" + offset.to_bytes(8, "big"))
        assert taker.take(raw) == take_offset(raw)


@pytest.mark.parametrize(
    "published",
    [{}, {"headers": {"a": 1}}, {"headers": {OFFSET_HEADER: "text"}}, {"content_type": f"{NAME}l12345678", "headers": {"a": 1}},
     {"type": f"{NAME}l12345678", "headers": {"a": 1}}],
)  # fmt: skip
def test_a_delivery_without_an_offset_is_recognised(published: dict[str, Any]) -> None:
    assert take_offset(encode_properties(published)) is None
    with pytest.raises(NotAStreamError, match="queue 'q' is not a stream queue"):
        OffsetTaker("q").take(encode_properties(published))
