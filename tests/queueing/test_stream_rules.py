"""The rules of a stream, from its arguments and its policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import InvalidValueError, PreconditionFailedError
from holtmq.queueing.offset_header import offset_header
from holtmq.queueing.rules import QueueRules
from holtmq.queueing.stream_rules import LARGEST_CHUNK, REFUSED, StreamRules, parse_age, rules_of
from holtmq.table import FieldValue
from holtmq.topology import Policy, Queue
from holtmq.wire.content import Properties, encode_properties, make_content, raw_properties_of


def stream(**arguments: FieldValue) -> Queue:
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    return Queue("s", arguments={"x-queue-type": "stream", **named})


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("30s", 30_000), ("5m", 300_000), ("12h", 43_200_000), ("7D", 604_800_000), ("1M", 2_592_000_000), ("2Y", 63_072_000_000)],
)
def test_an_age_has_a_unit(text: str, milliseconds: int) -> None:
    assert parse_age(text, "x-max-age") == milliseconds


@pytest.mark.parametrize("text", ["", "7", "D", "7d", "7 D", "-7D", "7Dh", "7D\n", "\u0667D", "9" * 5000 + "D", 7, None])
def test_anything_else_is_not_an_age(text: FieldValue) -> None:
    with pytest.raises(InvalidValueError, match="invalid arg 'x-max-age': expected a number with one of Y, M, D, h, m, s"):
        parse_age(text, "x-max-age")


def test_of_an_argument_and_a_policy_the_lower_limit_applies() -> None:
    policy = Policy("p", "", {"max-length-bytes": 500, "max-age": "1h", "stream-max-segment-size-bytes": 100})
    assert StreamRules.of(stream()) == StreamRules(None, None, LARGEST_CHUNK)
    assert StreamRules.of(stream(), policy) == StreamRules(500, 3_600_000, 100)
    assert StreamRules.of(stream(max_length_bytes=400, max_age="2h"), policy) == StreamRules(400, 3_600_000, 100)
    large = stream(stream_max_segment_size_bytes=10**9)
    assert StreamRules.of(large).chunk_bytes == LARGEST_CHUNK
    assert StreamRules.of(stream(), Policy("p", "", {"max-age": "old"})).max_age_ms is None


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_of_other_queues_is_refused(name: str) -> None:
    with pytest.raises(PreconditionFailedError, match=f"invalid arg '{name}' for queue 's'"):
        rules_of(Queue("s", arguments={"x-queue-type": "stream", name: 1}))


def test_a_queue_of_another_type_has_other_rules() -> None:
    assert isinstance(rules_of(Queue("q")), QueueRules)
    assert isinstance(rules_of(stream()), StreamRules)


@pytest.mark.parametrize("table", [b"\x01a?", b"\x0fx-stream-offset?"])
def test_headers_that_cannot_be_decoded_stay_as_they_are_before_the_offset(table: bytes) -> None:
    raw = encode_properties({"content_type": "t", "headers": len(table).to_bytes(4, "big") + table, "app_id": "me"})
    found = raw_properties_of(offset_header(raw).frames(2, 5).content(7, b"ab"))
    assert table + b"\x0fx-stream-offsetl" + (7).to_bytes(8, "big") + b"\x02me" in found
    assert Properties(found).without_headers() == {"content_type": "t", "app_id": "me"}


@given(
    st.fixed_dictionaries({}, optional={name: st.text(max_size=5) for name in ("content_type", "content_encoding", "type")}),
    st.none() | st.dictionaries(st.sampled_from(["a", "x-stream-offset", "x-stream-filter-value"]), st.text(max_size=5)),
    st.binary(max_size=3),
    st.integers(0, 2**63 - 1),
)
def test_the_offset_is_added_to_any_properties(
    others: dict[str, str], headers: dict[str, str] | None, body: bytes, offset: int
) -> None:
    header = offset_header(encode_properties({**others, "headers": headers}))
    frames = header.frames(len(body), 9)
    content = frames.content(offset, body)
    found = raw_properties_of(content)
    assert content == make_content(found, body, 9)
    assert Properties(found).to_dict() == {**others, "headers": {**(headers or {}), "x-stream-offset": offset}}
    assert header.filter_value == (headers or {}).get("x-stream-filter-value")


def test_large_properties_get_the_offset_as_well() -> None:
    raw = encode_properties({"headers": {"a": "x" * 1000}, "type": "t"})
    for body in (b"", b"ab"):
        content = offset_header(raw).frames(len(body), 5).content(2**40, body)
        found = raw_properties_of(content)
        assert content == make_content(found, body, 5)
        assert Properties(found).to_dict() == {"headers": {"a": "x" * 1000, "x-stream-offset": 2**40}, "type": "t"}
