"""What each version of Spark supports. `make test-oldest-spark` runs this with the oldest one."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import holtmq.spark
from holtmq import Binding, Exchange, Queue, Topology
from holtmq.spark import MessageFilter, compare, publish, read_archive, register, replay, route_batches, versions
from holtmq.spark.changing_topology import version_of
from holtmq.spark.registration import TooOldForAmqp
from holtmq.spark.versions import AMQP, SparkVersionError, require_spark, spark_version
from tests.amqp_client import Amqp
from tests.server.process import broker_process

SHOP = Topology((Exchange("orders", "topic"),), (Queue("all"),), (Binding("orders", "all", "orders.#"),))


def test_a_spark_that_is_too_old_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.4.dev0")
    assert spark_version() == (4, 1)
    require_spark((4, 1), "route")
    monkeypatch.delitem(vars(holtmq.spark), "archive", raising=False)
    with pytest.raises(SparkVersionError, match=r"holtmq\.spark\.archive needs Spark 4\.3 or later, found 4\.1\.4\.dev0: pip"):
        _ = holtmq.spark.archive
    monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    monkeypatch.delitem(vars(holtmq.spark), "route", raising=False)
    with pytest.raises(SparkVersionError, match=r"holtmq\.spark\.route needs Spark 4\.0 or later, found 3\.5\.9"):
        _ = holtmq.spark.route


def test_the_amqp_source_says_that_spark_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    with pytest.raises(SparkVersionError, match=r"format\(\"amqp\"\) needs Spark 4\.3 or later, found 4\.2\.1"):
        TooOldForAmqp({}).schema()


def test_routing_needs_no_newer_spark(spark: SparkSession) -> None:
    messages = spark.sql("SELECT 'orders' AS exchange, 'orders.food' AS routing_key")
    comparison = compare(messages, SHOP, Topology(SHOP.exchanges, SHOP.queues, ()))
    assert (comparison.messages, comparison.losing) == (1, 1)
    register(spark)
    if spark_version() < AMQP:
        with pytest.raises(PySparkException, match=r"needs Spark 4\.3 or later"):
            spark.read.format("amqp").load()
    assert spark_version() >= versions.OLDEST


def test_messages_are_published_archived_and_replayed_without_a_newer_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("", "inbox", "1"), ("", "inbox", "2")], "exchange string, routing_key string, body string")
    archived = str(tmp_path / "archive")
    rows.write.parquet(archived)
    with broker_process(tmp_path / "broker.db") as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("inbox", durable=True)
        url = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        assert publish(rows, url=url).confirmed == 2
        stored = read_archive(spark, archived)
        assert replay(stored, where=MessageFilter(key="inbox"), url=url).published.confirmed == 2
        found = [channel.get("inbox") for _ in range(4)]
    assert sorted(message.body for message in found if message is not None) == [b"1", b"1", b"2", b"2"]


def test_a_stream_is_routed_in_micro_batches_without_a_newer_spark(spark: SparkSession, tmp_path: Path) -> None:
    messages = spark.sql("SELECT 'orders' AS exchange, 'orders.food' AS routing_key")
    messages.write.parquet(str(tmp_path / "in"))
    routed: list[tuple[str, str]] = []

    def write(deliveries: DataFrame, _: int) -> None:
        routed.extend((row["queue"], row["topology_version"]) for row in deliveries.collect())

    stream = spark.readStream.schema(messages.schema).parquet(str(tmp_path / "in"))
    writer = stream.writeStream.foreachBatch(route_batches(write, lambda: SHOP)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    assert routed == [("all", version_of(SHOP))]


def test_every_name_that_needs_no_stream_is_found_on_the_oldest_spark() -> None:
    needs_newer = {"StreamMetrics", "archive", "drain", "stream_metrics"} if spark_version() < AMQP else set()
    for name in set(holtmq.spark.__all__) - needs_newer:
        assert getattr(holtmq.spark, name).__doc__, name
