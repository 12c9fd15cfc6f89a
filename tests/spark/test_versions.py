"""What each version of Spark supports. `make test-oldest-spark` runs this with the oldest one."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import holtmq.spark
from holtmq import Binding, Exchange, Queue, Topology
from holtmq.spark import compare, register, versions
from holtmq.spark.registration import TooOldForAmqp
from holtmq.spark.versions import AMQP, SparkVersionError, require_spark, spark_version

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


def test_every_name_that_needs_no_stream_is_found_on_the_oldest_spark() -> None:
    needs_newer = {"StreamMetrics", "archive", "drain", "stream_metrics"} if spark_version() < AMQP else set()
    for name in set(holtmq.spark.__all__) - needs_newer:
        assert getattr(holtmq.spark, name).__doc__, name
