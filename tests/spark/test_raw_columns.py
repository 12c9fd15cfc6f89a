"""The raw columns: what was received is sent again byte for byte, unless a column was changed."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructType

from holtmq import InvalidValueError
from holtmq.client.publisher import Outgoing
from holtmq.protocol.client_connection import Delivery
from holtmq.spark import MessageFilter, archive, read_archive, replay
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.columns import (
    ARROW_SCHEMA,
    PROPERTIES_RAW,
    RAW_COLUMNS,
    ROUTING_KEY_RAW,
    SCHEMA,
    RowEncoder,
    with_all_columns,
)
from holtmq.spark.amqp.encoded_properties import REPLAY_HEADER, join_properties, split_properties
from holtmq.spark.amqp.message_encoder import MessageEncoder
from holtmq.spark.amqp.subscription import ready_messages
from holtmq.wire import methods as wire
from holtmq.wire.content import NAMES, encode_properties
from holtmq.wire.tables import encode_value, long_string, short_string
from tests.amqp_client import Amqp, Channel
from tests.peers.rabbitmq import RabbitMQ
from tests.server.process import broker_process
from tests.spark.conftest import LiveBroker
from tests.spark.generated_messages import any_bytes, encoded_properties, utf8, with_more_keys


def received(raw: bytes, key: bytes = b"k") -> dict[str, Any]:
    """Return the row of a message."""
    delivery = Delivery(1, False, "x", key.decode("utf-8", "surrogateescape"), raw, b"m")
    row: dict[str, Any] = RowEncoder("q").encode([delivery]).to_pylist()[0]
    return row


def sent(row: dict[str, Any], *, persistent: bool = False, mark: str | None = None) -> Outgoing:
    """Return the message of a row, whose missing columns were dropped."""
    schema = pa.schema([ARROW_SCHEMA.field(name) for name in row])
    encoder = MessageEncoder(StructType([SCHEMA[name] for name in row]), None, persistent=persistent, mark=mark)
    (message,) = encoder.encode(pa.RecordBatch.from_pylist([row], schema))
    return message


@given(encoded_properties(any_bytes), any_bytes)
def test_a_row_that_nobody_changed_is_sent_as_it_was_received(raw: bytes, key: bytes) -> None:
    message = sent(received(raw, key))
    assert (message.raw_properties, message.routing_key.encode("utf-8", "surrogateescape")) == (raw, key)


@given(encoded_properties(any_bytes))
def test_a_replay_adds_one_header_and_removes_the_user(raw: bytes) -> None:
    message = sent(received(raw), mark="again")
    before, after = split_properties(raw), split_properties(message.raw_properties)
    mark = short_string(REPLAY_HEADER) + encode_value("again")
    headers, table = after.pop("headers"), before.pop("headers", bytes(4))
    assert headers in (long_string(table[4:] + mark), table)
    assert headers != table or b"$bytes" in (received(raw)["headers"] or "").encode()  # an invalid table
    before.pop("user_id", None)
    assert after == before
    assert sent(received(message.raw_properties), mark="again").raw_properties == message.raw_properties


@given(encoded_properties(any_bytes), st.sampled_from(NAMES), st.booleans())
def test_a_changed_column_wins_and_all_others_keep_their_bytes(raw: bytes, name: str, is_set: bool) -> None:  # noqa: FBT001
    values = {**dict.fromkeys(NAMES, "new"), "headers": '{"new": 1}', "delivery_mode": 1, "priority": 3}
    value = {**values, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}[name] if is_set else None
    row = received(raw)
    is_changed = row[name] != value
    after, before = split_properties(sent({**row, name: value}).raw_properties), split_properties(raw)
    found = after.pop(name, None)
    assert not is_changed or (found is not None) == is_set
    before.pop(name, None)
    assert after == before


def test_a_header_that_was_not_changed_keeps_its_type() -> None:
    fields = {"tiny": b"b\x07", "single": b"f\x3f\xc0\x00\x00", "wide": b"l" + bytes(8), "flag": b"t\x01", "gone": b"V"}
    raw = join_properties({"headers": long_string(b"".join(short_string(name) + value for name, value in fields.items()))})
    headers = json.loads(received(raw)["headers"])
    assert headers == {"tiny": 7, "single": 1.5, "wide": 0, "flag": True, "gone": None}
    del headers["gone"]
    message = sent({**received(raw), "headers": json.dumps({**headers, "flag": 1, "new": 7})})
    expected = {**fields, "flag": encode_value(1), "new": encode_value(7)}
    expected.pop("gone")
    table = b"".join(short_string(name) + value for name, value in expected.items())
    assert split_properties(message.raw_properties)["headers"] == long_string(table)


def test_a_changed_key_wins() -> None:
    row = received(b"\x00\x00", b"k\xff")
    assert row["routing_key"] == "k\ufffd"
    assert sent(row).routing_key == "k\udcff"
    assert sent({**row, "routing_key": "k"}).routing_key == "k"


def test_a_dropped_column_removes_the_property_but_raw_columns_alone_are_sent_whole() -> None:
    late = encode_properties({"timestamp": 1_767_225_600_000, "message_id": "1", "expiration": "9"})
    row = received(late)
    assert row["timestamp"] is None  # a time in milliseconds
    kept = {name: value for name, value in row.items() if name != "expiration"}
    assert sent(kept).raw_properties == encode_properties({"timestamp": 1_767_225_600_000, "message_id": "1"})
    kept.pop("timestamp")
    assert sent(kept).raw_properties == encode_properties({"message_id": "1"})
    alone = {name: row[name] for name in ("exchange", "body", *RAW_COLUMNS)}
    assert (sent(alone).raw_properties, sent(alone).routing_key) == (late, "k")


def test_rows_without_raw_columns_are_encoded_from_the_others() -> None:
    properties = {"message_id": "1", "headers": {"n": 1}, "timestamp": datetime(2026, 1, 1, tzinfo=UTC)}
    row = received(encode_properties(properties))
    for old in ({**row, ROUTING_KEY_RAW: None, PROPERTIES_RAW: None}, {n: v for n, v in row.items() if n not in RAW_COLUMNS}):
        assert (sent(old).routing_key, sent(old).raw_properties) == ("k", encode_properties(properties))
    batch = pa.RecordBatch.from_pylist([row], ARROW_SCHEMA)
    old_batch = pa.RecordBatch.from_arrays(batch.columns[:-2], schema=pa.schema(list(ARROW_SCHEMA)[:-2]))
    assert with_all_columns(old_batch).to_pylist() == [{**row, ROUTING_KEY_RAW: None, PROPERTIES_RAW: None}]
    assert with_all_columns(batch) is batch


def test_the_time_zone_of_a_session_does_not_look_like_a_change() -> None:
    raw = encode_properties({"timestamp": datetime(2026, 10, 25, 0, 30, tzinfo=UTC)})  # 2:30 in Berlin, for the first time
    index = ARROW_SCHEMA.get_field_index("timestamp")
    schema = ARROW_SCHEMA.set(index, pa.field("timestamp", pa.timestamp("us", "Europe/Berlin")))
    batch = pa.RecordBatch.from_pylist([received(raw)], schema)
    (message,) = MessageEncoder(SCHEMA, None, persistent=False).encode(batch)
    assert message.raw_properties == raw


def test_properties_that_are_not_valid_are_null_and_kept() -> None:
    row = received(b"\x80\x00\x09cut off")
    assert {row[name] for name in NAMES} == {None}
    assert sent(row).raw_properties == b"\x80\x00\x09cut off"
    with pytest.raises(
        InvalidValueError, match="with key 'k' cannot be encoded: expected the properties to end after 12 bytes"
    ):
        sent(row, mark="again")


def test_raw_columns_that_are_text_are_refused() -> None:
    schema = StructType(SCHEMA.fields[:-1]).add(PROPERTIES_RAW, StringType())
    with pytest.raises(InvalidValueError, match="column 'properties_raw' must be binary, got type string: read the messages"):
        MessageEncoder(schema, None, persistent=True)


def test_an_exact_replay_needs_the_raw_columns(spark: SparkSession) -> None:
    old = spark.createDataFrame([], StructType(SCHEMA.fields[:-1]))
    with pytest.raises(
        InvalidValueError, match="an exact replay needs the column 'properties_raw', which the archive does not"
    ):
        replay(old, url="amqp://127.0.0.1:1", exact=True)
    row = {**received(b"\x00\x00"), PROPERTIES_RAW: None}
    mixed = spark.createDataFrame([tuple(row.values())], SCHEMA)
    with pytest.raises(PySparkException, match="an exact replay needs the column 'properties_raw', which is null in a row"):
        replay(mixed, url="amqp://127.0.0.1:1", exact=True)
    with pytest.raises(InvalidValueError, match="expected either exact or replay_id, got both"):
        replay(old, url="amqp://127.0.0.1:1", exact=True, replay_id="1")


def test_a_pattern_for_keys_selects_messages_whose_headers_cannot_be_read(spark: SparkSession) -> None:
    tables = [b"\x01\xffV", short_string("vip") + b"t\x01", b""]  # the first name is not UTF-8
    rows = [received(join_properties({"headers": long_string(table)}), b"orders.food") for table in tables]
    stored = spark.createDataFrame([tuple(row.values()) for row in rows], SCHEMA)
    assert rows_of(MessageFilter(key="orders.#").select(stored)) == rows_of(stored)
    assert MessageFilter(key="orders.*.x").select(stored).count() == 0
    assert rows_of(MessageFilter(headers={"vip": True}).select(stored)) == [rows[1]["properties_raw"]]
    assert MessageFilter(key="orders.#").select(stored.drop("headers")).count() == 3


def rows_of(messages: DataFrame) -> list[bytes]:
    """Return the properties of messages."""
    return sorted(bytes(row["properties_raw"]) for row in messages.collect())


def generated(strategy: st.SearchStrategy[Any], count: int) -> list[Any]:
    """Return different values of a strategy, so that one job can send them all."""
    found: list[Any] = []

    @settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    return found


def generated_messages(live: LiveBroker) -> list[tuple[str, bytes, bytes]]:
    """Return routing keys, and properties as they are sent and as they are delivered."""
    keys, properties = any_bytes, encoded_properties(any_bytes)
    names = any_bytes
    if live.name == "holtmq":  # it refuses keys that are not UTF-8, and such names of headers beside CC or BCC
        keys, properties, names = utf8, properties.filter(lambda raw: b"CC" not in raw), utf8
    found = [
        *generated(st.tuples(keys, properties.map(lambda raw: (raw, raw))), 150),
        *generated(st.tuples(keys, with_more_keys(encoded_properties(any_bytes, names))), 100),
    ]
    return [(key.decode("utf-8", "surrogateescape"), sent, delivered) for key, (sent, delivered) in found]


def test_generated_messages_survive_archive_and_replay_byte_for_byte(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    messages = generated_messages(live)
    exchange, control = f"raw-{uuid.uuid4()}", f"{queue}-control"
    channel.declare_exchange(exchange, "fanout", durable=True)
    channel.declare(control, durable=True)
    for bound in (queue, control):
        channel.bind(bound, exchange)
    for number, (key, properties, _) in enumerate(messages):
        channel.publish_raw(exchange, key, properties, b"%d" % number)
    channel.settle()
    before = numbered(received_from(live, control))
    unchanged = {
        number: (key, delivered)
        for number, (key, properties, delivered) in enumerate(messages)
        # RabbitMQ encodes headers anew when it removes BCC, and unsigned numbers of 64 bits as signed ones
        if live.name == "holtmq" or properties == delivered
    }
    assert {number: before[number] for number in unchanged} == unchanged
    archive(spark, queue, str(tmp_path / "archive"), url=live.url)
    stored = spark.read.parquet(str(tmp_path / "archive"))
    assert replay(stored, url=live.url, exact=True).published.confirmed == len(messages) == len(before)
    assert numbered(received_from(live, queue)) == before
    channel.delete(control)
    channel.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)


def test_generated_messages_in_a_stream_survive_archive_and_replay_byte_for_byte(
    spark: SparkSession, live: LiveBroker, channel: Channel, tmp_path: Path
) -> None:
    odd = join_properties({"headers": long_string(b"\x01\xffV")})  # of the first and the last message, which are looked for
    messages, stream = [("", odd, odd), *generated_messages(live), ("", odd, odd)], f"raw-{uuid.uuid4()}"
    channel.declare_exchange(stream, "fanout", durable=True)
    channel.declare(stream, durable=True, queue_type="stream")
    channel.bind(stream, stream)
    channel.confirm()
    for number, (key, properties, _) in enumerate(messages):
        channel.publish_raw(stream, key, properties, b"%d" % number)
    confirmed = 0
    while confirmed < len(messages):
        confirmed = channel.next().method.delivery_tag
    archive(spark, stream, str(tmp_path / "archive"), url=live.url, starting_offsets="earliest")
    stored = read_archive(spark, str(tmp_path / "archive"))
    before = by_number(stored)
    assert len(before) == len(messages)
    if live.name == "holtmq":  # streams of RabbitMQ keep no tables and arrays in headers, and not every property
        assert before == {n: (key, without_empty_headers(delivered)) for n, (key, _, delivered) in enumerate(messages)}
    assert replay(stored, url=live.url, exact=True).published.confirmed == len(messages)
    options = {"url": live.url, "queue": stream, "startingOffsets": str(len(messages))}
    assert by_number(spark.read.format("amqp").options(**options).load()) == before
    channel.delete(stream)
    channel.call(wire.ExchangeDelete(0, stream), wire.ExchangeDeleteOk)


def by_number(rows: DataFrame) -> dict[int, tuple[str, bytes]]:
    """Return the routing keys and the properties of rows by the number of the message, which is its body."""
    return {
        int(row["body"]): (bytes(row["routing_key_raw"]).decode("utf-8", "surrogateescape"), bytes(row["properties_raw"]))
        for row in rows.collect()
    }


def without_empty_headers(raw: bytes) -> bytes:
    """Return properties as a stream delivers them: with the offset among its headers, an empty table looks like none."""
    fields = split_properties(raw)
    return join_properties({name: value for name, value in fields.items() if (name, value) != ("headers", bytes(4))})


@pytest.mark.rabbitmq
def test_a_key_that_is_not_utf8_is_refused_by_holtmq_and_costs_no_other_message(
    spark: SparkSession, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    """AMQP 0-9-1 §4.2.5.3 demands UTF-8, and RabbitMQ does not check it."""
    source, exchange, target = LiveBroker("rabbitmq", rabbitmq.amqp_port), f"odd-{uuid.uuid4()}", str(tmp_path / "archive")
    keys = ("before", "odd\udcff", "after")
    properties = encode_properties({"app_id": "\udcff", "delivery_mode": 2})
    with Amqp(source.port) as amqp, broker_process(tmp_path / "broker.db") as broker, Amqp(broker.port) as other:
        here, there = amqp.channel(), other.channel()
        for channel in (here, there):
            channel.declare_exchange(exchange, "fanout", durable=True)
            channel.declare(exchange, durable=True)
            channel.bind(exchange, exchange)
        for key in keys:
            here.publish_raw(exchange, key, properties, b"m")
        here.settle()
        archive(spark, exchange, target, url=source.url)
        here.delete(exchange)
        here.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)
        stored, holtmq = read_archive(spark, target), LiveBroker("holtmq", broker.port)
        assert sorted(row.routing_key_raw for row in stored.collect()) == [b"after", b"before", b"odd\xff"]
        refusal = r"FRAME_ERROR - expected routing_key of basic.publish in UTF-8 \(AMQP 0-9-1, 4\.2\.5\.3\), got b'odd"
        with pytest.raises(PySparkException, match=refusal):
            replay(stored, url=holtmq.url, exact=True)
        there.call(wire.QueuePurge(0, exchange), wire.QueuePurgeOk)
        assert replay(stored.where("is_valid_utf8(routing_key_raw)"), url=holtmq.url, exact=True).published.confirmed == 2
        found = received_from(holtmq, exchange)
        assert sorted((message.routing_key, message.raw_properties) for message in found) == [
            ("after", properties),
            ("before", properties),
        ]
        assert replay(stored.drop("routing_key_raw"), url=holtmq.url).published.confirmed == 3
        assert sorted(message.routing_key for message in received_from(holtmq, exchange)) == ["after", "before", "odd\ufffd"]


def numbered(messages: list[Delivery]) -> dict[int, tuple[str, bytes]]:
    """Return the routing keys and the properties of messages by their number, which is the body."""
    return {int(message.body): (message.routing_key, message.raw_properties) for message in messages}


def received_from(live: LiveBroker, queue: str) -> list[Delivery]:
    """Take all messages out of a queue."""
    with BrokerOptions(url=live.url).connect("test") as connection:
        count = ready_messages(connection, queue)
        connection.call(wire.BasicConsume(0, queue, "all", no_ack=True), wire.BasicConsumeOk)
        while len(connection.deliveries) < count:
            assert connection.receive(60)
        return connection.deliveries
