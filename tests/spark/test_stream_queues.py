"""`format("amqp")` on stream queues: ranges of offsets, in batches and as a stream, and the jobs that read them."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from holtmq.cli.main import main
from holtmq.client.blocking_connection import BlockingConnection, RefusedError
from holtmq.client.delivered_offset import NotAStreamError
from holtmq.client.publisher import Outgoing, Publisher
from holtmq.errors import InvalidValueError
from holtmq.spark import archive, read_archive, replay, stream_metrics
from holtmq.spark.amqp import stream_queue_follower
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions
from holtmq.spark.amqp.fixed_offsets import fix_offsets
from holtmq.spark.amqp.message_numbers import BATCH_ID, QUERY_ID
from holtmq.spark.amqp.offset_range import OffsetRange
from holtmq.spark.amqp.range_reader import DataLossError, RangeReader
from holtmq.spark.amqp.remote_stream import RemoteStream
from holtmq.spark.amqp.row_publisher import RowPublisher
from holtmq.spark.amqp.stream_queue_follower import StreamQueueFollower
from holtmq.spark.amqp.stream_queue_reader import StreamQueueReader
from holtmq.wire.content import encode_properties
from tests.amqp_client import Amqp, Channel
from tests.deadline import eventually
from tests.server.process import BrokerProcess, broker_process
from tests.spark.conftest import LiveBroker, amqp_options, wait_until
from tests.spark.test_guarantees import application

NOW = datetime(2026, 10, 1, 12, tzinfo=UTC)
on_holtmq = pytest.mark.parametrize("live", ["holtmq"], indirect=True)
"""For rules that do not depend on the broker."""


@pytest.fixture(scope="module")
def holtmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that the tests of this module share."""
    with broker_process(tmp_path_factory.mktemp("streams") / "broker.db", "--http-port", "0") as broker:
        yield broker


