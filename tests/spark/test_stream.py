"""`format("amqp")` as a stream: micro-batches, their limits, and what is acknowledged when."""

from __future__ import annotations

import threading
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.streaming.query import StreamingQuery

from holtmq.errors import InvalidValueError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark import stream_metrics
from holtmq.spark.amqp import stream_intake
from holtmq.spark.amqp.backlog import SilentQueueError
from holtmq.spark.amqp.columns import ARROW_SCHEMA, RowEncoder
from holtmq.spark.amqp.segment import Piece
from holtmq.spark.amqp.source import AmqpSource
from holtmq.spark.amqp.spool import Spool
from holtmq.spark.amqp.stream import QueueStreamReader, SegmentPartition
from holtmq.spark.amqp.stream_metrics import messages_read
from tests.amqp_client import Amqp, Channel
from tests.server.process import broker_process
from tests.spark.conftest import LiveBroker, amqp_options, wait_until


def stream(spark: SparkSession, live: LiveBroker, **options: Any) -> DataFrame:
    return spark.readStream.format("amqp").options(**amqp_options(live, **options)).load()


def to_files(rows: DataFrame, folder: Path, **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.option("checkpointLocation", str(folder / "checkpoint")).trigger(
        **(trigger or {"availableNow": True})
    )
    return writer.start(str(folder / "out"), format="parquet")


def bodies(spark: SparkSession, folder: Path) -> list[int]:
    if not (folder / "out" / "_spark_metadata").exists():
        return []
    written = spark.read.schema("body binary").parquet(str(folder / "out"))
    return sorted(int(bytes(row["body"])) for row in written.collect())


def put(channel: Channel, queue: str, numbers: range) -> None:
    channel.put(queue, *(b"%d" % n for n in numbers), delivery_mode=2)


@pytest.mark.parametrize("ack", ["commit", "spool"])
def test_all_messages_are_read_once_and_acknowledged(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path, ack: str
) -> None:
    put(channel, queue, range(3000))
    options = {"spool": tmp_path / "spool"} if ack == "spool" else {}
    query = to_files(stream(spark, live, queue=queue, ack=ack, **options), tmp_path)
    query.awaitTermination()
    assert bodies(spark, tmp_path) == list(range(3000))
    wait_until(lambda: channel.count(queue) == 0)
    metrics = stream_metrics(query)
    assert metrics is not None
    assert (metrics.lag, metrics.received, metrics.redelivered, metrics.oldest_age_ms) == (0, 3000, 0, None)
    assert messages_read(query) == 3000
    assert not list((tmp_path / "spool").glob("*.arrow"))


def test_a_batch_has_no_more_messages_than_allowed(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    put(channel, queue, range(1000))
    query = to_files(stream(spark, live, queue=queue, maxMessagesPerTrigger=300), tmp_path)
    query.awaitTermination()
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert max(sizes) <= 300
    assert sum(sizes) == 1000


@pytest.mark.parametrize("ack", ["commit", "spool"])
def test_available_now_leaves_messages_that_arrive_later(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path, ack: str
) -> None:
    put(channel, queue, range(100))
    late: list[int] = []

    def work(batch: DataFrame, _: int) -> None:
        if not late:
            late.append(batch.count())
            put(channel, queue, range(100, 5100))

    rows = stream(spark, live, queue=queue, prefetch=100, receivers=1, ack=ack, spool=tmp_path / "spool")
    query = rows.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sum(late) <= 100
    wait_until(lambda: channel.count(queue) >= 4800)


def test_several_segments_are_read_by_several_tasks(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    put(channel, queue, range(2000))
    partitions: list[int] = []
    rows = stream(spark, live, queue=queue, segmentRows=100)
    writer = rows.writeStream.foreachBatch(lambda batch, _: partitions.append(batch.rdd.getNumPartitions()))
    writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert sum(partitions) >= 20
    assert max(partitions) > 1


def test_a_stream_continues_and_acknowledges_when_it_is_idle(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    query = to_files(stream(spark, live, queue=queue), tmp_path, processingTime="100 milliseconds")
    try:
        for start in (0, 50):
            put(channel, queue, range(start, start + 50))
            wait_until(lambda start=start: bodies(spark, tmp_path) == list(range(start + 50)))  # type: ignore[misc]
    finally:
        query.processAllAvailable()
        query.stop()
    assert channel.count(queue) == 0


def test_messages_that_were_not_committed_are_redelivered(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    put(channel, queue, range(500))

    broken = stream(spark, live, queue=queue).selectExpr("raise_error('broken') as x")
    query = broken.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out"), format="json"
    )
    with pytest.raises(StreamingQueryException, match="broken"):
        query.awaitTermination()
    wait_until(lambda: channel.count(queue) == 500)
    to_files(stream(spark, live, queue=queue), tmp_path).awaitTermination()
    assert bodies(spark, tmp_path) == list(range(500))


def test_messages_in_the_spool_survive_a_failure_after_they_were_acknowledged(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    put(channel, queue, range(500))
    rows = stream(spark, live, queue=queue, ack="spool", spool=tmp_path / "spool")
    broken = rows.selectExpr("raise_error('broken') as x")
    query = broken.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
        str(tmp_path / "out"), format="json"
    )
    with pytest.raises(StreamingQueryException, match="broken"):
        query.awaitTermination()
    # messages that arrived too late for the failed batch are requeued; those of the batch are acknowledged
    in_batch = sum(_rows(path) for path in (tmp_path / "spool").glob("segment-*.arrow"))
    assert in_batch > 0
    wait_until(lambda: channel.count(queue) == 500 - in_batch)
    to_files(rows, tmp_path).awaitTermination()
    assert bodies(spark, tmp_path) == list(range(500))


def _rows(segment: Path) -> int:
    with pa.ipc.open_file(segment) as reader:
        return int(reader.read_all().num_rows)


def test_a_spool_that_lost_acknowledged_messages_is_an_error(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    put(channel, queue, range(10))
    rows = stream(spark, live, queue=queue, ack="spool", spool=tmp_path / "spool")
    writer = rows.selectExpr("raise_error('broken') as x").writeStream.option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(StreamingQueryException):
        writer.start(str(tmp_path / "out"), format="json").awaitTermination()
    for segment in (tmp_path / "spool").glob("segment-*"):
        segment.unlink()
    with pytest.raises(
        StreamingQueryException, match=r"segments \[1(, 2)?\] of the spool .* are missing, and their messages are"
    ):
        to_files(rows, tmp_path).awaitTermination()


def test_segments_that_were_numbered_but_not_planned_are_not_lost(
    live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    """As after a crash between the source's answer and Spark's record of it."""
    put(channel, queue, range(100))
    options = amqp_options(live, queue=queue, ack="spool", spool=tmp_path)
    for _ in range(3):
        reader = QueueStreamReader(options)
        try:
            rows = planned_rows(reader, 100)
        finally:
            reader.stop()
        assert sorted(int(row["body"]) for row in rows) == list(range(100))


def planned_rows(reader: QueueStreamReader, count: int) -> list[dict[str, Any]]:
    """Plan batches as Spark does, each from where the last one ended, until they contain this many messages."""
    offsets = [reader.initialOffset()]

    def plan() -> bool:
        offsets.append(reader.latestOffset(offsets[-1], ReadAllAvailable()))
        return bool(offsets[-1]["messages"] >= count)

    wait_until(plan)
    partitions = reader.partitions(offsets[0], offsets[-1])
    return [row for partition in partitions for batch in reader.read(partition) for row in batch.to_pylist()]


def test_a_spool_of_a_version_with_fewer_columns_is_read(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    rows = RowEncoder("q").encode([Delivery(1, False, "", "q", b"\0\0", b"m")])
    name = spool.write([rows.drop_columns(["app_id"])], 1)
    (batch,) = QueueStreamReader({}).read(SegmentPartition(str(tmp_path), 1, [name]))
    assert batch.schema == ARROW_SCHEMA
    assert [(row["app_id"], row["body"]) for row in batch.to_pylist()] == [(None, b"m")]


def test_a_stream_continues_after_the_broker_is_killed_and_restarted(spark: SparkSession, tmp_path: Path) -> None:
    with broker_process(tmp_path / "broker.db") as broker:
        live = LiveBroker("holtmq", broker.port)
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            put(channel, "q", range(200))
        query = to_files(stream(spark, live, queue="q"), tmp_path, processingTime="100 milliseconds")
        try:
            wait_until(lambda: len(bodies(spark, tmp_path)) >= 200)
            broker.kill()
            broker.start()
            with Amqp(broker.port) as amqp:
                put(amqp.channel(), "q", range(200, 400))
            wait_until(lambda: set(bodies(spark, tmp_path)) == set(range(400)))
        finally:
            query.stop()


@pytest.mark.parametrize("ack", ["commit", "spool"])
def test_messages_of_a_lost_connection_are_not_read_twice(tmp_path: Path, ack: str) -> None:
    with broker_process(tmp_path / "broker.db") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            put(channel, "q", range(100))
        live = LiveBroker("holtmq", broker.port)
        reader = QueueStreamReader(amqp_options(live, queue="q", ack=ack, spool=tmp_path / "spool"))
        intake = reader._running()
        received: list[Piece] = []
        add = intake.ledger.add

        def note(piece: Piece) -> None:
            received.append(piece)
            add(piece)

        intake.ledger.add = note  # type: ignore[method-assign]
        try:
            intake.start(0)
            for expected in (100, 200):  # the second time all of them come again
                wait_until(lambda expected=expected: sum(piece.rows for piece in received) == expected)  # type: ignore[misc]
                if expected == 100:
                    broker.kill()
                    broker.start()
            intake.plan(0, None)
            assert intake.ledger.taken == 100
            metrics = intake.metrics(0)
            assert (metrics.lag, metrics.received, metrics.redelivered) == (100, 200, 100)
        finally:
            reader.stop()


def test_messages_that_a_receiver_has_not_written_yet_are_in_the_lag(
    live: LiveBroker, channel: Channel, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(channel, queue, range(20))
    is_writing, may_write = threading.Event(), threading.Event()
    write = Spool.write

    def wait_and_write(spool: Spool, batches: list[pa.RecordBatch], order: int) -> str:
        is_writing.set()
        may_write.wait(10)
        return write(spool, batches, order)

    monkeypatch.setattr(Spool, "write", wait_and_write)
    reader = QueueStreamReader(amqp_options(live, queue=queue))
    intake = reader._running()
    try:
        intake.start(0)
        assert is_writing.wait(10)
        wait_until(lambda: intake._backlog.ready() == 0)
        assert intake.metrics(0).lag == 20
        may_write.set()
        wait_until(lambda: intake.ledger.fresh_rows == 20)
        assert intake.metrics(0).lag == 20
    finally:
        may_write.set()
        reader.stop()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"queue": "q", "ack": "never"}, "option 'ack' must be one of commit, spool, got 'never'"),
        ({"queue": "q", "ack": "spool"}, "ack=spool requires the option 'spool'"),
        ({"queue": "q", "prefetch": "0"}, "option 'prefetch' must be a whole number from 1 to 65535, got '0'"),
        ({"queue": "q", "prefech": "1"}, "unknown option 'prefech'"),
        ({}, r"expected one of the options queue .*, queues .* and queuePattern .*, got none"),
        ({"queue": "q", "queues": "a,b"}, "got queue and queues"),
        ({"queue": ""}, "option 'queue' must be the name of a queue, got ''"),
        ({"queue": "q", "announce": "x"}, "announce must be the URL of an HTTP API"),
        ({"queue": "q", "startingOffsets": "1", "announce": "x"}, "announce must be the URL of an HTTP API"),
        ({"queues": "a,,b"}, "option 'queues' must be different names separated by commas, got 'a,,b'"),
        ({"queuePattern": "("}, r"option 'queuePattern' must be a regular expression such as 'orders-\.\*', got '\('"),
        ({"queue": "q", "managementUrl": "http://x"}, "option 'managementUrl' is only used with queuePattern"),
        (
            {"queuePattern": "q", "managementUrl": "x:y@localhost"},
            "option 'managementUrl' must be the URL of an HTTP API such as http://127.0.0.1:15672, got ",
        ),
        ({"queue": "q", "mode": "drain"}, r"option 'mode' was removed.* Use holtmq\.spark\.drain"),
        (
            {"queue": "q", "Limit": "1", "segmentRows": "1", "ack": "commit"},
            r"option 'limit' is for batches \(spark\.read\), and option 'ack' for streams \(spark\.readStream\): remove one",
        ),
        ({"queue": "q", "spool": ""}, "option 'spool' must be a folder, got ''"),
        ({"queue": "q", "spool": "nope://x/y"}, "option 'spool': Arrow cannot open the file system of 'nope://x/y'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_runs(options: dict[str, str], match: str) -> None:
    source = AmqpSource({"url": "amqp://127.0.0.1:1", **options})
    with pytest.raises(InvalidValueError, match=match):
        source.schema()


def test_load_refuses_wrong_options_and_the_first_use_those_of_another_use(spark: SparkSession, tmp_path: Path) -> None:
    nowhere = LiveBroker("none", 1)
    with pytest.raises(PySparkException, match="unknown option 'prefech'"):
        stream(spark, nowhere, queue="q", prefech=1)
    of_batch = r"InvalidValueError: option 'limit' is for batches \(spark\.read\), got it for a stream: remove it\n"
    with pytest.raises(PySparkException, match=of_batch) as seen:
        to_files(stream(spark, nowhere, queue="q", limit=1), tmp_path).awaitTermination()
    assert "UnboundLocalError" not in str(seen.value)
    of_stream = r"InvalidValueError: option 'ack' is for streams \(spark\.readStream\), got it for a batch: remove it\n"
    with pytest.raises(PySparkException, match=of_stream):
        spark.read.format("amqp").options(**amqp_options(nowhere, queue="q", ack="spool", spool="/tmp")).load().count()


def test_a_stream_with_a_schema_which_load_does_not_check_refuses_wrong_options(spark: SparkSession, tmp_path: Path) -> None:
    source = spark.readStream.schema("body binary").format("amqp")
    rows = source.options(url="amqp://127.0.0.1:1", queue="q", announce="x").load()
    with pytest.raises(PySparkException, match="announce must be the URL of an HTTP API"):
        to_files(rows, tmp_path).awaitTermination()


def test_a_sink_refuses_wrong_options_before_it_publishes(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    rows = spark.sql(f"SELECT '' AS exchange, '{queue}' AS routing_key, 'body' AS body")
    rows.write.parquet(str(tmp_path / "in"))
    numbered = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
    writer = numbered.writeStream.format("amqp").options(**amqp_options(live, announce="x"))
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    with pytest.raises(PySparkException, match="announce must be the URL of an HTTP API"):
        writer.start().awaitTermination()
    assert channel.count(queue) == 0


def test_a_stream_that_waits_for_a_queue_that_delivers_nothing_fails(
    live: LiveBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a stream queue does without startingOffsets: it delivers what comes later."""
    monkeypatch.setattr(stream_intake, "SILENCE_S", 0.2)
    name = f"log-{uuid.uuid4()}"
    channel.declare(name, durable=True, queue_type="stream")
    channel.put(name, b"1", b"2", delivery_mode=2)
    wait_until(lambda: channel.count(name) == 2)
    reader = QueueStreamReader(amqp_options(live, queue=name))
    try:
        reader.prepareForTriggerAvailableNow()
        with pytest.raises(SilentQueueError, match=rf"the queues {name} have 2 messages, and delivered none for 0\.2 s"):
            reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    finally:
        reader.stop()
        channel.delete(name)


def test_a_missing_queue_ends_the_stream(spark: SparkSession, live: LiveBroker, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="no queue 'nothing'"):
        to_files(stream(spark, live, queue="nothing"), tmp_path).awaitTermination()


def test_several_queues_are_one_stream(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    other = f"{queue}-other"
    channel.declare(other, durable=True)
    put(channel, queue, range(100))
    put(channel, other, range(100, 150))
    to_files(stream(spark, live, queues=f"{queue}, {other}"), tmp_path).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).select("source_queue", "body").collect()
    assert sorted((row["source_queue"], int(bytes(row["body"]))) for row in rows) == [
        *((queue, number) for number in range(100)),
        *((other, number) for number in range(100, 150)),
    ]
    wait_until(lambda: channel.count(queue) + channel.count(other) == 0)
    channel.delete(other)


def test_a_stream_is_published(spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path) -> None:
    numbers = spark.range(1000).selectExpr("'' as exchange", f"'{queue}' as routing_key", "cast(id as string) as body")
    numbers.repartition(3).write.parquet(str(tmp_path / "in"))
    rows = spark.readStream.schema(numbers.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    writer = (
        rows.writeStream.format("amqp").options(**amqp_options(live)).option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    assert sorted(int(body) for body in channel.drain(queue)) == list(range(1000))
