"""`format("amqp")` in batches: messages as rows and back, on HoltMQ and on RabbitMQ."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holtmq.config import Config
from holtmq.errors import InvalidValueError
from holtmq.server.run import running
from holtmq.spark import MessageFilter, drain, publish, replay
from holtmq.spark.amqp import batch
from holtmq.spark.amqp.backlog import SilentQueueError
from holtmq.spark.amqp.batch import QueueReader, Share
from holtmq.testing import TestBroker
from tests.amqp_client import Amqp, Channel
from tests.server.process import broker_process
from tests.spark.conftest import LiveBroker, amqp_options, wait_until

PROPERTIES: dict[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "gzip",
    "delivery_mode": 2,
    "priority": 5,
    "correlation_id": "c-1",
    "reply_to": "answers",
    "expiration": "3600000",
    "message_id": "m-1",
    "timestamp": datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
    "type": "order",
    "app_id": "shop",
}
HEADERS = {"vip": True, "n": 1, "x": 1.5, "b": b"\x00\xff", "when": datetime(2026, 1, 1, tzinfo=UTC), "t": {"k": ["a", None]}}


def read(spark: SparkSession, live: LiveBroker, **options: Any) -> DataFrame:
    return spark.read.format("amqp").options(**amqp_options(live, **options)).load()


def write(rows: DataFrame, live: LiveBroker, **options: Any) -> None:
    rows.write.format("amqp").mode("append").options(**amqp_options(live, **options)).save()


def test_a_row_contains_the_whole_message(spark: SparkSession, live: LiveBroker, channel: Channel, queue: str) -> None:
    channel.put(queue, b'{"a": 1}', headers=HEADERS, **PROPERTIES)
    row = read(spark, live, queue=queue).collect()[0].asDict()
    assert {name: row[name] for name in PROPERTIES} == {**PROPERTIES, "timestamp": row["timestamp"]}
    assert row["timestamp"].timestamp() == PROPERTIES["timestamp"].timestamp()
    assert (row["source_queue"], row["exchange"], row["routing_key"], row["redelivered"]) == (queue, "", queue, False)
    assert bytes(row["body"]) == b'{"a": 1}'
    assert row["headers"] == (
        '{"vip": true, "n": 1, "x": 1.5, "b": {"$bytes": "AP8="}, "when": {"$timestamp": 1767225600}, "t": {"k": ["a", null]}}'
    )


def test_rows_that_were_read_are_published_unchanged(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    channel.put(queue, b"\x00body", headers=HEADERS, **PROPERTIES)
    channel.put(queue, b"")
    before = [
        (event.properties, event.body)
        for event in (channel.get(queue, no_ack=False), channel.get(queue, no_ack=False))
        if event
    ]
    channel.nack(0, multiple=True)
    channel.settle()
    drain(spark, queue, lambda rows: write(rows, live), url=live.url)
    wait_until(lambda: channel.count(queue) == 2)  # the receivers may have received them again
    after = [(event.properties, event.body) for event in (channel.get(queue), channel.get(queue)) if event]
    assert sorted(after, key=str) == sorted([(before[0][0], b"\x00body"), ({"delivery_mode": 2}, b"")], key=str)


def test_browsing_leaves_the_messages_and_respects_the_limit(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    channel.put(queue, *(b"%d" % n for n in range(30)))
    assert [bytes(row["body"]) for row in read(spark, live, queue=queue, limit=4).collect()] == [b"0", b"1", b"2", b"3"]
    assert read(spark, live, queue=queue).count() == 30
    assert channel.count(queue) == 30


def test_several_queues_are_browsed_up_to_the_limit(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    other = f"{queue}-other"
    channel.declare(other, durable=True)
    channel.put(queue, b"1", b"2")
    channel.put(other, b"3", b"4")
    rows = read(spark, live, queues=f"{queue},{other}", limit=3).collect()
    assert sorted((row["source_queue"], bytes(row["body"])) for row in rows) == [(queue, b"1"), (queue, b"2"), (other, b"3")]
    channel.delete(other)


def test_columns_to_publish_are_found_whatever_their_case(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    rows = spark.sql(
        f"SELECT '' AS Exchange, '{queue}' AS ROUTING_KEY, 'm' AS Body, 'id' AS Message_Id, 'q' AS Source_Queue, "
        "timestamp '2026-05-01 12:00:00' AS Received_At"
    )
    write(rows, live)
    assert publish(rows, url=live.url).confirmed == 1
    where = MessageFilter(since=datetime(2026, 5, 1, tzinfo=UTC), key=queue, queue="q")
    assert replay(rows.withColumn("more", F.lit(1)), url=live.url, where=where).published.confirmed == 1
    found = read(spark, live, queue=queue).collect()
    assert [(bytes(row["body"]), row["message_id"]) for row in found] == [(b"m", "id")] * 3
    other = spark.sql("SELECT 1 AS x")
    with pytest.raises(InvalidValueError, match=r"need the columns routing_key and body, found the columns x$"):
        replay(other, url=live.url)


def test_a_queue_that_delivers_nothing_is_an_error(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "SILENCE_S", 0.0)
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", single_active_consumer=True)
        channel.qos(1)
        channel.consume("q")
        channel.put("q", b"1", b"2")  # the first is delivered to the consumer, the second is ready
        reader = QueueReader({"url": broker.url, "queue": "q"})
        with pytest.raises(SilentQueueError, match=r"has 1 messages, and delivered none .* the option startingOffsets or"):
            list(reader.read(Share("q", 1)))


def test_large_and_empty_bodies(spark: SparkSession, live: LiveBroker, channel: Channel, queue: str) -> None:
    rows = spark.createDataFrame(
        [("", queue, bytearray(300_000)), ("", queue, bytearray())], "exchange string, routing_key string, body binary"
    )
    write(rows, live)
    assert sorted(len(row["body"]) for row in read(spark, live, queue=queue).collect()) == [0, 300_000]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queue": "nothing"}, "(?s)no queue 'nothing'"),
        ({}, "expected one of the options queue"),
        ({"queue": "q", "mode": "browse"}, "option 'mode' was removed: a batch always browses"),
        ({"queue": "q", "mode": "drain"}, r"option 'mode' was removed.* Use holtmq\.spark\.drain"),
        ({"queue": "q", "limit": "-1"}, "option 'limit' must be a whole number of at least 0, got '-1'"),
        ({"queue": "q", "lmit": "1"}, "unknown option 'lmit'"),
        ({"queue": "q", "url": "http://x"}, "expected a URI as in amqp://"),
        ({"queue": "q", "url": "amqp://127.0.0.1:1"}, "no broker at amqp://127.0.0.1:1/%2F"),
        ({"queue": "q", "password": "wrong"}, "ACCESS_REFUSED|refused"),
        (
            {"queue": "q", "passwordEnv": "NO_SUCH"},
            "the environment variable 'NO_SUCH', which should contain the password, is not set",
        ),
        ({"queue": "q", "passwordFile": "/no/such"}, "the password file '/no/such' cannot be read"),
    ],
)
def test_an_error_names_the_wrong_option(spark: SparkSession, live: LiveBroker, options: dict[str, str], match: str) -> None:
    with pytest.raises(PySparkException, match=match):
        read(spark, live, **options).collect()


def rows_to(spark: SparkSession, *keys: str | None) -> DataFrame:
    return spark.createDataFrame([("", key, "text") for key in keys], "exchange string, routing_key string, body string")


def test_messages_that_reach_no_queue_are_counted_and_reported(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    rows = rows_to(spark, queue, "nowhere", queue, "nowhere")
    with pytest.raises(
        PySparkException, match=r"2 of 4 messages reached no queue .*NO_ROUTE at exchange '' with key 'nowhere'"
    ):
        write(rows, live)
    write(rows, live, onReturn="count")
    write(rows, live, mandatory="false")
    outcome = publish(rows, url=live.url)
    assert (outcome.confirmed, outcome.returned) == (4, 2)
    assert outcome.first_return is not None
    assert channel.count(queue) == 8


def test_headers_may_be_a_map_or_a_struct(spark: SparkSession, live: LiveBroker, channel: Channel, queue: str) -> None:
    base = rows_to(spark, queue)
    write(base.withColumn("headers", F.create_map(F.lit("a"), F.lit(1))), live)
    write(base.withColumn("headers", F.struct(F.lit("x").alias("b"), F.lit(None).cast("int").alias("c"))), live)
    headers = [event.properties["headers"] for event in (channel.get(queue), channel.get(queue)) if event is not None]
    assert headers == [{"a": 1}, {"b": "x"}]


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("color", "red", "column 'color' is not a property of a message"),
        ("headers", "{broken", "headers: expected a JSON object"),
        ("routing_key", None, "column 'routing_key' is null in a row"),
        ("priority", 300, "a property of the message with key .* cannot be encoded"),
        ("exchange", "nothing", "no exchange 'nothing'"),
    ],
)
def test_rows_that_are_not_messages_fail_the_job_with_a_clear_error(
    spark: SparkSession, live: LiveBroker, queue: str, column: str, value: Any, match: str
) -> None:
    with pytest.raises(PySparkException, match=match):
        write(rows_to(spark, queue).withColumn(column, F.lit(value).cast("int" if isinstance(value, int) else "string")), live)


def test_published_messages_cannot_be_overwritten(spark: SparkSession) -> None:
    rows = spark.sql("select '' as exchange, 'q' as routing_key, 'm' as body")
    with pytest.raises(PySparkException, match="can't be overwritten: expected mode append, got overwrite"):
        rows.write.format("amqp").option("url", "amqp://127.0.0.1:1").mode("overwrite").save()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"url": "http://x"}, "expected a URI as in amqp://"),
        ({"url": None}, "url must be a string, got NoneType"),
        ({"window": 0}, "window must be a whole number of at least 1, got 0"),
        ({"retries": 1.5}, r"retries must be a whole number of at least 0, got 1\.5"),
        ({"mandatory": "perhaps"}, "mandatory must be true or false, got 'perhaps'"),
        ({"exchange": 7}, "exchange must be a string, got int"),
    ],
)
def test_publish_checks_its_options_before_the_job_starts(spark: SparkSession, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        publish(rows_to(spark, "q"), **{"url": "amqp://127.0.0.1:1", **options})


def test_tls_verifies_the_certificate(spark: SparkSession, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem = str(tmp_path / "server.pem")
    config = Config(data=":memory:", amqp_port=0, http_port=-1, tls_port=0, tls_certificate=pem, tls_key=pem)
    with running(config) as server:
        plain, secure = (int(address.rsplit(":", 1)[1]) for address in server.addresses[:2])
        with Amqp(plain) as amqp:
            amqp.channel().declare("q")
        url = f"amqps://127.0.0.1:{secure}"
        assert publish(rows_to(spark, "q", "q"), url=url, ca_file=str(tmp_path / "ca.pem")).confirmed == 2
        with pytest.raises(PySparkException, match="CERTIFICATE_VERIFY_FAILED"):
            publish(rows_to(spark, "q"), url=url, retries=0)
        source = spark.read.format("amqp").options(url=url, queue="q", verify="false").load()
        assert source.count() == 2


def test_a_broker_that_is_killed_and_restarted_gets_all_messages(spark: SparkSession, tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
        rows = spark.range(1500).selectExpr("'' as exchange", "'q' as routing_key", "cast(id as string) as body")
        with ThreadPoolExecutor() as pool:
            url = LiveBroker("holtmq", broker.port).url
            job = pool.submit(publish, rows.coalesce(1), url=url, rate=300, window=50)  # for five seconds
            wait_until(lambda: _count(broker.port, "q") > 0)
            broker.kill()
            broker.start()
            outcome = job.result(timeout=180)
        assert outcome.confirmed == 1500
        assert outcome.retried > 0
        with Amqp(broker.port) as amqp:
            assert {int(body) for body in amqp.channel().drain("q")} == set(range(1500))


def _count(port: int, queue: str) -> int:
    with Amqp(port) as amqp:
        return amqp.channel().count(queue)


def test_an_unreachable_broker_fails_the_job_after_the_retries(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="1 messages are not confirmed after 1 retries: no broker at"):
        publish(rows_to(spark, "q"), url="amqp://127.0.0.1:1", retries=1)
