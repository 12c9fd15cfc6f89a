"""Jobs announce themselves to the broker that they use, or where they are told to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader

from holtmq.client import run_announcer
from holtmq.client.blocking_connection import RefusedError
from holtmq.errors import InvalidValueError
from holtmq.spark import archive, drain, publish, read_archive, register, replay
from holtmq.spark.amqp.amqp_options import BrokerOptions, QueueOptions
from holtmq.spark.amqp.stream import QueueStreamReader
from holtmq.spark.amqp.stream_queue_follower import StreamQueueFollower
from holtmq.spark.job_announcement import SETTING, announced
from tests.amqp_client import Channel
from tests.deadline import eventually
from tests.management.conftest import Node, running_node
from tests.spark.conftest import LiveBroker


@pytest.fixture
def node() -> Iterator[Node]:
    with running_node() as node:
        yield node


@pytest.fixture
def setting(spark: SparkSession, node: Node) -> Iterator[None]:
    spark.conf.set(SETTING, node.http.base)
    yield
    spark.conf.unset(SETTING)


def test_jobs_are_listed_by_the_broker_that_they_use(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    url, target = f"amqp://127.0.0.1:{node.amqp_port}", str(tmp_path / "archive")
    with node.connect() as amqp:
        amqp.channel().declare("q", durable=True)
        amqp.channel(2).put("q", *[b"m"] * 20)
        amqp.channel(3).declare("s", durable=True, queue_type="stream")
    archive(spark, "q", target, url=url, compact=False)
    replay(read_archive(spark, target), url=url)
    drain(spark, "q", lambda rows: rows.count(), url=url)
    rows = spark.sql("SELECT '' AS exchange, 's' AS routing_key, 'body' AS body FROM range(7)")
    publish(rows, url=url)
    publish(rows, url=url, announce="")
    source = spark.readStream.format("amqp").options(url=url)
    for name, more in {
        "q": {"queue": "q"}, "s": {"queue": "s", "startingOffsets": "earliest"}, "no": {"queue": "q", "announce": "false"},
    }.items():  # fmt: skip
        writer = source.options(**more).load().writeStream.format("noop").option("checkpointLocation", str(tmp_path / name))
        writer.trigger(availableNow=True).start().awaitTermination()

    def found() -> set[tuple[str, str | None, int, str]]:
        return {(run["job"], run["queue"], run["rows"], run["state"]) for run in node.http.get("/api/runs")}

    eventually(lambda: all(state == "finished" for *_, state in found()), "the sources to say that they have ended")
    assert found() == {
        ("archive", "q", 20, "finished"),
        ("replay", None, 20, "finished"),
        ("drain", "q", 20, "finished"),
        ("publish", None, 7, "finished"),
        ("stream", "q", 0, "finished"),
        ("stream", "s", 14, "finished"),
    }


def test_publishing_within_a_micro_batch_is_not_a_run(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    url = f"amqp://127.0.0.1:{node.amqp_port}"
    spark.range(3).write.json(str(tmp_path / "in"))
    rows = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    messages = rows.selectExpr("'' AS exchange", "'nowhere' AS routing_key", "string(id) AS body")

    def write(batch: DataFrame, _: int) -> None:
        assert publish(batch, url=url, mandatory=False).confirmed == 3

    writer = messages.writeStream.foreachBatch(write)
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert node.http.get("/api/runs") == []


@pytest.mark.usefixtures("setting")
def test_archive_replay_and_drain_are_listed_by_the_broker(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    url, target = f"amqp://127.0.0.1:{node.amqp_port}", str(tmp_path / "archive")
    with node.connect() as amqp:
        amqp.channel().declare("q", durable=True)
        amqp.channel(2).put("q", *[b"m"] * 20)
    archive(spark, "q", target, url=url, compact=False)
    replay(read_archive(spark, target), url=url, announce=node.http.base)
    drain(spark, "q", lambda rows: rows.count(), url=url)
    replay(read_archive(spark, target), url=url, announce="")
    found = [(run["job"], run["state"], run["rows"], run["queue"]) for run in node.http.get("/api/runs")]
    assert sorted(found) == [("archive", "finished", 20, "q"), ("drain", "finished", 20, "q"), ("replay", "finished", 20, None)]
    outputs = {run["job"]: (run["input"], run["output"]) for run in node.http.get("/api/runs")}
    assert outputs["archive"] == (f"{url}, queue q", target)
    assert outputs["replay"][1] == url


@pytest.mark.usefixtures("setting")
def test_an_archive_of_a_stream_announces_its_lag(
    spark: SparkSession, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_announcer, "PERIOD_S", 0.05)
    with node.connect() as amqp:
        amqp.channel().declare("s", durable=True, queue_type="stream")
        amqp.channel(2).put("s", *[b"m"] * 20)
        amqp.channel(3).settle()
    lags: list[int] = []

    def look(messages: int) -> None:
        if messages == 20:  # in the second micro-batch: Spark knows the progress of the first one
            lags.extend(eventually(lambda: [run["lag"] for run in node.http.get("/api/runs") if run["lag"]], "the lag"))

    url = f"amqp://127.0.0.1:{node.amqp_port}"
    archive(
        spark, "s", str(tmp_path), url=url, starting_offsets="earliest", max_messages_per_trigger=15, compact=False,
        format="json", progress=look,
    )  # fmt: skip
    assert lags == [20]


@pytest.mark.usefixtures("setting")
def test_a_job_that_fails_says_so(spark: SparkSession, node: Node) -> None:
    with pytest.raises(RuntimeError), announced(spark, broker(node.amqp_port), None, "archive", lambda: 3, queue="q"):
        raise RuntimeError("no disk\nand a stack trace")
    (run,) = node.http.get("/api/runs")
    assert (run["state"], run["error"], run["rows"]) == ("failed", "no disk", 3)


@pytest.mark.usefixtures("setting")
def test_a_job_on_several_queues_names_them_and_has_no_queue_to_look_at(spark: SparkSession, node: Node) -> None:
    for queues in (QueueOptions.choose(["a", "b"]), QueueOptions.choose(None, "events-.*")):
        with announced(spark, broker(node.amqp_port), None, "archive", lambda: 0, queue=queues):
            pass
    found = {(run["input"].partition(", ")[2], run["queue"]) for run in node.http.get("/api/runs")}
    assert found == {("queues a, b", None), ("queues events-.*", None)}


def test_batch_reads_and_sinks_are_listed_by_the_broker_that_they_use(spark: SparkSession, node: Node, tmp_path: Path) -> None:
    url = f"amqp://127.0.0.1:{node.amqp_port}"
    with node.connect() as amqp:
        amqp.channel().declare("s", durable=True, queue_type="stream")
        amqp.channel(2).declare("q", durable=True)
    rows = spark.sql("SELECT '' AS exchange, 's' AS routing_key, 'body' AS body FROM range(7)")
    for _ in range(2):
        rows.write.format("amqp").options(url=url).mode("append").save()
    rows.drop("exchange").write.format("amqp").options(url=url, exchange="", announce="false").mode("append").save()
    rows.write.format("json").save(str(tmp_path / "in"))
    publish_stream(spark, tmp_path, url)
    assert spark.read.format("amqp").options(url=url, queue="s", startingOffsets="earliest").load().count() == 28
    assert spark.read.format("amqp").options(url=url, queue="q").load().count() == 0
    assert spark.read.format("amqp").options(url=url, queue="q", announce="false").load().count() == 0
    found = {
        (run["job"], run["input"], run["output"], run["rows"], run["state"], run["lag"]) for run in node.http.get("/api/runs")
    }
    assert found == {
        ("write", "a DataFrame", url, 14, "finished", None),
        ("stream", "a stream", url, 7, "running", None),
        ("read", f"{url}, queue s", "", 28, "planned", None),
        ("read", f"{url}, queue q", "", 0, "planned", None),
    }


def test_the_source_and_the_sink_follow_the_setting_that_the_session_had_when_they_were_registered(
    spark: SparkSession, node: Node, tmp_path: Path, set_announce: Callable[[str], None]
) -> None:
    url = f"amqp://127.0.0.1:{node.amqp_port}"
    with node.connect() as amqp:
        amqp.channel().declare("q", durable=True)
    set_announce("false")
    use_everywhere(spark, url, "q", tmp_path / "setting")
    assert node.http.get("/api/runs") == []
    use_everywhere(spark, url, "q", tmp_path / "option", announce=node.http.base)
    assert sorted(run["job"] for run in node.http.get("/api/runs")) == EVERYWHERE


def test_the_setting_names_the_broker_that_lists_the_source_and_the_sink(
    spark: SparkSession, node: Node, live: LiveBroker, queue: str, tmp_path: Path, set_announce: Callable[[str], None]
) -> None:
    set_announce(node.http.base.replace("http://", "http://guest:guest@"))
    use_everywhere(spark, live.url, queue, tmp_path)
    assert sorted(run["job"] for run in node.http.get("/api/runs")) == EVERYWHERE


@pytest.fixture
def set_announce(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """A function that changes the setting and registers the source again."""

    def change(value: str) -> None:
        spark.conf.set(SETTING, value)
        register(spark)

    yield change
    spark.conf.unset(SETTING)


EVERYWHERE = ["read", "stream", "stream", "write"]
"""The jobs of `use_everywhere`. A stream that reads and writes is listed for both."""


def use_everywhere(spark: SparkSession, url: str, queue: str, folder: Path, **options: str) -> None:
    """Write a message to a queue, read it, and let a stream move it to the end of the queue."""
    rows = spark.sql(f"SELECT '' AS exchange, '{queue}' AS routing_key, 'body' AS body")
    rows.write.format("amqp").options(url=url, **options).mode("append").save()
    assert spark.read.format("amqp").options(url=url, queue=queue, **options).load().count() > 0
    stream = spark.readStream.format("amqp").options(url=url, queue=queue, **options).load()
    writer = stream.writeStream.format("amqp").options(url=url, **options).option("checkpointLocation", str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()


def publish_stream(spark: SparkSession, folder: Path, url: str) -> None:
    """Publish the JSON files below a folder."""
    rows = spark.readStream.schema("exchange string, routing_key string, body string").json(str(folder / "in"))
    writer = rows.writeStream.format("amqp").options(url=url).option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize(("source", "more"), [(QueueStreamReader, {}), (StreamQueueFollower, {"startingOffsets": "earliest"})])
def test_a_stream_whose_source_fails_says_why(
    node: Node, source: type[QueueStreamReader | StreamQueueFollower], more: dict[str, str]
) -> None:
    reader = source({"url": f"amqp://127.0.0.1:{node.amqp_port}", "queue": "nothing", **more})
    with pytest.raises(RefusedError), closing_as_spark_does(reader):
        reader.prepareForTriggerAvailableNow()
    (run,) = eventually(lambda: node.http.get("/api/runs"), "the end of the run")
    assert (run["state"], "no queue 'nothing'" in run["error"]) == ("failed", True)


@contextmanager
def closing_as_spark_does(reader: DataSourceStreamReader) -> Iterator[None]:
    try:
        yield
    finally:
        reader.stop()


def test_a_write_that_fails_says_why(spark: SparkSession, node: Node) -> None:
    rows = spark.sql("SELECT '' AS exchange, 'nowhere' AS routing_key, 'body' AS body FROM range(7)")
    with pytest.raises(PySparkException, match="7 of 7 messages reached no queue"):
        rows.write.format("amqp").options(url=f"amqp://127.0.0.1:{node.amqp_port}").mode("append").save()
    (run,) = node.http.get("/api/runs")
    assert (run["state"], run["rows"], run["error"].partition(" (")[0]) == ("failed", 7, "7 of 7 messages reached no queue")


def test_a_broker_without_an_http_api_is_used_as_ever(
    spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path
) -> None:
    rows = spark.sql(f"SELECT '' AS exchange, '{queue}' AS routing_key, 'body' AS body FROM range(7)")
    rows.write.format("amqp").options(url=live.url, announce="http://guest:guest@127.0.0.1:1").mode("append").save()
    rows.write.format("json").save(str(tmp_path / "in"))
    publish_stream(spark, tmp_path, live.url)
    assert spark.read.format("amqp").options(url=live.url, queue=queue).load().count() == 14


def broker(port: int = 1, password_env: str | None = None) -> BrokerOptions:
    return BrokerOptions(url=f"amqp://127.0.0.1:{port}", password_env=password_env)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:15672", "announce must be the URL of an HTTP API such as http://127.0.0.1:15672, got '127.0.0.1:15672'"),
        ("ftp://bob:hush@x", "announce must be the URL of an HTTP API such as http://127.0.0.1:15672, got 'ftp://x'"),
        ("http://elsewhere:15672", "announce names the host 'elsewhere', and the job uses a broker on '127.0.0.1': expected"),
    ],
)
def test_a_url_that_is_none_or_that_would_get_the_password_of_another_host_is_refused(
    spark: SparkSession, url: str, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        announced(spark, broker(), url, "archive", lambda: 0)


def test_a_broker_that_does_not_answer_and_a_password_that_the_driver_lacks_do_not_matter(spark: SparkSession) -> None:
    for password_env in (None, "NOT_ON_THE_DRIVER"):
        with announced(spark, broker(password_env=password_env), "http://127.0.0.1:1", "archive", lambda: 0):
            pass
