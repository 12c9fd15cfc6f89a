"""Messages as rows: what the source reads of the properties is what the codec of the broker reads."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holtmq.client.connection import Delivery
from holtmq.spark.amqp.columns import Rows
from holtmq.table_json import table_to_json
from holtmq.wire.content import NAMES, Properties, encode_properties

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
    row = Rows("q").of([Delivery(1, False, "x", "k", raw, b"body")]).to_pylist()[0]
    expected = Properties(raw).to_dict()
    if "headers" in expected:
        expected["headers"] = json.dumps(table_to_json(expected["headers"]), ensure_ascii=False)
    assert {name: row[name] for name in NAMES if row[name] is not None} == expected


def test_bytes_that_are_no_utf8_show_as_such_and_late_timestamps_are_left_out() -> None:
    raw = bytes.fromhex("0080") + b"\x02\xff\xfe"
    assert Rows("q").of([Delivery(1, True, "x", "k\udcff", raw, b"")]).to_pylist()[0]["message_id"] == "\ufffd\ufffd"
    late = encode_properties({"timestamp": 2**60})
    row = Rows("q").of([Delivery(1, True, "x", "k\udcff", late, b"")]).to_pylist()[0]
    assert (row["timestamp"], row["routing_key"]) == (None, "k\ufffd")


def test_no_deliveries_are_no_rows() -> None:
    assert Rows("q").of([]).num_rows == 0
