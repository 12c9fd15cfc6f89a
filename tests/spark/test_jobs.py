"""The jobs as functions: route, archive, replay, compare, report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holtmq import Binding, Exchange, InvalidValueError, Queue, Router, Topology
from holtmq.spark import Columns, MessageFilter, archive, compact, compare, publish, replay, report, route, route_job
from holtmq.spark.comparison import NothingComparedError
from holtmq.spark.filesystems import WriteError, filesystem_of, qualify
from holtmq.spark.locks import FolderLock
from holtmq.spark.parquet_source import ParquetSource, Split
from holtmq.spark.route_cache import RouteCache
from holtmq.spark.routing_request import RoutingRequest
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.routing_task import RoutingTask, _batch_rows
from tests.amqp_client import Channel
from tests.spark.conftest import LiveBroker, wait_until

NO_BROKER = "amqp://127.0.0.1:1"
SHOP = Topology(
    (Exchange("orders", "topic"), Exchange("desks", "headers")),
    (Queue("food"), Queue("all"), Queue("idle"), Queue("vip")),
    (
        Binding("orders", "food", "orders.food.#"),
        Binding("orders", "all", "orders.#"),
        Binding("orders", "all", "orders.*"),
        Binding("orders", "idle", "returns.#"),
        Binding("orders", "desks", "#", destination_type="exchange"),
        Binding("desks", "vip", "", {"vip": True}),
    ),
)


@pytest.fixture(scope="module")
def traffic(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write 4,000 messages of two days as Parquet, in folders by day. Some are unroutable, some malformed."""
    folder = tmp_path_factory.mktemp("traffic")
    rows = spark.range(4000).selectExpr(
        "'orders' as exchange",
        "case when id % 100 = 7 then null when id % 10 = 3 then 'strange' "
        "else concat('orders.', if(id % 2 = 0, 'food', 'toys'), if(id % 4 = 0, '.pizza', '')) end as routing_key",
        """case when id % 50 = 1 then '{"vip": true}' when id % 1000 = 999 then '{"vip"' end as headers""",
        "timestamp_seconds(1767225600 + id * 40) as timestamp",
        "cast(repeat('x', 10) as binary) as body",
        "concat('day-', id div 2160) as day",
    )
    rows.repartition(3).write.partitionBy("day").parquet(str(folder / "messages"))
    return str(folder / "messages")


def multiset(rows: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(map(str, row)) for row in rows.select(*sorted(rows.columns)).collect())


