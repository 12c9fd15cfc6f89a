"""Messages as rows: the source decodes properties like the codec of the broker."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from holtmq import InvalidValueError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.columns import ARROW_SCHEMA, PROPERTY_TYPES, SCHEMA, RowEncoder
from holtmq.spark.amqp.encoded_properties import PropertyValues
from holtmq.spark.amqp.message_encoder import MessageEncoder
from holtmq.spark.amqp.property_columns import property_columns
from holtmq.spark.headers_json import read_headers
from holtmq.table_json import table_to_json
from holtmq.wire.content import NAMES, Properties, encode_properties
from tests.spark.generated_messages import encoded_properties

texts = st.text(max_size=40).filter(lambda text: len(text.encode("utf-8", "ignore")) <= 255 and text.isprintable())
values: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(NAMES, texts),
    "headers": st.dictionaries(
        st.sampled_from(["a", "b", "CC"]), st.sampled_from([1, 1.5, "x", True, None, b"\xff", ["y"], {"z": 1}])
    ),
    "delivery_mode": st.sampled_from([1, 2]),
    "priority": st.integers(0, 255),
    "timestamp": st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1)).map(lambda t: t.replace(microsecond=0, tzinfo=UTC)),  # noqa: DTZ001
}


@given(st.fixed_dictionaries({}, optional=values))
def test_properties_are_read_as_the_broker_reads_them(properties: dict[str, Any]) -> None:
    raw = encode_properties(properties)
    row = RowEncoder("q").encode([Delivery(1, False, "x", "k", raw, b"body")]).to_pylist()[0]
    expected = Properties(raw).to_dict()
    if "headers" in expected:
        expected["headers"] = json.dumps(table_to_json(expected["headers"]), ensure_ascii=False)
    assert {name: row[name] for name in NAMES if row[name] is not None} == expected


def test_bytes_that_are_not_utf8_are_replaced_and_late_timestamps_are_null() -> None:
    raw = bytes.fromhex("0080") + b"\x02\xff\xfe"
    assert RowEncoder("q").encode([Delivery(1, True, "x", "k\udcff", raw, b"")]).to_pylist()[0]["message_id"] == "\ufffd\ufffd"
    late = encode_properties({"timestamp": 2**60})
    row = RowEncoder("q").encode([Delivery(1, True, "x", "k\udcff", late, b"")]).to_pylist()[0]
    assert (row["timestamp"], row["routing_key"]) == (None, "k\ufffd")


def test_invalid_headers_are_kept_and_sent_unchanged() -> None:
    table = b"\x02\xff\xfet\x01"  # a name that is not UTF-8
    raw = bytes.fromhex("2020") + len(table).to_bytes(4, "big") + table + b"\x03abc"
    row = RowEncoder("q").encode([Delivery(1, False, "x", "k", raw, b"")]).to_pylist()[0]
    assert row["type"] == "abc"
    messages = MessageEncoder(SCHEMA, None, persistent=False, mark="again")
    (sent,) = messages.encode(pa.RecordBatch.from_pylist([row], ARROW_SCHEMA))
    assert sent.raw_properties == raw
    with pytest.raises(InvalidValueError, match="headers: expected a JSON object, got array of 2"):
        read_headers(row["headers"])


@pytest.mark.parametrize(
    ("name", "type_", "match"),
    [
        ("routing_key", IntegerType(), "column 'routing_key' must be a string, got type int"),
        ("body", IntegerType(), "column 'body' must be binary or a string, got type int: cast it"),
        ("app_id", BinaryType(), "column 'app_id' must be a string, got type binary"),
        ("headers", VariantType(), "column 'headers' must be JSON text, a map or a struct, got type variant"),
        ("headers", MapType(IntegerType(), StringType()), "column 'headers' must be a map with string keys, got type map<int,"),
        ("priority", StringType(), "column 'priority' must be a whole number, got type string: cast it to int"),
        ("delivery_mode", DoubleType(), "column 'delivery_mode' must be a whole number, got type double"),
        ("timestamp", StringType(), "column 'timestamp' must be a timestamp, got type string: cast it first"),
        ("timestamp", LongType(), "column 'timestamp' must be a timestamp, got type bigint"),
    ],
)
def test_columns_of_the_wrong_type_are_refused(name: str, type_: DataType, match: str) -> None:
    types = {"exchange": StringType(), "routing_key": StringType(), "body": StringType(), name: type_}
    with pytest.raises(InvalidValueError, match=match):
        MessageEncoder(StructType([StructField(column, kind) for column, kind in types.items()]), None, persistent=True)


def test_a_number_that_does_not_fit_into_a_property_is_refused_by_name() -> None:
    messages = MessageEncoder(SCHEMA, None, persistent=False)
    batch = pa.RecordBatch.from_pylist([{"exchange": "", "routing_key": "k", "body": b"", "priority": 300}], ARROW_SCHEMA)
    refusal = "with key 'k' cannot be encoded: priority: expected a number from 0 to 255, got 300"
    with pytest.raises(InvalidValueError, match=refusal):
        list(messages.encode(batch))


def test_a_timestamp_without_a_zone_is_utc_on_every_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        messages = MessageEncoder(SCHEMA, None, persistent=False)
        row = {"exchange": "", "routing_key": "k", "body": b"", "timestamp": datetime(2026, 1, 1)}  # noqa: DTZ001
        schema = ARROW_SCHEMA.set(ARROW_SCHEMA.get_field_index("timestamp"), pa.field("timestamp", pa.timestamp("us")))
        (sent,) = messages.encode(pa.RecordBatch.from_pylist([row], schema))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert Properties(sent.raw_properties).to_dict() == {"timestamp": datetime(2026, 1, 1, tzinfo=UTC)}


def test_an_error_about_a_number_beyond_64_bits_names_the_key() -> None:
    row = {"exchange": "", "routing_key": "k", "body": b"", "headers": '{"n": 1180591620717411303424}'}
    with pytest.raises(InvalidValueError, match="a property of the message with key 'k' cannot be encoded"):
        list(MessageEncoder(SCHEMA, None, persistent=False).encode(pa.RecordBatch.from_pylist([row], ARROW_SCHEMA)))


def test_an_empty_list_of_deliveries_gives_no_rows() -> None:
    assert RowEncoder("q").encode([]).num_rows == 0


@given(st.lists(encoded_properties(st.one_of(st.text(max_size=9).map(str.encode), st.binary(max_size=9))), min_size=1))
def test_properties_read_by_column_are_the_same_as_those_read_one_by_one(raws: list[bytes]) -> None:
    known = PropertyValues()
    for some in (raws, raws[:1], [raw for raw in raws if raw[:2] == raws[0][:2]], raws * 5):
        arrays = property_columns(some, PROPERTY_TYPES, known)
        assert list(zip(*(array.to_pylist() for array in arrays), strict=True)) == [known[raw] for raw in some]


@pytest.mark.parametrize("end", [b"\x05ab", b"\x02ab!", b""], ids=["cut off", "too long", "missing"])
def test_properties_that_cannot_be_read_are_unset(end: bytes) -> None:
    raw, good = b"\x80\x00" + end, b"\x80\x00\x02ab"
    first, *_ = property_columns([raw, good], PROPERTY_TYPES, PropertyValues())
    assert first.to_pylist() == [None, "ab"]
