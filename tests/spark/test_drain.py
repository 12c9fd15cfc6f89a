"""drain(): messages leave their queue when they are written, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holtmq import Exchange, Queue, Topology
from holtmq.errors import InvalidValueError
from holtmq.spark import drain, route
from tests.amqp_client import Channel
from tests.spark.conftest import LiveBroker, wait_until


def test_a_batch_can_be_read_any_number_of_times_and_is_removed_when_it_is_written(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    """What lost messages with a batch source: jobs that read a part, jobs that read twice, and retried tasks."""
    channel.put(queue, *(b"%d" % n for n in range(300)))
    topology = Topology((Exchange("shop", "topic"),), (Queue(queue),), ())
    sizes: list[int] = []

    def write(rows: DataFrame) -> None:
        assert len(rows.limit(1).collect()) == 1
        sizes.append(rows.count())
        routed = route(rows, topology, exchange="")
        assert {row["queue"] for row in routed.select("queue").distinct().collect()} == {queue}
        routed.write.mode("append").parquet(str(tmp_path / "out"))

    summary = drain(spark, queue, write, url=live.url, max_messages_per_trigger=200)
    assert (summary.messages, summary.batches) == (300, len(sizes))
    assert sum(sizes) == 300
    assert max(sizes) <= 200
    written = spark.read.parquet(str(tmp_path / "out")).select("body").collect()
    assert sorted(int(bytes(row["body"])) for row in written) == list(range(300))
    wait_until(lambda: channel.count(queue) == 0)
    assert drain(spark, [queue], write, url=live.url).to_dict() == {"messages": 0, "batches": 0}


def test_messages_stay_in_the_queue_if_they_cannot_be_written(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str
) -> None:
    channel.put(queue, *(b"%d" % n for n in range(50)))

    def fail(rows: DataFrame) -> None:
        assert rows.count() == 50
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        drain(spark, queue, fail, url=live.url)
    wait_until(lambda: channel.count(queue) == 50)


def test_options_are_checked_before_the_job_starts(spark: SparkSession) -> None:
    with pytest.raises(InvalidValueError, match="prefetch must be a whole number from 1 to 65535, got 0"):
        drain(spark, "q", DataFrame.count, url="amqp://127.0.0.1:1", prefetch=0)
    with pytest.raises(InvalidValueError, match="write must be a function of a DataFrame, got 'lake/q'"):
        drain(spark, "q", "lake/q", url="amqp://127.0.0.1:1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        (["a,b"], "queue contains the name 'a,b': in a list, expected names without commas, and without spaces around"),
        (["a", " b"], "queue contains the name ' b': in a list, expected names without commas"),
        (["a", 3], "queue must be the name of a queue, or a list of names, got 3"),
        (3, "queue must be the name of a queue, or a list of names, got 3"),
    ],
)
def test_a_list_of_queues_is_a_list_of_names_without_commas(spark: SparkSession, queue: Any, message: str) -> None:
    """The source gets the names as one text. It would drain the queues a and b instead of the queue a,b."""
    with pytest.raises(InvalidValueError, match=message):
        drain(spark, queue, DataFrame.count, url="amqp://127.0.0.1:1")