def test_the_route_job_writes_what_route_returns(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    expected = route(spark.read.parquet(traffic), SHOP)
    by_arrow = route_job(spark, traffic, str(tmp_path / "arrow"), SHOP)
    by_spark = route_job(spark, traffic, str(tmp_path / "spark"), SHOP, target_format="json")
    assert (by_arrow.by, by_spark.by) == ("arrow", "spark")
    assert by_arrow.counts == by_spark.counts
    assert by_arrow.counts.messages == 4000
    assert multiset(spark.read.parquet(str(tmp_path / "arrow"))) == multiset(expected)
    counts = by_arrow.counts
    assert counts.deliveries + counts.unroutable + counts.malformed == expected.count()


def test_deliveries_are_written_by_queue(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    route_job(spark, traffic, str(tmp_path / "out"), SHOP, partition_by=["queue"], settings=True, bindings=True)
    folders = {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()}
    assert folders == {"queue=all", "queue=food", "queue=vip", "queue=__HIVE_DEFAULT_PARTITION__"}
    written = spark.read.parquet(str(tmp_path / "out"))
    assert multiset(written) == multiset(route(spark.read.parquet(traffic), SHOP, settings=True, bindings=True))


def test_modes_of_writing(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    count = route_job(spark, traffic, target, SHOP, unroutable="drop").counts
    rows = count.deliveries + count.malformed
    with pytest.raises(WriteError, match="is not empty: choose a new folder, or mode append or overwrite"):
        route_job(spark, traffic, target, SHOP)
    route_job(spark, traffic, target, SHOP, unroutable="drop", mode="append")
    assert spark.read.parquet(target).count() == 2 * rows
    route_job(spark, traffic, target, SHOP, unroutable="only", mode="overwrite")
    assert spark.read.parquet(target).count() == count.malformed + 400
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith("_holtmq")]
    with pytest.raises(InvalidValueError, match="mode must be one of error, append, overwrite, ignore, got 'perhaps'"):
        route_job(spark, traffic, target, SHOP, mode="perhaps")  # type: ignore[arg-type]


def test_a_failed_job_leaves_the_target_unchanged(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    route_job(spark, traffic, target, SHOP)
    before = sorted(path.name for path in Path(target).iterdir())
    broken = tmp_path / "broken"
    broken.mkdir()
    pq.write_table(pa.table({"exchange": ["orders"] * 9, "routing_key": ["orders.x"] * 9}), broken / "a.parquet")
    data = bytearray((broken / "a.parquet").read_bytes())
    data[4:30] = bytes(26)
    (broken / "a.parquet").write_bytes(data)
    with pytest.raises(PySparkException, match=r"OSError|Couldn't deserialize|Unexpected|corrupt"):
        route_job(spark, str(broken), target, SHOP, mode="overwrite")
    assert sorted(path.name for path in Path(target).iterdir()) == before


def test_a_job_does_not_overwrite_its_own_input(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    before = sorted(Path(traffic).rglob("*"))
    (tmp_path / "another way").symlink_to(traffic)
    for target in (traffic, str(Path(traffic).parent), str(tmp_path / "another way")):
        with pytest.raises(WriteError, match="contains files that this job reads: choose another folder to overwrite"):
            route_job(spark, traffic, target, SHOP, mode="overwrite", unroutable="drop")
    assert sorted(Path(traffic).rglob("*")) == before


def test_messages_that_already_have_an_added_column_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(pa.table({"exchange": ["orders"], "routing_key": ["a"], "Queue": ["q"]}), tmp_path / "in.parquet")
    with pytest.raises(InvalidValueError, match="the messages already have a column 'Queue', which routing adds"):
        route_job(spark, str(tmp_path / "in.parquet"), str(tmp_path / "out"), SHOP)


@pytest.mark.parametrize("partition_by", [[], ["queue"]])
def test_a_job_without_deliveries_writes_a_schema(spark: SparkSession, tmp_path: Path, partition_by: list[str]) -> None:
    pq.write_table(pa.table({"exchange": ["orders"], "routing_key": ["orders.a"]}), tmp_path / "in.parquet")
    target = str(tmp_path / "out")
    route_job(spark, str(tmp_path / "in.parquet"), target, SHOP, unroutable="only", partition_by=partition_by)
    written = spark.read.parquet(target)
    assert written.count() == 0
    assert sorted(written.columns) == ["exchange", "queue", "reason", "routing_key"]


def test_folders_are_named_as_spark_names_them(spark: SparkSession, tmp_path: Path) -> None:
    names = ["größe", "a=b", "50 %", "[x]/y", "日本:語", "plain"]
    topology = Topology((Exchange("all", "fanout"),), tuple(map(Queue, names)), tuple(Binding("all", name) for name in names))
    pq.write_table(pa.table({"exchange": ["all"], "routing_key": ["k"]}), tmp_path / "in.parquet")
    folders = {}
    for way, target_format in (("arrow", "parquet"), ("spark", "json")):
        target = tmp_path / way
        summary = route_job(
            spark, str(tmp_path / "in.parquet"), str(target), topology, target_format=target_format, partition_by=["queue"]
        )
        assert summary.by == way
        folders[way] = {path.name for path in target.iterdir() if path.is_dir()}
    assert folders["arrow"] == folders["spark"]
    assert {row["queue"] for row in spark.read.parquet(str(tmp_path / "arrow")).collect()} == set(names)


def test_paths_mean_what_they_mean_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    assert filesystem_of(f"file:{tmp_path}") == filesystem_of(f"file://{tmp_path}") == filesystem_of(str(tmp_path))
    with pytest.raises(InvalidValueError, match="Arrow cannot open the file system of 'dbfs:/x'"):
        filesystem_of("dbfs:/x")
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    assert qualify(spark, "lake") == "lake"
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:9000")
    try:
        assert qualify(spark, "/lake") == "hdfs://127.0.0.1:9000/lake"
        assert qualify(spark, "file:/lake") == "file:/lake"
    finally:
        settings.set("fs.defaultFS", "file:///")


def test_the_size_of_batches_is_bounded_for_large_messages_and_many_queues(tmp_path: Path) -> None:
    pq.write_table(pa.table({"body": [b"%07d" % n * 20_000 for n in range(1000)]}), tmp_path / "large.parquet")
    with pq.ParquetFile(tmp_path / "large.parquet") as file:
        assert _batch_rows(file.metadata, Split("", (0,), ())) == pytest.approx(64 * 1024 * 1024 / 140_000, rel=0.05)
    topology = Topology(
        (Exchange("all", "fanout"),), tuple(Queue(f"q{n}") for n in range(9)), tuple(Binding("all", f"q{n}") for n in range(9))
    )
    spec = RoutingSpec.of(RoutingRequest(topology, exchange="all"), Router(topology))
    anything: Any = None  # routing needs neither files nor folders
    task = RoutingTask(anything, anything, spec, {"routing_key": "k"}, anything, "", "", by_queue=False)
    routed = list(task.route(RouteCache.shared(spec), pa.RecordBatch.from_pydict({"k": ["a", "b", "c"]})))
    assert [batch.num_rows for batch in routed] == [3] * 9
    assert Counter(row["k"] for batch in routed for row in batch.to_pylist()) == {"a": 9, "b": 9, "c": 9}


def test_a_task_that_runs_twice_writes_different_files(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    """As with speculative execution: both attempts write, and the driver commits the files of one."""
    source = ParquetSource.at(traffic, pq.read_schema(next(Path(traffic).rglob("*.parquet"))), min_splits=1)
    spec = RoutingSpec.of(RoutingRequest(SHOP), Router(SHOP))
    parts = {"routing_key": "routing_key", "exchange": "exchange", "headers": "headers"}
    filesystem, path = filesystem_of(str(tmp_path))
    splits = spark.sparkContext.broadcast(source.splits)
    task = RoutingTask(source, splits, spec, parts, filesystem, f"{path}/staging", "snappy", by_queue=False)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    first, second = (json.loads(next(task.run(iter([numbers]))).column("files")[0].as_py()) for _ in range(2))
    assert first
    assert not {*first} & {*second}
    assert sum(pq.read_metadata(name).num_rows for name in first) == sum(pq.read_metadata(name).num_rows for name in second)


def test_files_of_different_ages_have_different_columns(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    base = {"exchange": ["orders"], "routing_key": ["orders.a"]}
    pq.write_table(pa.table(base), tmp_path / "in" / "1.parquet")
    pq.write_table(pa.table({**base, "n": [5]}), tmp_path / "in" / "2.parquet")
    spark.conf.set("spark.sql.parquet.mergeSchema", "true")
    try:
        summary = route_job(spark, str(tmp_path / "in"), str(tmp_path / "out"), SHOP)
    finally:
        spark.conf.unset("spark.sql.parquet.mergeSchema")
    assert (summary.by, summary.counts.deliveries) == ("arrow", 2)
    assert sorted(row["n"] or 0 for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [0, 5]


def test_headers_that_are_not_text_are_routed_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select 'orders' as exchange, 'k' as routing_key, map('vip', true) as headers")
    rows.write.parquet(str(tmp_path / "in"))
    summary = route_job(spark, str(tmp_path / "in"), str(tmp_path / "out"), SHOP)
    assert (summary.by, summary.counts.deliveries) == ("spark", 1)


def test_tables_in_and_out(spark: SparkSession, traffic: str) -> None:
    spark.read.parquet(traffic).write.mode("overwrite").saveAsTable("traffic_in")
    summary = route_job(spark, "traffic_in", "traffic_out", SHOP, format="table", target_format="table", mode="overwrite")
    assert spark.table("traffic_out").where("queue is not null").count() == summary.counts.deliveries
    for table in ("traffic_in", "traffic_out"):
        spark.sql(f"drop table {table}")


def test_comparison_of_two_topologies(spark: SparkSession, traffic: str) -> None:
    after = Topology(SHOP.exchanges, SHOP.queues, (*SHOP.bindings[1:], Binding("orders", "idle", "strange")))
    messages = spark.read.parquet(traffic)
    comparison = compare(messages, SHOP, after)
    food = messages.where("routing_key like 'orders.food%' and (headers is null or headers like '%}')").count()
    strange = messages.where("routing_key = 'strange' and (headers is null or headers like '%}')").count()
    assert comparison.messages == 4000
    assert (comparison.losing, comparison.gaining) == (food, strange)
    assert comparison.affected == food + strange
    assert comparison.newly_routable == strange - messages.where("routing_key = 'strange' and headers like '%}'").count()
    assert {change.queue: (change.gained, change.lost) for change in comparison.queues} == {
        "food": (0, food),
        "idle": (strange, 0),
    }
    assert comparison.keys_affected == 3
    assert {(key.routing_key, key.before, key.after) for key in comparison.keys if key.routing_key == "orders.food"} == {
        ("orders.food", ("all", "food"), ("all",))
    }
    assert comparison.to_dict()["share"] == comparison.share == comparison.affected / 4000


def test_a_comparison_counts_messages_that_would_be_refused(spark: SparkSession, traffic: str) -> None:
    comparison = compare(spark.read.parquet(traffic), SHOP, Topology(SHOP.exchanges[1:], SHOP.queues, SHOP.bindings[5:]))
    assert comparison.newly_refused > 3900
    assert comparison.newly_unroutable == 0


def test_a_comparison_counts_messages_that_both_topologies_refuse(spark: SparkSession, traffic: str) -> None:
    comparison = compare(spark.read.parquet(traffic), SHOP, SHOP)
    assert (comparison.affected, comparison.still_refused, comparison.still_unroutable) == (0, 44, 400)
    refused = {refusal.reason.split(":")[0]: refusal.messages for refusal in comparison.refusals}
    assert refused == {"the routing key is null": 40, "headers": 4}
    assert comparison.exceeds(1)
    assert not comparison.exceeds(1.1)  # which is exactly the share of 44 messages
    assert comparison.to_dict()["refusals"][0] == {"reason": "the routing key is null", "messages": 40}


def test_a_comparison_fails_if_both_topologies_refuse_all_messages(spark: SparkSession, traffic: str) -> None:
    with pytest.raises(NothingComparedError, match="both topologies refuse all 4,000 messages, so nothing was compared"):
        compare(spark.read.parquet(traffic), SHOP, SHOP, columns=Columns(exchange="day"))


def test_a_comparison_fails_if_no_message_reaches_a_queue_with_either_topology(spark: SparkSession) -> None:
    """The default exchange of a virtual host that does not exist accepts every message."""
    messages = spark.sql("SELECT '' AS exchange, if(id = 0, null, 'food') AS routing_key FROM range(5)")
    assert compare(messages, SHOP, Topology()).losing == 4
    with pytest.raises(NothingComparedError) as caught:
        compare(messages, SHOP, SHOP, vhost="elsewhere")
    assert str(caught.value) == (
        "none of the 5 messages reaches a queue with either topology, so nothing was compared. "
        "The most frequent reason (1 messages): the routing key is null. "
        "Check the virtual host (got 'elsewhere'), the exchange, and the names of the columns"
    )


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (
            lambda _: compare(cast("Any", "lake"), SHOP, SHOP),
            "messages must be a DataFrame, got 'lake': read the messages with sp",
        ),
        (lambda rows: compare(rows, SHOP, SHOP, vhost=cast("Any", 1)), "vhost must be the name of a virtual host, got 1"),
        (lambda rows: compare(rows, SHOP, SHOP, exchange=cast("Any", 1)), "exchange must be the name of an exchange, or None"),
        (lambda _: report(cast("Any", SHOP), SHOP), "messages must be a DataFrame, got a Topology"),
        (lambda rows: report(rows, SHOP, vhost=cast("Any", None)), "vhost must be the name of a virtual host, got None"),
        (lambda rows: report(rows, SHOP, exchange=cast("Any", 1)), "exchange must be the name of an exchange, or None"),
        (lambda _: publish(cast("Any", "lake"), url=NO_BROKER), "messages must be a DataFrame, got 'lake'"),
        (
            lambda _: replay(cast("Any", "lake"), url=NO_BROKER),
            r"archive must be a DataFrame, got 'lake': .* read_archive\(spark",
        ),
        (lambda rows: replay(rows, url=NO_BROKER, where=cast("Any", "a.#")), "where must be a MessageFilter, such as .*'a.#'"),
    ],
)
def test_arguments_of_another_type_are_refused_before_anything_runs(
    spark: SparkSession, run: Callable[[DataFrame], object], message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        run(spark.range(1))


def test_a_report_counts_everything(spark: SparkSession, traffic: str, tmp_path: Path) -> None:
    messages = spark.read.parquet(traffic)
    outcome = report(messages, SHOP, title="A <b>busy</b> day")
    counts = route_job(spark, traffic, str(tmp_path / "out"), SHOP).counts
    assert (outcome.messages, outcome.deliveries) == (counts.messages, counts.deliveries)
    assert (outcome.unroutable, outcome.malformed) == (counts.unroutable, counts.malformed)
    assert outcome.bytes == 40_000
    assert {volume.name: volume.messages for volume in outcome.exchanges} == {"orders": 4000}
    assert {volume.name for volume in outcome.prefixes} == {"orders", "strange"}
    deliveries = {
        row["queue"]: row["count"]
        for row in route(messages, SHOP, unroutable="drop").where("reason is null").groupBy("queue").count().collect()
    }
    assert {volume.name: volume.messages for volume in outcome.queues} == deliveries
    assert outcome.idle_bindings == ("'orders' → queue 'idle' with key 'returns.#'",)
    assert outcome.idle_queues == ("idle",)
    assert [(overlap.first, overlap.second) for overlap in outcome.overlaps] == [
        ("'orders' → queue 'all' with key 'orders.#'", "'orders' → queue 'all' with key 'orders.*'")
    ]
    assert [key.routing_key for key in outcome.unroutable_keys] == ["strange"]
    assert outcome.series is not None
    assert sum(outcome.series.messages) == 4000
    assert sum(outcome.series.queues["all"]) == deliveries["all"]
    assert outcome.first == datetime(2026, 1, 1, tzinfo=UTC)
    assert json.loads(json.dumps(outcome.to_dict()))["messages"] == 4000
    page = outcome.to_html()
    assert '<meta name="holtmq-vhost" content="/">' in page[:300]
    assert "A &lt;b&gt;busy&lt;/b&gt; day" in page
    assert "<b>busy" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_a_report_finds_bodies_and_times_whatever_the_case_of_their_columns(spark: SparkSession) -> None:
    rows = spark.sql("SELECT '' AS EXCHANGE, 'q' AS Routing_Key, 'four' AS BODY, timestamp '2026-05-01 12:00:00' AS Timestamp")
    measured = report(rows, Topology((), (Queue("q"),), ()))
    assert [(queue.name, queue.bytes) for queue in measured.queues] == [("q", 4)]
    assert measured.to_dict()["first"].startswith("2026-05-01T12:00:00")


def test_a_report_without_messages(spark: SparkSession) -> None:
    outcome = report(spark.createDataFrame([], "exchange string, routing_key string"), SHOP)
    assert (outcome.messages, outcome.series, len(outcome.idle_bindings)) == (0, None, 6)
    assert "<html" in outcome.to_html()


@pytest.mark.parametrize("live", ["holtmq"], indirect=True)
def test_archive_then_replay(spark: SparkSession, live: LiveBroker, channel: Channel, queue: str, tmp_path: Path) -> None:
    for n in range(300):
        channel.publish(
            "", queue, b"%d" % n, message_id=str(n), app_id="shop", headers={"n": n, "even": n % 2 == 0},
            timestamp=datetime(2026, 5, 1 + n // 100, tzinfo=UTC), user_id="guest",
        )  # fmt: skip
    channel.settle()
    summary = archive(spark, queue, str(tmp_path / "archive"), url=live.url)
    assert summary.messages == 300
    assert {path.name for path in (tmp_path / "archive").iterdir()} == {
        "_holtmq",
        "date=2026-05-01",
        "date=2026-05-02",
        "date=2026-05-03",
    }
    stored = spark.read.parquet(str(tmp_path / "archive"))
    assert sorted(int(row["message_id"]) for row in stored.collect()) == list(range(300))
    wait_until(lambda: channel.count(queue) == 0)

    where = MessageFilter(
        since=datetime(2026, 5, 2, tzinfo=UTC),
        until=datetime(2026, 5, 3, tzinfo=UTC),
        key="*",
        queue=queue,
        headers={"even": True},
    )
    outcome = replay(stored, where=where, url=live.url, rate=500, replay_id="again")
    assert outcome.published.confirmed == 50
    events = list(iter(lambda: channel.get(queue), None))
    assert sorted(int(event.body) for event in events) == list(range(100, 200, 2))
    properties = next(event.properties for event in events if event.body == b"100")
    assert properties["headers"] == {"n": 100, "even": True, "x-holtmq-replay": "again"}
    assert (properties["app_id"], properties["message_id"]) == ("shop", "100")
    assert "user_id" not in properties


def test_small_files_are_merged_and_duplicates_removed(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    columns = "source_queue string, message_id string, redelivered boolean, received_at timestamp, body string"
    when = datetime(2026, 1, 1, tzinfo=UTC)
    for n in range(10):
        rows = [("q", f"m{n}", False, when, "same"), ("q", f"m{n - 1}", True, when, "same"), ("q", None, True, when, "no id")]
        rows += [("q", f"m{n - 1}", True, when, f"another, number {n}")]
        spark.createDataFrame(rows, columns).coalesce(1).write.parquet(str(target / "date=2026-01-01"), mode="append")
    assert compact(spark, str(target)) == (10, 9)
    merged = spark.read.parquet(str(target))
    bodies = Counter(row["body"].split(",")[0] for row in merged.collect())
    assert bodies == {"same": 11, "no id": 10, "another": 10}
    assert merged.where("redelivered and body = 'same'").count() == 1  # of m-1, which was never there before
    assert len(list((target / "date=2026-01-01").glob("*.parquet"))) == 1
    assert compact(spark, str(target)) == (0, 0)


def test_the_newest_batch_is_not_merged_because_it_may_be_written_again(spark: SparkSession, tmp_path: Path) -> None:
    for query in ("a" * 12, "b" * 12):  # two archives in one folder, one further than the other
        for n in range(9 if query[0] == "a" else 5):
            pq.write_table(pa.table({query[0]: [n]}), tmp_path / f"batch-{query}-{n:09}-000.snappy.parquet")
    assert compact(spark, str(tmp_path)) == (12, 0)
    names = {path.name.rsplit("-", 1)[0] for path in tmp_path.glob("batch-*.parquet")}
    assert names == {"batch-aaaaaaaaaaaa-000000008", "batch-bbbbbbbbbbbb-000000004"}
    (merged,) = tmp_path.glob("merged-*.parquet")
    assert sorted(filter(None, pq.read_table(merged).column("b").to_pylist())) == [1, 2, 3]


def test_only_one_compaction_runs_at_a_time(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.spark.compaction.LOCK_TIMEOUT_S", 0.1)
    other = FolderLock(*filesystem_of(str(tmp_path / "_holtmq")))
    assert other.acquire(0)
    with pytest.raises(WriteError, match="is being compacted by another process: try again"):
        compact(spark, str(tmp_path))
    other.release()
    assert compact(spark, str(tmp_path)) == (0, 0)


def test_an_interrupted_compaction_is_completed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "archive"
    for n in range(8):
        spark.range(n * 10, n * 10 + 10).coalesce(1).write.parquet(str(target), mode="append")

    class PowerCutError(Exception):
        pass

    def cut(filesystem: Any, path: str) -> None:
        """Carry out half of the plan, then fail."""
        note = Path(path) / "_holtmq" / "compaction.json"
        if note.exists():
            for name in json.loads(note.read_text())["replaced"][:4]:
                Path(name).unlink()
            raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr("holtmq.spark.compaction._carry_out_plan", cut)
        with pytest.raises(PowerCutError):
            compact(spark, str(target))
    assert compact(spark, str(target)) == (0, 0)
    assert sorted(row["id"] for row in spark.read.parquet(str(target)).collect()) == list(range(80))


@pytest.mark.parametrize("live", ["holtmq"], indirect=True)
def test_archives_with_separate_checkpoints_can_share_a_folder(
    spark: SparkSession, live: LiveBroker, channel: Channel, tmp_path: Path
) -> None:
    for number, queue in enumerate(("one", "two")):
        channel.declare(queue, durable=True)
        channel.put(queue, *(b"%d" % n for n in range(number * 100, number * 100 + 100)), delivery_mode=2)
        archive(spark, queue, str(tmp_path / "lake"), checkpoint=str(tmp_path / queue), url=live.url)
        channel.delete(queue)
    stored = spark.read.parquet(str(tmp_path / "lake"))
    assert sorted(int(bytes(row["body"])) for row in stored.collect()) == list(range(200))


@pytest.mark.parametrize("live", ["holtmq"], indirect=True)
def test_columns_that_partition_an_archive_are_read_back_unchanged(
    spark: SparkSession, live: LiveBroker, channel: Channel, tmp_path: Path
) -> None:
    channel.declare("007", durable=True)
    channel.put("007", b"m", delivery_mode=2)
    archive(spark, "007", str(tmp_path / "lake"), partition_by=("exchange", "routing_key"), url=live.url)
    channel.delete("007")
    (row,) = spark.read.parquet(str(tmp_path / "lake")).collect()
    assert (row["exchange"], row["routing_key"]) == ("", "007")
    assert len(list((tmp_path / "lake").glob("by_exchange=*/by_routing_key=007/*.parquet"))) == 1


def test_partitioning_by_an_unknown_column_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="partition_by names the column 'colour', which messages do not have"):
        archive(spark, "q", str(tmp_path), partition_by=("colour",), url="amqp://127.0.0.1:1")
