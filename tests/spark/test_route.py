"""route(): inputs, results, and that no message is lost."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)  # fmt: skip

from holtmq import Binding, Exchange, InvalidValueError, Queue, Topology
from holtmq.errors import NotFoundError
from holtmq.spark import Columns, compare, join_plan, report, route, route_job
from holtmq.spark.input_plan import InputPlan
from holtmq.spark.join_plan import estimated_distinct
from holtmq.spark.versions import AMQP, spark_version

SHOP = Topology(
    (Exchange("orders", "topic"), Exchange("desks", "headers"), Exchange("inner", "fanout", internal=True)),
    (Queue("food"), Queue("all"), Queue("vip"), Queue("bytes")),
    (
        Binding("orders", "food", "orders.food.*", {"x-priority": 7}),
        Binding("orders", "all", "orders.#", {"x-message-ttl": 5000}),
        Binding("orders", "all", "orders.food.#"),
        Binding("desks", "vip", "", {"x-match": "all", "level": 1}),
    ),
)
BY_ARROW = "ArrowEvalPython" if hasattr(F, "arrow_udf") else "MapInArrow"
"""What the plan of Spark contains if messages go through Python."""
PLANS: tuple[Literal["join", "arrow"], ...] = ("join", "arrow")


def messages(spark: SparkSession, *keys: str | None, exchange: str = "orders") -> DataFrame:
    return spark.createDataFrame(
        [(n, exchange, key) for n, key in enumerate(keys)], "id int, exchange string, routing_key string"
    )


def pairs(deliveries: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((row["id"], row["queue"] or "") for row in deliveries.collect())


@pytest.mark.parametrize("plan", PLANS)
def test_each_delivery_is_one_row_with_all_columns_unchanged(spark: SparkSession, plan: Any) -> None:
    rows = messages(spark, "orders.food.pizza", "orders.toys").withColumn("more", F.struct(F.lit(1.5), F.array(F.lit("x"))))
    deliveries = route(rows, SHOP, plan=plan)
    assert deliveries.columns == [*rows.columns, "queue", "reason"]
    assert deliveries.schema.fields[:4] == rows.schema.fields[:4]
    assert pairs(deliveries) == [(0, "all"), (0, "food"), (1, "all")]
    assert {row["more"]["col1"] for row in deliveries.collect()} == {1.5}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    ("unroutable", "expected"),
    [("keep", [(0, "all"), (1, ""), (2, "")]), ("drop", [(0, "all"), (2, "")]), ("only", [(1, ""), (2, "")])],
)
def test_unroutable_messages_are_kept_dropped_or_alone_and_malformed_ones_always_kept(
    spark: SparkSession, plan: Any, unroutable: Any, expected: list[tuple[int, str]]
) -> None:
    assert pairs(route(messages(spark, "orders.toys", "nowhere", None), SHOP, unroutable=unroutable, plan=plan)) == expected


@pytest.mark.parametrize("plan", PLANS)
def test_malformed_messages_have_a_reason(spark: SparkSession, plan: Any) -> None:
    rows = spark.createDataFrame(
        [
            ("orders", "orders.toys", '{"level": 1}'),
            ("orders", None, None),
            (None, "orders.toys", None),
            ("nothing", "orders.toys", None),
            ("inner", "orders.toys", None),
            ("orders", "orders.toys", "{broken"),
            ("orders", "orders.toys", "[1]"),
            ("orders", "orders.toys", '{"CC": "orders.food"}'),
            ("orders", "x" * 256, None),
        ],
        "exchange string, routing_key string, headers string",
    )
    reasons = sorted(row["reason"] for row in route(rows, SHOP, plan=plan).collect() if row["reason"] is not None)
    broken = (
        "headers: expected a JSON object, got '{broken' (Expecting property name enclosed in double quotes: line 1 column 2"
    )
    assert reasons == [
        "a routing key must be at most 255 bytes in UTF-8, got 256 bytes: 'xxxxxxxxxxxxxxxxxxxx'…",
        "cannot publish to internal exchange 'inner' in vhost '/'",
        "header 'CC' must be an array of routing keys, got string 'orders.food'",
        f"{broken} (char 1))",
        "headers: expected a JSON object, got array of 1",
        "no exchange 'nothing' in vhost '/'",
        "the exchange is null",
        "the routing key is null",
    ]


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_wrong_with_headers_does_not_depend_on_the_bindings_that_read_some(spark: SparkSession, plan: Any) -> None:
    valid = [b'{"a": {"$timestamp": 7}}', b' {"a": {"b": [1]}}\n', b'{"a": NaN}', b"null", b"{}"]
    invalid = [
        b'{"a": {"$timestamp": "x"}}', b'{"a": {"\\u0024timestamp": "x"}}', b'{"a": [{"$bytes": "?"}]}', b'{"a": 1} {',
        b'{"a": 1}, {"b": 2}', b'{"a": 1}}', b'{"a": "\xff"}', b"", b"7",
    ]  # fmt: skip
    rows = spark.createDataFrame([(n, bytearray(text)) for n, text in enumerate(valid + invalid)], "id int, headers binary")
    rows = rows.withColumn("headers", F.col("headers").cast("string")).withColumn("routing_key", F.lit("k"))
    without_readers = Topology(SHOP.exchanges, SHOP.queues, SHOP.bindings[:3])
    for topology in (SHOP, without_readers):
        routed = route(rows, topology, exchange="orders", plan=plan).where("reason is null")
        assert sorted(row["id"] for row in routed.select("id").collect()) == [*range(len(valid))]


@pytest.mark.parametrize("plan", PLANS)
def test_settings_and_bindings_are_columns_on_request(spark: SparkSession, plan: Any) -> None:
    deliveries = route(messages(spark, "orders.food.pizza"), SHOP, settings=True, bindings=True, plan=plan)
    rows = {row["queue"]: row for row in deliveries.collect()}
    assert (rows["food"]["binding_priority"], rows["food"]["binding_ttl_ms"]) == (7, None)
    assert (rows["all"]["binding_priority"], rows["all"]["binding_ttl_ms"]) == (None, 5000)
    assert rows["food"]["bindings"] == ["'orders' → queue 'food' with key 'orders.food.*' {'x-priority': 7}"]
    assert len(rows["all"]["bindings"]) == 2


HEADERS: dict[str, tuple[Any, Any, Any]] = {
    # the type of the column, a value that matches level = 1 and one that does not
    "JSON text": (StringType(), '{"level": 1}', '{"level": "1"}'),
    "JSON text with a float": (StringType(), '{"level": 1, "x": 1.0}', '{"level": 1.0}'),
    "map of integers": (MapType(StringType(), LongType()), {"level": 1}, {"level": 2}),
    "map of texts": (MapType(StringType(), StringType()), None, {"level": "1"}),
    "map of floats": (MapType(StringType(), DoubleType()), None, {"level": 1.0}),
    "struct": (StructType([StructField("level", LongType()), StructField("a", StringType())]), (1, "x"), (None, "x")),
}


@pytest.mark.parametrize("form", HEADERS)
@pytest.mark.parametrize("plan", PLANS)
def test_headers_of_every_form_keep_their_types(spark: SparkSession, form: str, plan: Any) -> None:
    type_, matching, other = HEADERS[form]
    schema = StructType([StructField("id", LongType()), StructField("headers", type_)])
    rows = spark.createDataFrame([(0, matching), (1, other), (2, None)], schema).withColumn("routing_key", F.lit("k"))
    expected = [(0, "vip")] if matching is not None else []
    assert pairs(route(rows, SHOP, exchange="desks", unroutable="drop", plan=plan)) == expected


@pytest.mark.parametrize("plan", PLANS)
def test_headers_in_a_variant_keep_their_types(spark: SparkSession, plan: Any) -> None:
    texts = ['{"level": 1, "b": [2]}', '{"level": 1.0}', '{"level": "1"}', '{"level": true}', "{}", "[1]", None]
    rows = spark.createDataFrame(list(enumerate(texts)), "id int, text string")
    rows = rows.select("id", F.parse_json("text").alias("headers"), F.lit("k").alias("routing_key"))
    deliveries = route(rows.drop("text"), SHOP, exchange="desks", plan=plan)
    assert [pair for pair in pairs(deliveries) if pair[1]] == [(0, "vip")]
    assert [row["id"] for row in deliveries.collect() if row["reason"]] == [5]


TYPED = {
    "b": (BinaryType(), bytearray(b"\x00\xff")),
    "t": (TimestampType(), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "d": (DecimalType(10, 2), Decimal("12.50")),
    "f": (BooleanType(), True),
    "l": (ArrayType(BinaryType()), [bytearray(b"a")]),
    "m": (MapType(StringType(), TimestampType()), {"k": datetime(2026, 1, 1, tzinfo=UTC)}),
}


@pytest.mark.parametrize("name", TYPED)
def test_types_that_json_lacks_reach_the_router_unchanged(spark: SparkSession, name: str) -> None:
    type_, value = TYPED[name]
    plain: Any = {"l": [b"a"]}.get(name, bytes(value) if isinstance(value, bytearray) else value)
    topology = Topology((Exchange("x", "headers"),), (Queue("q"),), (Binding("x", "q", "", {name: plain}),))
    schema = StructType(
        [StructField("headers", StructType([StructField(name, type_)])), StructField("routing_key", StringType())]
    )
    rows = spark.createDataFrame([((value,), "k"), ((None,), "k")], schema).withColumn("id", F.monotonically_increasing_id())
    assert len(pairs(route(rows, topology, exchange="x", unroutable="drop"))) == 1
    mapped = rows.select("id", "routing_key", F.create_map(F.lit(name), F.col("headers")[name]).alias("headers"))
    assert len(pairs(route(mapped, topology, exchange="x", unroutable="drop"))) == 1


@pytest.mark.parametrize("plan", PLANS)
def test_cc_and_bcc_add_keys(spark: SparkSession, plan: Any) -> None:
    texts = ['{"CC": ["orders.food.a"]}', '{"BCC": ["orders.food.a"]}', '{"\\u0043C": ["orders.food.a"]}', '{"a": "CC"}']
    rows = spark.createDataFrame(
        [(n, "nowhere", text) for n, text in enumerate(texts)], "id int, routing_key string, headers string"
    )
    only_topic = Topology(SHOP.exchanges, SHOP.queues, SHOP.bindings[:3])
    for topology in (SHOP, only_topic):  # with a headers exchange somewhere, and without
        assert [n for n, queue in pairs(route(rows, topology, exchange="orders", plan=plan)) if queue == "food"] == [0, 1, 2]


@pytest.mark.parametrize("plan", PLANS)
def test_keys_must_be_valid_even_if_the_exchange_ignores_them(spark: SparkSession, plan: Any) -> None:
    topology = Topology(
        (Exchange("all", "fanout"), Exchange("some", "topic")),
        (Queue("q"),),
        (Binding("all", "q"), Binding("some", "q", "a.#")),
    )
    keys = ["a", "b", None, "x" * 256]
    rows = [(n, exchange, key) for n, (exchange, key) in enumerate((e, k) for e in ("all", "some") for k in keys)]
    routed = route(spark.createDataFrame(rows, "id int, exchange string, routing_key string"), topology, plan=plan)
    assert [n for n, queue in pairs(routed) if queue] == [0, 1, 4]
    assert sorted(row["id"] for row in routed.collect() if row["reason"]) == [2, 3, 6, 7]
    assert {row["routing_key"] for row in routed.collect()} == {*keys}


def test_columns_can_have_other_names_and_types(spark: SparkSession) -> None:
    topology = Topology((Exchange("7", "direct"),), (Queue("q"),), (Binding("7", "q", "42"),))
    rows = spark.createDataFrame([(0, 42, 7), (1, 43, 7)], "id int, k int, x int")
    for plan in PLANS:
        deliveries = route(rows, topology, columns=Columns("k", "x"), unroutable="drop", plan=plan)
        assert pairs(deliveries) == [(0, "q")]
        assert deliveries.columns == ["id", "k", "x", "queue", "reason"]


def test_vhosts_are_separate(spark: SparkSession) -> None:
    topology = Topology(
        (Exchange("x", "fanout", vhost="other"),), (Queue("q", vhost="other"),), (Binding("x", "q", vhost="other"),)
    )
    assert pairs(route(messages(spark, "k", exchange="x"), topology, vhost="other")) == [(0, "q")]
    assert [row["reason"] for row in route(messages(spark, "k", exchange="x"), topology).collect()] != [None]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"unroutable": "perhaps"}, InvalidValueError, "unroutable must be one of keep, drop, only, got 'perhaps'"),
        ({"plan": "magic"}, InvalidValueError, "plan must be one of auto, join, arrow, got 'magic'"),
        ({"exchange": "nothing"}, NotFoundError, "nothing"),
        ({"columns": Columns(routing_key="rk")}, InvalidValueError, "the messages have no column 'rk' for the routing key"),
        ({"columns": Columns(exchange="ex")}, InvalidValueError, "the messages have no column 'ex' for the exchange"),
        ({"columns": Columns(headers="h")}, InvalidValueError, "the messages have no column 'h' for the headers: found the"),
        (
            {"columns": Columns(headers="id")},
            InvalidValueError,
            "the column 'id' for the headers has type int: expected a map ",
        ),
        ({"columns": "routing_key"}, InvalidValueError, r"columns must be Columns, such as Columns\(.*\), got 'routing_key'"),
        (
            {"columns": Columns(routing_key="list")},
            InvalidValueError,
            "the column 'list' for the routing key has type array<int>",
        ),
        (
            {"columns": Columns(exchange="more")},
            InvalidValueError,
            "'more' for the exchange has type .*: expected string, binary",
        ),
        ({"exchange": 7}, InvalidValueError, "exchange must be the name of an exchange, or None .*, got 7"),
        ({"vhost": None}, InvalidValueError, "vhost must be the name of a virtual host, got None"),
        (
            {"topology": "a.json"},
            InvalidValueError,
            r"topology must be a Topology, got 'a.json': read the file with Topology\.from",
        ),
        ({"topology": {"queues": []}}, InvalidValueError, "topology must be a Topology, got a dict"),
        ({"messages": SHOP}, InvalidValueError, "messages must be a DataFrame, got a Topology"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(
    spark: SparkSession, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    rows = messages(spark, "k").withColumns({"list": F.array(F.lit(1)), "more": F.struct(F.lit(1.5))})
    with pytest.raises(error, match=match):
        route(**{"messages": rows, "topology": SHOP, **arguments})


def test_an_error_names_the_conflicting_column(spark: SparkSession) -> None:
    with pytest.raises(InvalidValueError, match="already have a column 'queue', which routing adds"):
        route(messages(spark, "k").withColumn("queue", F.lit("q")), SHOP)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("depth", [600, 100_000])
def test_headers_that_are_nested_too_deeply_are_malformed(spark: SparkSession, plan: Any, depth: int) -> None:
    deep = '{"CC": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    rows = spark.createDataFrame([("orders", "orders.toys", deep)], "exchange string, routing_key string, headers string")
    (row,) = route(rows, SHOP, plan=plan).collect()
    assert row["queue"] is None
    assert row["reason"].startswith("header")


@pytest.mark.parametrize("plan", PLANS)
def test_column_names_can_contain_dots_and_backticks(spark: SparkSession, plan: Any) -> None:
    rows = spark.sql(
        "select 'orders.toys' as `the.key`, 'orders' as `ex``change`, 5 as `event.type`, struct(7 as type) as event"
    )
    columns = Columns(routing_key="the.key", exchange="ex`change")
    (row,) = route(rows, SHOP, columns=columns, plan=plan).collect()
    assert (row["event.type"], row["event"]["type"], row["queue"]) == (5, 7, "all")


def test_a_column_that_differs_from_an_added_one_in_case_only_is_refused(spark: SparkSession) -> None:
    with pytest.raises(InvalidValueError, match="the messages already have a column 'Queue', which routing adds"):
        route(messages(spark, "k").withColumn("Queue", F.lit(1)), SHOP)


def test_an_empty_input_gives_an_empty_result(spark: SparkSession) -> None:
    for plan in ("auto", *PLANS):
        assert route(messages(spark).limit(0), SHOP, plan=plan).count() == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("unroutable", ["keep", "drop", "only"])
def test_an_input_that_changes_between_two_reads_loses_nothing(spark: SparkSession, unroutable: Any) -> None:
    anew = F.udf(lambda: f"orders.{uuid.uuid4()}").asNondeterministic()
    rows = spark.range(50).select("id", F.lit("orders").alias("exchange"), anew().alias("routing_key"))
    deliveries = route(rows, SHOP, plan="join", unroutable=unroutable).collect()
    assert len(deliveries) == 50
    assert {row["reason"] for row in deliveries} == {"the input returned different messages when it was read again"}


def test_a_stream_gives_the_same_deliveries_as_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    keys = [None if n % 17 == 0 else f"orders.{('food', 'toys')[n % 2]}.{n % 5}" if n % 3 else "nowhere" for n in range(500)]
    messages(spark, *keys).repartition(5).write.parquet(str(tmp_path / "in"))
    batch = spark.read.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(batch.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    routed = route(stream, SHOP, bindings=True)
    writer = routed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = writer.start(str(tmp_path / "out"), format="parquet")
    query.awaitTermination()
    assert len([progress for progress in query.recentProgress if progress["numInputRows"]]) == 5

    def multiset(deliveries: DataFrame) -> Counter[str]:
        return Counter(map(str, deliveries.collect()))

    assert multiset(spark.read.parquet(str(tmp_path / "out"))) == multiset(route(batch, SHOP, bindings=True))


def test_a_stream_cannot_be_joined(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("'k' as routing_key")
    with pytest.raises(InvalidValueError, match="which a stream does not support"):
        route(stream, SHOP, exchange="orders", plan="join")


def test_signatures_with_the_same_hash_are_distinguished(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.sql(
        "select 'orders' as exchange, k as routing_key from values ('orders.food.1'), ('orders.toys'), ('x') as t(k)"
    )
    expected = sorted(map(tuple, route(rows, SHOP, plan="arrow").collect()))
    monkeypatch.setattr(join_plan, "hash_of", lambda _: F.lit(7).cast("long"))
    assert sorted(map(tuple, route(rows, SHOP).collect())) == expected


def plan_of(deliveries: DataFrame) -> str:
    return deliveries._jdf.queryExecution().toString()  # type: ignore[no-any-return]


def test_few_signatures_are_joined_and_many_go_through_arrow(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    few = spark.range(40_000).selectExpr("'orders' as exchange", "concat('orders.food.', id % 100) as routing_key")
    many = spark.range(40_000).selectExpr("'orders' as exchange", "concat('orders.', id) as routing_key")
    assert estimated_distinct(20_000, 100) == pytest.approx(100, rel=0.05)
    assert estimated_distinct(20_000, 20_000) > 1_000_000
    monkeypatch.setattr(join_plan, "SIGNATURE_LIMIT", 150)  # 100 signatures, but 200 routes
    assert BY_ARROW not in plan_of(route(few, SHOP))
    assert BY_ARROW in plan_of(route(many, SHOP))
    monkeypatch.setattr(join_plan, "ROWS_KEPT", 1)
    assert BY_ARROW in plan_of(route(few, SHOP))  # too many queues to broadcast


@pytest.fixture
def large_arrow_types(spark: SparkSession) -> Iterator[None]:
    """Let Spark pass text and binary values to Python with 64-bit lengths."""
    spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    yield
    spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")


@pytest.mark.usefixtures("large_arrow_types")
@pytest.mark.parametrize("plan", [*PLANS, "auto"])
def test_text_may_come_as_large_arrow_types(spark: SparkSession, plan: Any) -> None:
    rows = messages(spark, "orders.food.a", "orders.x", None).cache()
    assert pairs(route(rows, SHOP, plan=plan)) == [(0, "all"), (0, "food"), (1, "all"), (2, "")]
    rows.unpersist()


def test_the_plans_agree_on_everything_that_is_added(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = messages(spark, *(f"orders.{('food', 'toys')[n % 2]}.{n % 50}" if n % 3 else None for n in range(300)))

    def found(plan: Any) -> Counter[str]:
        return Counter(map(str, route(rows, SHOP, plan=plan, settings=True, bindings=True).collect()))

    assert found("join") == found("arrow")
    monkeypatch.delattr(F, "arrow_udf", raising=False)  # as in Spark 4.0
    assert found("join") == found("arrow")


@pytest.mark.parametrize(("plan", "reads"), [("auto", 1), ("arrow", 1), ("join", 2)])
def test_an_expensive_input_is_read_at_most_twice(spark: SparkSession, plan: Any, reads: int) -> None:
    read = spark.sparkContext.accumulator(0)

    def count(key: str) -> str:
        read.add(1)
        return key

    keys = messages(spark, *(f"orders.food.{n}" for n in range(20)))
    deliveries = route(keys.withColumn("routing_key", F.udf(count, useArrow=False)("routing_key")), SHOP, plan=plan)
    assert read.value == (0 if reads == 1 else 20)
    assert len(deliveries.collect()) == 40
    assert read.value == reads * 20


@pytest.mark.parametrize("where", ["true", "n % 5000 = 7", "n = 7", "n < 0", "n < 10000"])
@pytest.mark.parametrize("plan", ["auto", "join", "arrow"])
def test_files_are_read_at_most_twice_whatever_a_filter_leaves(
    spark: SparkSession, tmp_path: Path, where: str, plan: Any
) -> None:
    """Spark counts the rows of files that its tasks read."""
    number = 10_000
    keys = "CASE id WHEN 7 THEN 'orders.7' WHEN 12 THEN CAST(X'ff' AS STRING) ELSE concat('orders.food.', id % 10) END"
    files = spark.range(number, numPartitions=4).selectExpr("id AS n", "'orders' AS exchange", f"{keys} AS routing_key")
    files.write.option("parquet.block.row.count.limit", 500).parquet(str(tmp_path / "in"))
    stored = spark.read.parquet(str(tmp_path / "in"))
    messages = stored if where == "true" else stored.where(where)
    shown = ("n", "queue", "reason")
    expected = Counter(map(str, route(stored, SHOP, plan="arrow").where(where).select(*shown).collect()))
    before = rows_read(spark)
    deliveries = route(messages, SHOP, plan=plan)
    assert Counter(map(str, deliveries.select(*shown).collect())) == expected
    assert rows_read(spark) - before <= (1 if plan == "arrow" else 2) * number


def rows_read(spark: SparkSession) -> int:
    """Return how many rows of files the jobs of a session have read."""
    context: Any = spark.sparkContext
    core = context._jsc.sc()
    core.listenerBus().waitUntilEmpty()
    jobs, store = core.statusStore().jobsList(None), core.statusStore()
    stages = {job.stageIds().apply(n) for job in map(jobs.apply, range(jobs.size())) for n in range(job.stageIds().size())}
    rows = 0
    for stage in stages:
        with suppress(Py4JError):  # a stage that was skipped
            rows += store.lastStageAttempt(stage).inputRecords()
    return rows


def test_an_input_is_read_early_only_if_that_is_cheap_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    messages(spark, "k").write.parquet(str(tmp_path / "parquet"))
    messages(spark, "k").write.json(str(tmp_path / "json"))
    stored = spark.read.parquet(str(tmp_path / "parquet"))
    cached = stored.withColumn("routing_key", F.udf(lambda _: "k")("id")).cache()
    cheap = {"files": stored.where("id = 0"), "a union": stored.union(stored), "cached data": cached.where("id >= 0")}
    others = {
        "text": spark.read.schema(stored.schema).json(str(tmp_path / "json")),
        "a function": stored.withColumn("more", F.udf(lambda _: "k")("id")),
        "random": stored.withColumn("more", F.rand()),
        "a limit": stored.limit(1),
        "a join": stored.join(stored.select("id"), "id"),
        "a subquery": stored.where(f"id in (select id from parquet.`{tmp_path}/parquet`)"),
        "an RDD": messages(spark, "k"),
        "a stream": spark.readStream.schema(stored.schema).parquet(str(tmp_path / "parquet")),
    }
    if spark_version() >= AMQP:
        others["AMQP"] = spark.read.format("amqp").options(url="amqp://127.0.0.1:1", queue="q").load()
    assert {name: InputPlan(rows).is_cheap() for name, rows in (cheap | others).items()} == (
        dict.fromkeys(cheap, True) | dict.fromkeys(others, False)
    )
    cached.unpersist()


@pytest.mark.skipif(spark_version() < AMQP, reason="the source needs a newer Spark")
def test_a_source_that_can_be_read_once_is_not_read_by_route(spark: SparkSession) -> None:
    inbox = spark.read.format("amqp").options(url="amqp://127.0.0.1:1", queue="q").load()  # nobody listens there
    route(inbox, SHOP)
    with pytest.raises(InvalidValueError, match="reads the input twice, which the source 'amqp' does not support"):
        route(inbox, SHOP, plan="join")


NOT_UTF8 = b"orders.\xff.x"


@pytest.mark.parametrize("plan", PLANS)
def test_text_that_is_not_utf8_gives_a_reason(spark: SparkSession, plan: Any) -> None:
    topology = Topology((*SHOP.exchanges, Exchange("all", "fanout")), SHOP.queues, (*SHOP.bindings, Binding("all", "all")))
    rows = spark.createDataFrame(
        [
            (0, b"orders", b"orders.toys", b"{}"),
            (1, b"orders", NOT_UTF8, None),
            (2, b"all", NOT_UTF8, None),
            (3, b"orders\xff", b"orders.toys", None),
            (4, b"orders", b"orders.toys", b'{"level": "\xff"}'),
            (5, b"all", b"k", None),
        ],
        "id int, exchange binary, routing_key binary, headers binary",
    ).withColumn("headers", F.col("headers").cast("string"))
    texts = rows.select("id", F.col("exchange").cast("string"), F.col("routing_key").cast("string"), "headers")
    for form in (rows, texts):
        deliveries = route(form, topology, plan=plan)
        assert deliveries.schema.fields[:4] == form.schema.fields
        found = {row["id"]: row["queue"] or row["reason"] for row in deliveries.select("id", "queue", "reason").collect()}
        assert found == {
            0: "all",
            1: "the routing key is not valid UTF-8: b'orders.\\xff.x'",
            2: "the routing key is not valid UTF-8: b'orders.\\xff.x'",
            3: "the exchange is not valid UTF-8: b'orders\\xff'",
            4: 'the headers are not valid UTF-8: b\'{"level": "\\xff"}\'',
            5: "all",
        }


def test_the_jobs_report_text_that_is_not_utf8(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([("orders", NOT_UTF8), ("orders", b"orders.toys")], "exchange string, routing_key binary")
    rows.withColumn("routing_key", F.col("routing_key").cast("string")).write.parquet(str(tmp_path / "in"))
    summary = route_job(spark, str(tmp_path / "in"), str(tmp_path / "out"), SHOP)
    assert (summary.by, summary.counts.deliveries, summary.counts.malformed) == ("arrow", 1, 1)
    stored = spark.read.parquet(str(tmp_path / "out"))
    assert {bytes(row[0]) for row in stored.select(F.col("routing_key").cast("binary")).collect()} == {NOT_UTF8, b"orders.toys"}
    messages = spark.read.parquet(str(tmp_path / "in"))
    assert report(messages, SHOP).malformed == 1
    assert compare(messages, SHOP, SHOP).affected == 0


@pytest.mark.skipif(spark_version() < (4, 1), reason="Spark 4.0 passes no rows with a collation to Python")
@pytest.mark.parametrize("plan", PLANS)
def test_a_collation_does_not_make_different_keys_equal(spark: SparkSession, plan: Any) -> None:
    rows = spark.sql(
        "select 'orders' as exchange, k collate UTF8_LCASE as routing_key from values ('orders.a'), ('ORDERS.a') as t(k)"
    )
    found = {row["routing_key"]: row["queue"] for row in route(rows, SHOP, plan=plan).collect()}
    assert found == {"orders.a": "all", "ORDERS.a": None}


def test_columns_are_found_by_sparks_rule_for_case(spark: SparkSession, case_sensitive: None) -> None:
    rows = messages(spark, "orders.toys").withColumnRenamed("routing_key", "Routing_Key").withColumn("Queue", F.lit(1))
    with pytest.raises(InvalidValueError, match="no column 'routing_key' for the routing key"):
        route(rows, SHOP)
    (row,) = route(rows, SHOP, columns=Columns(routing_key="Routing_Key")).collect()
    assert (row["queue"], row["Queue"]) == ("all", 1)


def test_columns_are_found_whatever_their_case(spark: SparkSession) -> None:
    rows = messages(spark, "orders.toys").withColumnRenamed("routing_key", "Routing_Key")
    assert pairs(route(rows, SHOP)) == [(0, "all")]
    doubled = rows.withColumn("more", F.lit("x")).toDF("id", "exchange", "Routing_Key", "ROUTING_KEY")
    with pytest.raises(InvalidValueError, match="have 2 columns called 'routing_key': Routing_Key, ROUTING_KEY"):
        route(doubled, SHOP)


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.unset("spark.sql.caseSensitive")
