"""The SQL functions: the same routes as route(), and errors that name the argument."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import BinaryType, DataType, DoubleType, IntegerType, LongType, StringType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument

from holtmq import Binding, Exchange, InvalidValueError, Queue, Topology
from holtmq.errors import NotFoundError
from holtmq.spark import register, route
from holtmq.spark.message_columns import CASE_RULE
from holtmq.spark.sql_arguments import headers_column, headers_text
from holtmq.spark.sql_functions import RouteFunction
from holtmq.spark.versions import spark_version

SHOP = Topology(
    (Exchange("orders", "topic"), Exchange("desks", "headers")),
    (Queue("food"), Queue("all"), Queue("vip")),
    (
        Binding("orders", "food", "orders.food.*"),
        Binding("orders", "all", "orders.#"),
        Binding("desks", "vip", "", {"x-match": "all", "level": 1}),
    ),
)
ROWS = [
    (1, "orders", "orders.food.pizza", None),
    (2, "orders", None, None),
    (3, "desks", "", '{"level": 1}'),
    (4, "orders", "nowhere", None),
    (5, "no such", "key", None),
    (6, "desks", "", "[1]"),
]
SCHEMA = StructType(
    [StructField("id", LongType()), *(StructField(n, StringType()) for n in ("Exchange", "routing_key", "headers"))]
)


@pytest.fixture
def definitions(tmp_path: Path) -> str:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps(SHOP.to_definitions()))
    return str(path)


def test_sql_routes_as_route_does(spark: SparkSession, definitions: str) -> None:
    messages = spark.createDataFrame(ROWS, SCHEMA)
    messages.createOrReplaceTempView("messages")
    register(spark, definitions)
    routed = spark.sql(f"SELECT * FROM holtmq_route(TABLE(messages), '{definitions}', vhost => '/')")
    expected = route(messages.withColumnRenamed("Exchange", "exchange"), SHOP)
    assert routed.columns == ["id", "Exchange", "routing_key", "headers", "queue", "reason"]
    assert sorted(map(str, map(tuple, routed.collect()))) == sorted(map(str, map(tuple, expected.collect())))
    found = spark.sql("""
        SELECT id, holtmq_queues(exchange, routing_key, headers) AS text, holtmq_queues(exchange, routing_key) AS none,
            holtmq_queues('desks', '', map('level', 1)) AS map, holtmq_queues('desks', '', named_struct('level', 1)) AS struct
        FROM messages ORDER BY id""").collect()
    assert [row["text"] for row in found] == [["all", "food"], None, ["vip"], [], None, None]
    assert [row["none"] for row in found] == [["all", "food"], None, [], [], None, []]
    assert {(*row["map"], *row["struct"]) for row in found} == {("vip", "vip")}
    with pytest.raises(AnalysisException, match=r"InvalidValueError: holtmq_route: the messages have no column routing_key"):
        spark.sql(f"SELECT * FROM holtmq_route(TABLE(SELECT id FROM messages), '{definitions}', exchange => 'orders')")


def test_sql_reports_text_that_is_not_utf8_as_route_does(spark: SparkSession, definitions: str) -> None:
    keys = "SELECT 'orders' AS exchange, CAST(X'6F72646572732EC3' AS STRING) AS routing_key, CAST(NULL AS STRING) AS headers"
    spark.sql(f"{keys} UNION ALL SELECT 'desks', '', CAST(X'7BC3' AS STRING)").createOrReplaceTempView("messages")
    routed = spark.sql(f"SELECT queue, reason FROM holtmq_route(TABLE(messages), '{definitions}')")
    expected = route(spark.table("messages"), SHOP).select("queue", "reason")
    assert sorted(routed.collect()) == sorted(expected.collect())
    assert {row["reason"] for row in routed.collect()} == {
        "the routing key is not valid UTF-8: b'orders.\\xc3'",
        "the headers are not valid UTF-8: b'{\\xc3'",
    }
    register(spark, definitions)
    found = spark.sql("SELECT holtmq_queues(exchange, routing_key, headers) AS queues FROM messages")
    if spark_version() >= (4, 1):
        assert [row["queues"] for row in found.collect()] == [None, None]
    else:  # Spark 4.0 passes no such text to a function
        with pytest.raises(PythonException, match="ArrowException"):
            found.collect()


def test_arguments_for_keys_are_text_binary_or_integers(spark: SparkSession) -> None:
    """As the columns for route()."""
    register(spark, Topology((Exchange("7", "topic"),), (Queue("q"),), (Binding("7", "q", "42"),)))
    found = spark.sql("SELECT holtmq_queues(7, 42), holtmq_queues(X'37', X'3432'), holtmq_queues(7L, '42')").collect()
    assert list(found[0]) == [["q"], ["q"], ["q"]]
    some = spark.sql("SELECT holtmq_queues(7, key) AS queues FROM VALUES (42), (NULL), (43) AS keys(key)")
    if spark_version() >= (4, 1):
        assert [row["queues"] for row in some.collect()] == [["q"], None, []]
    else:  # Spark 4.0 passes integers as floats if some are null
        with pytest.raises(PythonException, match=r"the routing key has the type float: expected string, binary"):
            some.collect()
    with pytest.raises(PythonException, match=r"the routing key has the type (double|float): expected string, binary"):
        spark.sql("SELECT holtmq_queues(7, 1.5D)").collect()
    with pytest.raises(PythonException, match="headers must be JSON text, a map with string keys or a struct, got V"):
        spark.sql("SELECT holtmq_queues(7, 42, parse_json('{}'))").collect()


def test_columns_for_keys_are_text_binary_or_integers(spark: SparkSession, tmp_path: Path) -> None:
    """As the columns for route()."""
    topology = Topology((Exchange("7", "topic"),), (Queue("q"),), (Binding("7", "q", "42"),))
    (tmp_path / "numbers.json").write_text(json.dumps(topology.to_definitions()))
    for rows in ("SELECT 7 AS exchange, 42L AS routing_key", "SELECT X'37' AS exchange, X'3432' AS routing_key"):
        routed = spark.sql(f"SELECT queue, reason FROM holtmq_route(TABLE({rows}), '{tmp_path}/numbers.json')")
        assert list(map(tuple, routed.collect())) == [("q", None)]


def test_named_arguments_can_have_any_order(spark: SparkSession) -> None:
    register(spark, SHOP)
    found = spark.sql("SELECT holtmq_queues(headers => map('level', 1), routing_key => '', exchange => 'desks') AS queues")
    assert found.collect()[0]["queues"] == ["vip"]


@pytest.mark.parametrize(
    ("case_sensitive", "columns", "expected"),
    [
        ("false", "'orders.toys' AS Routing_Key", "all"),
        ("true", "'orders.toys' AS routing_key, 'x' AS Routing_Key", "all"),
        ("true", "'orders.toys' AS Routing_Key", "UNRESOLVED_COLUMN"),
        ("false", "'orders.toys' AS routing_key, 'x' AS Routing_Key", "AMBIGUOUS_REFERENCE"),
        ("false", "'orders.toys' AS ROUTING_KEY, 'x' AS Routing_Key", "have 2 columns called 'routing_key'"),
    ],
)
def test_a_table_function_finds_columns_by_the_case_rule_of_the_session(
    spark: SparkSession, definitions: str, case_sensitive: str, columns: str, expected: str
) -> None:
    query = f"SELECT queue FROM holtmq_route(TABLE(SELECT {columns}), '{definitions}', exchange => 'orders')"
    spark.conf.set(CASE_RULE, case_sensitive)
    try:
        found = str([row["queue"] for row in spark.sql(query).collect()])
    except AnalysisException as error:
        found = str(error)
    finally:
        spark.conf.unset(CASE_RULE)
    assert expected in found


def test_a_table_function_works_on_partitions(spark: SparkSession, definitions: str) -> None:
    spark.createDataFrame(ROWS, SCHEMA).createOrReplaceTempView("messages")
    query = f"FROM holtmq_route(TABLE(messages) PARTITION BY exchange ORDER BY (id), '{definitions}')"
    found = spark.sql(f"SELECT id, queue {query} WHERE queue IS NOT NULL").collect()
    assert sorted(map(tuple, found)) == [(1, "all"), (1, "food"), (3, "vip")]


def table(*names: str, type_: DataType | None = None) -> AnalyzeArgument:
    schema = StructType([StructField(name, type_ or StringType()) for name in names])
    return AnalyzeArgument(schema, None, isTable=True, isConstantExpression=False)


def constant(value: object) -> AnalyzeArgument:
    return AnalyzeArgument(StringType() if isinstance(value, str) else IntegerType(), value, False, True)


MESSAGES = table("exchange", "routing_key")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"messages": constant("messages")}, InvalidValueError, r"the first argument must be a table such as TABLE"),
        ({"definitions": constant(3)}, InvalidValueError, r"definitions must be a constant string, got type int"),
        ({"definitions": AnalyzeArgument(StringType(), None, False, False)}, InvalidValueError, r"must be a constant string"),
        ({"definitions": constant(None)}, InvalidValueError, r"definitions must be the path of a definitions file, got NULL"),
        ({"definitions": constant("/no/such")}, FileNotFoundError, r"/no/such"),
        ({"exchange": constant("other")}, NotFoundError, r"no exchange 'other'"),
        ({"messages": table("routing_key")}, InvalidValueError, r"no column exchange: found the columns routing_key"),
        ({"messages": table("Queue", "exchange", "routing_key")}, InvalidValueError, r"already have a column 'Queue'"),
        (
            {"messages": table("exchange", "routing_key", type_=DoubleType())},
            InvalidValueError,
            r"the column 'routing_key' for the routing key has type double: expected string, binary",
        ),
        (
            {"messages": table("exchange", "routing_key", "headers", type_=BinaryType())},
            InvalidValueError,
            r"the column 'headers' for the headers has type binary: expected JSON text, a map with string keys or a struct",
        ),
    ],
)
def test_wrong_arguments_are_named(definitions: str, arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        RouteFunction.analyze(**{"messages": MESSAGES, "definitions": constant(definitions), **arguments})


def test_messages_of_one_exchange_need_no_column_for_it(definitions: str) -> None:
    analysis = RouteFunction.analyze(table("ROUTING_KEY"), constant(definitions), exchange=constant("orders"))
    selected = Row("message", "routing_key", "exchange", "headers")(
        Row("ROUTING_KEY")("orders.toys"), b"orders.toys", None, None
    )
    assert list(RouteFunction(analysis).eval(selected)) == [("orders.toys", "all", None)]


def test_headers_are_text_maps_or_structs_of_values_that_amqp_has() -> None:
    assert headers_text(None) is None
    assert headers_text('{"a": 1}') == '{"a": 1}'
    assert headers_text({"a": None, "b": [1, {"c": b"x"}]}) == '{"a": null, "b": [1, {"c": {"$bytes": "eA=="}}]}'
    assert headers_text(Row(a=None, b=1.5)) == '{"b": 1.5}'
    with pytest.raises(InvalidValueError, match="headers must be JSON text, a map with string keys or a struct, got int"):
        headers_text(3)
    with pytest.raises(InvalidValueError, match=r"headers contain a value of type datetime: expected text, .* as JSON text"):
        headers_text({"when": datetime(2026, 1, 1, tzinfo=UTC)})


def test_headers_in_arrow_mean_the_same() -> None:
    inner = pa.map_(pa.string(), pa.list_(pa.binary()))
    structs = pa.array([{"a": None, "b": [("c", [b"x"])]}, None], pa.struct([("a", pa.int32()), ("b", inner)]))
    maps = pa.array([[("a", None)], []], pa.map_(pa.string(), pa.int64()))
    for column, expected in (
        (structs, ['{"b": {"c": [{"$bytes": "eA=="}]}}', None]),
        (maps, ['{"a": null}', "{}"]),
        (pa.array(["{}"], pa.large_string()), ["{}"]),
    ):
        assert pa.array(expected).equals(headers_column(column))
    assert headers_column(None) is headers_column(pa.nulls(3)) is None
    variant = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
    for kind, seen in ((pa.map_(pa.int32(), pa.int32()), "map<int32, int32>"), (pa.int32(), "int32"), (variant, "VARIANT")):
        with pytest.raises(InvalidValueError, match=f"a map with string keys or a struct, got {seen}"):
            headers_column(pa.nulls(1, kind))