@pytest.fixture(params=["holtmq", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def live(request: pytest.FixtureRequest) -> LiveBroker:
    """HoltMQ, then RabbitMQ."""
    if request.param == "rabbitmq":
        return LiveBroker("rabbitmq", request.getfixturevalue("rabbitmq").amqp_port)
    return LiveBroker("holtmq", request.getfixturevalue("holtmq").port)


@pytest.fixture
def channel(live: LiveBroker) -> Iterator[Channel]:
    with Amqp(live.port) as amqp:
        yield amqp.channel()


@pytest.fixture
def stream(channel: Channel) -> Iterator[str]:
    """A stream queue for one test."""
    name = f"stream-{uuid.uuid4()}"
    channel.declare(name, durable=True, queue_type="stream")
    yield name
    channel.delete(name)


def put(live: LiveBroker, queue: str, numbers: range, **properties: Any) -> None:
    """Publish messages and wait for the confirms."""
    publisher = Publisher(lambda: BrokerOptions(url=live.url).connect("test"))
    publisher.publish(Outgoing("", queue, encode_properties(properties), b"%d" % number) for number in numbers)
    publisher.flush()
    publisher.close()


def read(spark: SparkSession, live: LiveBroker, queue: str, **options: Any) -> DataFrame:
    options = {"startingOffsets": "earliest", **options}
    return spark.read.format("amqp").options(**amqp_options(live, queue=queue, **options)).load()


def ranges(live: LiveBroker, queue: str, start: str = "earliest") -> list[OffsetRange]:
    """Return the plan of a batch."""
    return StreamQueueReader(amqp_options(live, queue=queue, startingOffsets=start)).partitions()


def offsets(rows: DataFrame) -> list[int]:
    return [row["offset"] for row in rows.select("offset").collect()]


def test_a_range_is_read_in_parallel_with_its_offsets(spark: SparkSession, live: LiveBroker, stream: str) -> None:
    put(live, stream, range(300), headers={"vip": True}, message_id="m", delivery_mode=2)
    rows = read(spark, live, stream, minPartitions=3)
    assert rows.rdd.getNumPartitions() == 3
    found = rows.collect()
    assert [(row["offset"], int(bytes(row["body"]))) for row in found] == [(number, number) for number in range(300)]
    first = found[0]
    assert (first["source_queue"], first["routing_key"], first["message_id"]) == (stream, stream, "m")
    assert json.loads(first["headers"]) == {"vip": True}
    assert b"x-stream-offset" not in bytes(first["properties_raw"])
    assert offsets(read(spark, live, stream, startingOffsets=150, endingOffsets=160)) == list(range(150, 160))
    assert offsets(read(spark, live, stream, startingOffsets=f'{{"{stream}": 298}}')) == [298, 299]


def test_a_stream_without_messages_is_an_empty_batch(spark: SparkSession, live: LiveBroker, stream: str) -> None:
    assert offsets(read(spark, live, stream)) == []
    put(live, stream, range(3))
    assert offsets(read(spark, live, stream, startingOffsets="latest")) == []
    assert offsets(read(spark, live, stream, startingOffsets=2, endingOffsets=2)) == []


def test_a_position_is_found_in_a_stream(live: LiveBroker, stream: str) -> None:
    found = RemoteStream(BrokerOptions(url=live.url), stream)
    try:
        assert found.end() is None
        put(live, stream, range(10))
        assert (found.first(), found.end()) == (0, 10)
        put(live, stream, range(2000))  # more than the tail has room for
        eventually(lambda: found.end() == 2010, "the tail to reach the end")
        assert (found.find("earliest"), found.find("latest"), found.find(7)) == (0, 2010, 7)
        now = datetime.now(UTC)
        assert (found.find(now - timedelta(hours=1)), found.find(timedelta(hours=1))) == (0, 0)
        assert found.find(now + timedelta(hours=1)) == 2010
    finally:
        found.close()


def test_fixed_offsets_name_the_same_messages_later(live: LiveBroker, channel: Channel, stream: str) -> None:
    empty = f"{stream},empty"
    channel.declare(empty, durable=True, queue_type="stream")
    put(live, stream, range(10))
    fixed = {}
    for name, (queue, start, end) in {
        "all": (stream, "earliest", "latest"), "last hour": (stream, "1h", "latest"), "part": (stream, "2", "7"),
        "new": (stream, "latest", "latest"), "empty": (empty, "earliest", "latest"),
    }.items():  # fmt: skip
        fixed[name] = fix_offsets(amqp_options(live, queue=queue, startingOffsets=start, endingOffsets=end, minPartitions=1))
    put(live, stream, range(10))
    put(live, empty, range(1))
    found = {name: [(part.start, part.end) for part in StreamQueueReader(given).partitions()] for name, given in fixed.items()}
    assert found == {"all": [(0, 10)], "last hour": [(0, 10)], "part": [(2, 7)], "new": [], "empty": []}
    channel.delete(empty)


@on_holtmq
@pytest.mark.parametrize(("start", "end"), [("1200", "latest"), ("7", "2")])
def test_a_start_after_the_end_is_an_empty_range(live: LiveBroker, stream: str, start: str, end: str) -> None:
    put(live, stream, range(10))
    (plan,) = StreamQueueReader(amqp_options(live, queue=stream, startingOffsets=start, endingOffsets=end)).ranges()
    assert len(plan) == 0


def test_a_queue_that_is_not_a_stream_is_refused_and_keeps_its_messages(live: LiveBroker, channel: Channel, queue: str) -> None:
    for headers in ({}, {"x-stream-offset": 1}):  # as a shovel from a stream may leave it
        channel.put(queue, b"m", headers=headers)
        with pytest.raises(NotAStreamError, match=f"queue '{queue}' is not a stream queue"):
            ranges(live, queue)
        assert eventually(lambda: channel.get(queue), "the message to be in the queue")
    with pytest.raises(RefusedError, match="no queue 'nothing'"):
        ranges(live, "nothing")


def test_a_task_goes_on_where_it_was_after_the_broker_is_killed(killable_broker: BrokerProcess) -> None:
    live = LiveBroker("holtmq", killable_broker.port)
    with Amqp(live.port) as amqp:
        amqp.channel().declare("s", durable=True, queue_type="stream")
    put(live, "s", range(12_000), headers={"n": 1})
    reader = RangeReader(BrokerOptions(url=live.url), OffsetRange("s", 100, 12_000, NOW), fail_on_data_loss=True)
    rows = reader.read()
    found = next(rows).column("offset").to_pylist()
    assert len(found) < 12_000
    killable_broker.kill()
    killable_broker.start()
    found += [offset for batch in rows for offset in batch.column("offset").to_pylist()]
    assert found == list(range(100, 12_000))


@pytest.fixture
def short_stream(channel: Channel) -> Iterator[str]:
    """A stream queue that keeps few messages.

    With segments of 1,000 bytes, about one in ten streams of RabbitMQ 3.10.8 delivers nothing more from its first offset.
    """
    name = f"stream-{uuid.uuid4()}"
    limits: dict[str, Any] = {"max_length_bytes": 40_000, "stream_max_segment_size_bytes": 20_000}
    channel.declare(name, durable=True, queue_type="stream", **limits)
    yield name
    channel.delete(name)


def push_out(live: LiveBroker, queue: str, offset: int) -> None:
    """Publish until the broker has removed the message at an offset."""
    stream = RemoteStream(BrokerOptions(url=live.url), queue)

    def is_removed() -> bool:
        put(live, queue, range(1000))
        first = stream.first()
        return first is not None and first > offset

    eventually(is_removed, "the broker to remove the first messages")


def test_a_range_that_was_removed_fails_or_is_skipped(
    live: LiveBroker, short_stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    push_out(live, short_stream, 0)
    broker, (plan,) = BrokerOptions(url=live.url), ranges(live, short_stream)
    with pytest.raises(DataLossError, match=f"the messages from offset 0 on were removed from the stream '{short_stream}'"):
        ranges(live, short_stream, "0")
    part = OffsetRange(short_stream, 0, plan.end, NOW)  # planned before they were removed
    with pytest.raises(DataLossError, match="set failOnDataLoss to false to skip them"):
        list(RangeReader(broker, part, fail_on_data_loss=True).read())
    rows = [row for batch in RangeReader(broker, part, fail_on_data_loss=False).read() for row in batch.to_pylist()]
    assert rows[0]["offset"] >= plan.start
    assert rows[-1]["offset"] == plan.end - 1
    assert "They are skipped" in caplog.text


@pytest.fixture
def damaged_stream(tmp_path: Path) -> Iterator[Callable[..., LiveBroker]]:
    """Start a broker with a stream `s` of 30 messages, of which some cannot be read."""
    with ExitStack() as stack:

        def start(*damaged: int) -> LiveBroker:
            path = tmp_path / "damaged.db"
            with broker_process(path) as broker:
                with Amqp(broker.port) as amqp:
                    amqp.channel().declare("s", durable=True, queue_type="stream")
                put(LiveBroker("holtmq", broker.port), "s", range(1000, 1030))
            with closing(sqlite3.connect(path)) as file, file:
                (content,) = file.execute("SELECT content FROM stream_contents").fetchone()
                changed = b"".join(b"????" if n in damaged else content[4 * n : 4 * n + 4] for n in range(30))
                file.execute("UPDATE stream_contents SET content = ?", (changed,))
            return LiveBroker("holtmq", stack.enter_context(broker_process(path)).port)

        yield start


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ([7], "the message at offset 7 of the stream 's' is damaged in the broker's file: the broker's log says how"),
        ([0, 1], "2 messages of the stream 's' are damaged, from offset 0 to 1"),
        ([29], "the message at offset 29 of the stream 's' is damaged"),
        ([*range(30)], "30 messages of the stream 's' are damaged, from offset 0 to 29"),
    ],
    ids=["in the middle", "at the start", "at the end", "all"],
)
def test_a_damaged_message_is_a_loss_and_not_taken_for_retention(
    spark: SparkSession,
    damaged_stream: Callable[..., LiveBroker],
    tmp_path: Path,
    damaged: list[int],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    live = damaged_stream(*damaged)
    intact = [number for number in range(30) if number not in damaged]
    (plan,) = ranges(live, "s")
    assert (plan.start, plan.end) == (0, 30)
    with pytest.raises(PySparkException, match=message):
        offsets(read(spark, live, "s"))
    assert offsets(read(spark, live, "s", failOnDataLoss="false")) == intact
    with pytest.raises(StreamingQueryException, match=message):
        archive(spark, "s", str(tmp_path / "none"), url=live.url, starting_offsets="earliest")
    target = str(tmp_path / "archive")
    summary = archive(spark, "s", target, url=live.url, starting_offsets="earliest", fail_on_data_loss=False)
    assert summary.stream is not None
    assert (summary.messages, summary.stream.received) == (len(intact), 30)
    list(RangeReader(BrokerOptions(url=live.url), plan, fail_on_data_loss=False).read())  # in this process
    assert "in the broker's file. They are skipped" in caplog.text


@pytest.mark.usefixtures("spark")
def test_a_command_fails_at_a_damaged_message_unless_it_may_skip_it(
    damaged_stream: Callable[..., LiveBroker], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = damaged_stream(3, 17).url
    everything = ("--exchange", "amq.fanout", "--allow-unroutable", "--amqp-url", url)
    replayed = ("replay", url, "--queue", "s", *everything)
    archived = ("archive", "s", str(tmp_path), "--from", "earliest", "--amqp-url", url)
    for command in (replayed, archived):
        assert main(["pipeline", *command]) == 1
        assert re.fullmatch(
            r"holtmq: (2 messages of the stream 's' are damaged, from offset 3 to 17|the message at offset (3|17) of the "
            r"stream 's' is damaged) in the broker's file: .* \(--allow-data-loss\)\n",
            capsys.readouterr().err,
        )
    for command, count in ((replayed, "confirmed"), (archived, "messages")):
        assert main(["pipeline", *command, "--allow-data-loss", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[count] == 28


class ShrinkingBroker(BrokerOptions):
    """Removes the first message of a stream before the second connection is opened."""

    looks: list[str] = []  # noqa: RUF012
    """The name of the stream, and those of the connections."""

    def connect(self, name: str) -> BlockingConnection:
        self.looks.append(name)
        if len(self.looks) == 3:
            push_out(LiveBroker("holtmq", self.address().port), self.looks[0], 0)
        return BrokerOptions.connect(self, name)


@on_holtmq
def test_a_stream_whose_first_message_is_removed_meanwhile_is_still_a_stream(live: LiveBroker, short_stream: str) -> None:
    put(live, short_stream, range(1))
    ShrinkingBroker.looks[:] = [short_stream]
    first = RemoteStream(ShrinkingBroker(url=live.url), short_stream).first()
    assert first is not None
    assert first > 0


def test_a_stream_reads_each_offset_once_and_reports_its_lag(
    spark: SparkSession, live: LiveBroker, stream: str, tmp_path: Path
) -> None:
    put(live, stream, range(250))
    options = amqp_options(live, queue=stream, startingOffsets="50", maxOffsetsPerTrigger=80)
    batches: dict[int, list[int]] = {}

    def run() -> Any:
        rows = spark.readStream.format("amqp").options(**options).load()
        writer = rows.writeStream.foreachBatch(lambda batch, number: batches.update({number: offsets(batch)}))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run()
    assert batches == {0: [*range(50, 130)], 1: [*range(130, 210)], 2: [*range(210, 250)]}
    lags = [json.loads(each["sources"][0]["latestOffset"])["lags"][stream] for each in query.recentProgress]
    assert lags[:3] == [200, 120, 40]
    put(live, stream, range(250, 300))
    query = run()
    assert batches[3] == [*range(250, 300)]
    metrics = stream_metrics(query)
    assert metrics is not None
    assert (metrics.received, metrics.acknowledged) == (50, 0)


class Checkpoint:
    """What Spark does with the driver's part of a query: it asks for the end of each micro-batch, and stores it."""

    def __init__(self, live: LiveBroker, **options: Any) -> None:
        self._options = amqp_options(live, announce="false", **options)
        self._end: dict[str, Any] | None = None
        self.start_query()

    def start_query(self) -> None:
        self._follower = StreamQueueFollower(self._options)
        if self._end is None:
            self._end = json.loads(json.dumps(self._follower.initialOffset()))

    def plan(self) -> dict[str, tuple[int, int]]:
        """Return what is read of each stream in the next micro-batch."""
        assert self._end is not None
        start, self._end = self._end, json.loads(json.dumps(self._follower.latestOffset(self._end, ReadAllAvailable())))
        return {part.queue: (part.start, part.end) for part in self._follower.partitions(start, self._end)}

    def stop(self) -> None:
        self._follower.stop()


def declare_again(live: LiveBroker, channel: Channel, queue: str, numbers: range) -> None:
    channel.delete(queue)
    channel.declare(queue, durable=True, queue_type="stream")
    put(live, queue, numbers)


@pytest.mark.parametrize("query_is", ["running", "stopped"])
@pytest.mark.parametrize(
    ("start", "size"),
    [("earliest", 3), ("earliest", 40), ("latest", 3), ("1200", 3)],
    ids=["shorter", "longer", "unread", "future"],
)
def test_a_stream_that_was_declared_again_is_a_loss(
    live: LiveBroker, channel: Channel, stream: str, start: str, size: int, query_is: str
) -> None:
    put(live, stream, range(10))
    fails, skips = (Checkpoint(live, queue=stream, startingOffsets=start, failOnDataLoss=fail) for fail in (True, False))
    for query in (fails, skips):
        assert query.plan() == ({stream: (0, 10)} if start == "earliest" else {})
        if query_is == "stopped":
            query.stop()
    declare_again(live, channel, stream, range(100, 100 + size))
    for query in (fails, skips) if query_is == "stopped" else ():
        query.start_query()
    with pytest.raises(
        DataLossError, match=rf"the stream '{stream}' was deleted and declared again\. .* at offset (10|1,200) of"
    ):
        eventually(fails.plan, "the new stream to have a message")
    assert eventually(skips.plan, "the new stream to have a message") == {stream: (0, size)}
    assert skips.plan() == {}
    for query in (fails, skips):
        query.stop()


def test_a_query_that_starts_again_recognises_its_stream(live: LiveBroker, short_stream: str) -> None:
    put(live, short_stream, range(10))
    query = Checkpoint(live, queue=short_stream, startingOffsets="5")
    assert query.plan() == {short_stream: (5, 10)}
    for _ in range(2):
        query.stop()
        query.start_query()
        assert query.plan() == {}
    put(live, short_stream, range(10, 13))
    assert eventually(query.plan, "the messages to arrive") == {short_stream: (10, 13)}
    query.stop()
    push_out(live, short_stream, 12)
    query.start_query()
    assert query.plan()[short_stream][0] == 13
    query.stop()


@on_holtmq
def test_a_stream_of_a_pattern_may_be_deleted(
    live: LiveBroker, channel: Channel, holtmq: BrokerProcess, super_stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_queue_follower, "LOOK_S", 0)
    first, second = f"{super_stream}-0", f"{super_stream}-1"
    for name in (first, second):
        put(live, name, range(5))
    url = f"http://127.0.0.1:{holtmq.http_port}"
    query = Checkpoint(
        live, queuePattern=f"{super_stream}-[0-9]+", managementUrl=url, startingOffsets="earliest", failOnDataLoss=False
    )
    assert query.plan() == {first: (0, 5), second: (0, 5)}
    channel.delete(first)
    put(live, second, range(5, 7))
    assert eventually(query.plan, "the messages to arrive") == {second: (5, 7)}
    channel.delete(second)
    assert query.plan() == {}
    declare_again(live, channel, first, range(100, 103))
    assert eventually(query.plan, "the new stream to have a message") == {first: (0, 3)}
    query.stop()


@on_holtmq
def test_a_stream_that_was_deleted_before_it_was_read_fails_or_is_skipped(
    live: LiveBroker, caplog: pytest.LogCaptureFixture
) -> None:
    part = OffsetRange(f"gone-{uuid.uuid4()}", 0, 10, NOW)
    with pytest.raises(DataLossError, match="was deleted before its messages from offset 0 to 9 were read"):
        list(RangeReader(BrokerOptions(url=live.url), part, fail_on_data_loss=True).read())
    assert list(RangeReader(BrokerOptions(url=live.url), part, fail_on_data_loss=False).read()) == []
    assert "They are skipped" in caplog.text


@pytest.fixture
def super_stream(channel: Channel) -> Iterator[str]:
    """A super stream with the partitions `NAME-0` and `NAME-1`."""
    name = f"super-{uuid.uuid4()}"
    channel.declare_exchange(name, "x-consistent-hash", durable=True)
    for partition in (f"{name}-0", f"{name}-1"):
        channel.declare(partition, durable=True, queue_type="stream")
        channel.bind(partition, name, "1")
    yield name
    for partition in (f"{name}-0", f"{name}-1"):
        channel.delete(partition)


@on_holtmq
@pytest.mark.parametrize("by", ["queues", "queuePattern"])
def test_a_stream_reads_the_partitions_of_a_super_stream(
    spark: SparkSession, live: LiveBroker, holtmq: BrokerProcess, super_stream: str, tmp_path: Path, by: str
) -> None:
    publisher = Publisher(lambda: BrokerOptions(url=live.url).connect("test"))
    publisher.publish(Outgoing(super_stream, f"key.{number}", bytes(2), b"%d" % number) for number in range(100))
    publisher.flush()
    publisher.close()
    first, second = f"{super_stream}-0", f"{super_stream}-1"
    sizes = {part.queue: len(part) for name in (first, second) for part in ranges(live, name)}
    assert (len(sizes), sum(sizes.values())) == (2, 100)
    chosen = {"queues": f"{first},{second}"}
    if by == "queuePattern":
        chosen = {by: f"{super_stream}-[0-9]+", "managementUrl": f"http://127.0.0.1:{holtmq.http_port}"}
    starts = json.dumps({first: 5, second: "earliest"})
    options = amqp_options(live, startingOffsets=starts, maxOffsetsPerTrigger=60, **chosen)
    read: list[tuple[str, int]] = []

    def write(batch: DataFrame, _: int) -> None:
        read.extend((row["source_queue"], row["offset"]) for row in batch.select("source_queue", "offset").collect())

    writer = spark.readStream.format("amqp").options(**options).load().writeStream.foreachBatch(write)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    expected = [(first, offset) for offset in range(5, sizes[first])] + [(second, offset) for offset in range(sizes[second])]
    assert sorted(read) == expected
    lags = [json.loads(each["sources"][0]["latestOffset"])["lags"] for each in query.recentProgress]
    assert lags[0] == {first: sizes[first] - 5, second: sizes[second]}
    assert sum(lags[1].values()) == 35
    assert lags[1].keys() == {first, second}


@on_holtmq
def test_a_stream_queue_is_archived_and_stays(spark: SparkSession, live: LiveBroker, stream: str, tmp_path: Path) -> None:
    put(live, stream, range(100))
    summary = archive(spark, stream, str(tmp_path), url=live.url, starting_offsets="40", format="json")
    assert (summary.messages, summary.batches) == (60, 1)
    assert summary.stream is not None
    assert (summary.stream.lag, summary.stream.received) == (0, 60)
    assert sorted(offsets(read_archive(spark, str(tmp_path), format="json"))) == list(range(40, 100))
    assert [len(part) for part in ranges(live, stream)] == [100]


COPY = """
import sys
from pathlib import Path
from holtmq.spark import register, session
url, queue, folder = sys.argv[1:]
spark = session("local[2]", config={"spark.driver.memory": "1g"})
register(spark)
def write(batch, number):
    batch.write.mode("overwrite").parquet(f"{folder}/out/{number}")
    Path(folder, f"written-{number}").touch()
    if number == 1:
        sys.stdin.read()  # the batch is written, and not committed
options = dict(url=url, queue=queue, startingOffsets="latest", maxOffsetsPerTrigger="100", minPartitions="2")
rows = spark.readStream.format("amqp").options(**options).load()
rows.writeStream.foreachBatch(write).option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
"""


@on_holtmq
def test_an_application_that_is_killed_in_a_micro_batch_copies_each_offset_once(
    spark: SparkSession, live: LiveBroker, stream: str, tmp_path: Path
) -> None:
    put(live, stream, range(10))
    with application("-c", COPY, live.url, stream, str(tmp_path)) as process:
        # the first micro-batch has no messages, and shows that the end of the stream is known
        wait_until(lambda: (tmp_path / "written-0").exists() or process.poll() is not None)
        put(live, stream, range(10, 260))
        wait_until(lambda: (tmp_path / "written-1").exists() or process.poll() is not None)
        assert process.poll() is None, "the application failed"
        os.killpg(process.pid, signal.SIGKILL)
    before = spark.read.parquet(str(tmp_path / "out" / "1")).sort("offset").collect()

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(tmp_path / "out" / str(number)))

    options = amqp_options(live, queue=stream, startingOffsets="latest", maxOffsetsPerTrigger=100, minPartitions=2)
    writer = spark.readStream.format("amqp").options(**options).load().writeStream.foreachBatch(write)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out" / "1")).sort("offset").collect() == before
    folders = [str(folder) for folder in (tmp_path / "out").iterdir()]
    assert sorted(offsets(spark.read.parquet(*folders))) == list(range(10, 260))


@on_holtmq
def test_numbered_messages_can_be_replayed_into_a_stream_that_has_them(
    spark: SparkSession, live: LiveBroker, stream: str
) -> None:
    for number in range(3):
        put(live, stream, range(number, number + 1), headers={"x-publisher": "p", "x-publishing-id": number, "kept": True})
    rows = read(spark, live, stream, endingOffsets=3)
    assert replay(rows, url=live.url).published.confirmed == 3
    replay(rows, url=live.url, exact=True)  # with their numbers, which the stream has
    stored = read(spark, live, stream).collect()
    assert [int(bytes(row["body"])) for row in stored] == [0, 1, 2, 0, 1, 2]
    assert [list(json.loads(row["headers"])) for row in stored[3:]] == [["kept", "x-holtmq-replay"]] * 3


def test_the_name_of_a_publisher_leaves_room_for_the_query_and_the_partition() -> None:
    with pytest.raises(InvalidValueError, match="publisher must have 1 to 200 characters, got 201"):
        PublishOptions(publisher="p" * 201)


@on_holtmq
def test_a_micro_batch_that_was_published_in_part_is_stored_once(spark: SparkSession, live: LiveBroker, stream: str) -> None:
    options, schema = (
        amqp_options(live, publisher="p", exchange=""),
        StructType().add("routing_key", "string").add("body", "string"),
    )
    context = spark.sparkContext

    def publish(*parts: range, fails: bool) -> None:
        def batches() -> Iterator[pa.RecordBatch]:
            for part in parts:
                yield pa.RecordBatch.from_pydict({"routing_key": [stream] * len(part), "body": [str(n) for n in part]})
            if fails:
                raise RuntimeError

        def task(_: Iterable[int]) -> Iterable[int]:
            with suppress(RuntimeError):
                yield RowPublisher.parse(options, schema).send(batches()).confirmed

        confirmed = context.parallelize([0], 1).mapPartitions(task).collect()
        assert confirmed == ([] if fails else [100])

    for name, value in ((QUERY_ID, "query"), (BATCH_ID, "3")):
        context.setLocalProperty(name, value)
    try:
        publish(range(50), fails=True)
        found = RemoteStream(BrokerOptions(url=live.url), stream)
        eventually(lambda: found.end() == 50, "a part of the micro-batch to be stored")
        found.close()
        publish(range(50), range(50, 100), fails=False)
    finally:
        for name in (QUERY_ID, BATCH_ID):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # which removes it
    stored = RangeReader(BrokerOptions(url=live.url), *ranges(live, stream), fail_on_data_loss=True)
    assert [int(body) for rows in stored.read() for body in rows["body"].to_pylist()] == [*range(100)]


@on_holtmq
def test_a_micro_batch_that_is_published_again_is_stored_once(
    spark: SparkSession, live: LiveBroker, channel: Channel, stream: str, tmp_path: Path
) -> None:
    put(live, stream, range(1), headers={"x-publisher": "other", "x-publishing-id": 7, "kept": True})
    put(live, stream, range(1, 4), headers={"kept": True})
    copy = f"{stream}-copy"
    channel.declare(copy, durable=True, queue_type="stream")
    rows = spark.readStream.format("amqp").options(
        **amqp_options(live, queue=stream, startingOffsets="earliest", maxOffsetsPerTrigger=2)
    )
    to_copy = rows.load().selectExpr("'' as exchange", f"'{copy}' as routing_key", "headers", "body")
    for batches in ([0, 1], [1]):
        writer = to_copy.writeStream.format("amqp").options(**amqp_options(live, publisher="copy"))
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        assert [each["batchId"] for each in query.recentProgress if each["numInputRows"]] == batches
        copied = RangeReader(BrokerOptions(url=live.url), OffsetRange(copy, 0, 4, NOW), fail_on_data_loss=True)
        stored = [row for batch in copied.read() for row in batch.to_pylist()]
        numbers = [0, 1, 1 << 32, (1 << 32) + 1]
        assert [json.loads(row["headers"]) for row in stored] == [
            {"kept": True, "x-publisher": f"copy/{query.id}/0", "x-publishing-id": number} for number in numbers
        ]
        assert [len(part) for part in ranges(live, copy)] == [4]
        (tmp_path / "commits" / "1").unlink(missing_ok=True)  # as after a crash: the last micro-batch runs again
        (tmp_path / "commits" / ".1.crc").unlink(missing_ok=True)
    channel.delete(copy)
