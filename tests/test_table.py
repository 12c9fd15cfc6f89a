"""AMQP field tables: immutable, typed, compared by value, and converted to JSON without loss."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq import InvalidValueError, Table
from holtmq.errors import DefinitionsError
from holtmq.table import FieldValue, canonical, describe, require_short_string, to_plain
from holtmq.table_json import table_from_json, table_to_json

scalars: st.SearchStrategy[FieldValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1)).map(lambda at: at.replace(microsecond=0)),  # noqa: DTZ001
)
names = st.text(st.characters(codec="utf-8"), max_size=20)
fields: st.SearchStrategy[dict[str, FieldValue]] = st.recursive(
    st.dictionaries(names | st.sampled_from(["$bytes", "$table"]), scalars, max_size=4),
    lambda inner: st.dictionaries(names, st.one_of(inner, st.lists(st.one_of(scalars, inner), max_size=3)), max_size=3),
    max_leaves=8,
)

UNEQUAL = [
    1,
    1.0,
    True,
    "1",
    b"1",
    Decimal(1),
    None,
    [1],
    (1, 2),
    {"1": 1},
    {},
    [],
    "",
    0,
    False,
    datetime(1970, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize("one", range(len(UNEQUAL)))
@pytest.mark.parametrize("other", range(len(UNEQUAL)))
def test_values_of_different_types_are_never_equal(one: int, other: int) -> None:
    assert (Table({"v": UNEQUAL[one]}) == Table({"v": UNEQUAL[other]})) == (one == other)  # type: ignore[dict-item]


def test_equality_does_not_depend_on_the_order_of_keys() -> None:
    one, other = Table({"a": 1, "b": {"c": 2, "d": 3}}), Table({"b": {"d": 3, "c": 2}, "a": 1})
    assert one == other
    assert hash(one) == hash(other)


def test_a_table_equals_a_plain_mapping_with_equal_values() -> None:
    assert Table({"a": [1, {"b": None}]}) == {"a": [1, {"b": None}]}
    assert Table({"a": 1}) != {"a": 1.0}
    assert Table({"a": 1}) != 1


def test_changing_what_a_table_was_made_of_does_not_change_the_table() -> None:
    inner: list[FieldValue] = [1]
    source: dict[str, FieldValue] = {"a": inner}
    table = Table(source)
    inner.append(2)
    source["b"] = 1
    assert table == {"a": [1]}


@given(fields)
def test_a_table_survives_pickle_and_json(plain: dict[str, FieldValue]) -> None:
    table = Table(plain)
    assert pickle.loads(pickle.dumps(table)) == table
    assert table_from_json(json.loads(json.dumps(table_to_json(table))), "arguments") == table
    assert Table(to_plain(table)) == table


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ({1: 2}, "the key of a table must be a string, got integer 1"),
        ({"k" * 256: 1}, "at most 255 bytes in UTF-8, got 256 bytes"),
        ({"ключ" * 40: 1}, "at most 255 bytes in UTF-8, got 320 bytes"),
        ({"\ud800": 1}, "text that UTF-8 can encode"),
        ({"a": float("nan")}, "a finite number, got number nan"),
        ({"a": 2**63}, "an integer of at most 64 bits, got 9223372036854775808"),
        ({"a": object}, "a type that AMQP supports"),
        ({"a": [1, {2}]}, "a type that AMQP supports (null, boolean"),
    ],
)
def test_what_amqp_cannot_hold_is_refused(value: dict[str, FieldValue], seen: str) -> None:
    with pytest.raises(InvalidValueError) as refusal:
        Table(value)
    assert seen in str(refusal.value)
    assert refusal.value.reply_code == 406


@pytest.mark.parametrize("value", ["text", 5, [1], [], 0, ""])
def test_what_is_no_mapping_is_no_table(value: object) -> None:
    with pytest.raises(InvalidValueError, match="must be a table"):
        Table.of(value)  # type: ignore[arg-type]


def test_a_header_of_a_foreign_type_is_refused_where_it_is_compared() -> None:
    with pytest.raises(InvalidValueError, match="a type that AMQP supports"):
        canonical(object())  # type: ignore[arg-type]


def test_a_naive_datetime_is_utc() -> None:
    assert Table({"t": datetime(2024, 1, 1)}) == Table({"t": datetime(2024, 1, 1, tzinfo=UTC)})  # noqa: DTZ001


@pytest.mark.parametrize(
    "value",
    [
        {"$bytes": 5},
        {"$bytes": "no base64!"},
        {"$timestamp": "soon"},
        {"$decimal": "x"},
        {"$table": 1},
        {"$timestamp": 1e99},
        {"$timestamp": 10**17},
    ],
)
def test_a_malformed_tagged_value_is_refused_with_its_path(value: object) -> None:
    with pytest.raises(DefinitionsError) as refusal:
        table_from_json({"list": [value]}, "arguments")
    assert refusal.value.path.startswith("arguments.list[0].$")


def test_short_strings_are_counted_in_bytes() -> None:
    require_short_string("k" * 255, "a key")
    require_short_string("é" * 127, "a key")
    with pytest.raises(InvalidValueError, match="a key must be at most 255 bytes in UTF-8, got 256 bytes"):
        require_short_string("é" * 128, "a key")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "null"),
        (True, "boolean true"),
        (1, "integer 1"),
        (1.5, "number 1.5"),
        ("a", "string 'a'"),
        ("x" * 100, "string 'xxx"),
        (b"a", "bytes b'a'"),
        ([1], "array of 1"),
        ({}, "table of 0"),
        (datetime(2024, 1, 1, tzinfo=UTC), "timestamp 2024"),
        ({1}, "set {1}"),
    ],
)
def test_values_are_described_in_words_that_fit_on_a_line(value: object, words: str) -> None:
    assert describe(value).startswith(words)
    assert len(describe(value)) < 80
