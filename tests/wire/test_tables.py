"""The table codec: round trips, comparison with pamqp, and invalid bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pamqp.decode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.errors import FrameError
from holtmq.table import FieldValue
from holtmq.wire.tables import (
    DEEPEST,
    decode_table,
    decode_value,
    encode_table,
    encode_value,
    join_table,
    raw_fields,
    split_table,
)

keys = st.text(max_size=60)
scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.integers(0, 2**33).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    st.decimals(-(10**6), 10**6, places=2),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=10
)
tables = st.dictionaries(keys, values, max_size=6)


@given(tables)
def test_a_table_comes_back_as_it_was(table: dict[str, FieldValue]) -> None:
    encoded = encode_table(table)
    assert decode_table(encoded) == (table, len(encoded))


@given(tables)
def test_fields_taken_apart_and_put_together_are_the_same_bytes(table: dict[str, FieldValue]) -> None:
    encoded = encode_table(table)
    assert join_table(split_table(encoded)) == encoded


@given(st.dictionaries(keys, st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20)), max_size=6))
def test_another_codec_reads_what_we_write(table: dict[str, FieldValue]) -> None:
    encoded = encode_table(table)
    assert pamqp.decode.field_table(encoded) == (len(encoded), table)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_table_are_refused(data: bytes) -> None:
    try:
        table, after = decode_table(data)
    except FrameError:
        return
    assert after <= len(data)
    assert isinstance(table, dict)


@given(tables)
def test_fields_are_found_without_decoding_them(table: dict[str, FieldValue]) -> None:
    encoded = encode_table(table)
    found = list(raw_fields(encoded))
    assert {name.decode(): encoded[value_at:after] for name, _, value_at, after in found} == split_table(encoded)
    assert [decode_value(encoded, value_at)[1] for _, _, value_at, _ in found] == [after for *_, after in found]


@given(tables, st.data())
def test_a_table_that_is_cut_off_is_refused(table: dict[str, FieldValue], data: st.DataObject) -> None:
    encoded = encode_table(table)
    with pytest.raises(FrameError):
        decode_table(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (b"t\x01", True), (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xff", -1), (b"u\xff\xff", 65535),
        (b"I\xff\xff\xff\xff", -1), (b"i\xff\xff\xff\xff", 2**32 - 1), (b"l" + b"\xff" * 8, -1), (b"L" + bytes(7) + b"\x05", 5),
        (b"f\x3f\x80\x00\x00", 1.0), (b"d\x3f\xf0" + bytes(6), 1.0), (b"D\x02\x00\x00\x00\x7b", Decimal("1.23")),
        (b"S\x00\x00\x00\x01a", "a"), (b"S\x00\x00\x00\x01\xff", b"\xff"), (b"x\x00\x00\x00\x01a", b"a"),
        (b"T" + bytes(7) + b"\x01", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)), (b"V", None), (b"A\x00\x00\x00\x01V", [None]),
    ],
)  # fmt: skip
def test_every_type_letter_is_known(encoded: bytes, expected: FieldValue) -> None:
    assert decode_table(join_table({"k": encoded}))[0] == {"k": expected}


def test_a_time_beyond_the_calendar_stays_a_number() -> None:
    assert decode_table(join_table({"k": b"T" + (2**60).to_bytes(8, "big")}))[0] == {"k": 2**60}


@pytest.mark.parametrize("text", ["123456789012.34", "-2147483649", "1E+300", "1E-256", "1E+999999999", "NaN", "-Infinity"])
def test_a_decimal_beyond_amqp_is_sent_as_text(text: str) -> None:
    assert decode_table(encode_table({"k": Decimal(text)}))[0] == {"k": text}


@pytest.mark.parametrize("number", ["2147483647", "-2147483648", "1E+9", "1E-255", "0.00"])
def test_the_largest_and_smallest_decimals_of_amqp_come_back(number: str) -> None:
    assert decode_table(encode_table({"k": Decimal(number)}))[0] == {"k": Decimal(number)}


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert decode_table(encode_table({"k": "a\ud800"}))[0] == {"k": "a?"}


def test_tables_nested_beyond_reason_are_refused() -> None:
    nested: FieldValue = None
    for _ in range(DEEPEST + 5):
        nested = [nested]
    with pytest.raises(FrameError, match="nested"):
        decode_table(join_table({"k": encode_value(nested)}))
