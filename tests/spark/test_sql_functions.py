"""The SQL functions: the same routes as route(), and errors that name the argument."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType
from pyspark.sql.udtf import AnalyzeArgument

from holtmq import Binding, Exchange, InvalidValueError, Queue, Topology
from holtmq.errors import NotFoundError
from holtmq.spark import register, route
from holtmq.spark.sql_functions import RouteFunction, headers_text

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


def table(*names: str) -> AnalyzeArgument:
    schema = StructType([StructField(name, StringType()) for name in names])
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
    ],
)
def test_wrong_arguments_are_named(definitions: str, arguments: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        RouteFunction.analyze(**{"messages": MESSAGES, "definitions": constant(definitions), **arguments})


def test_messages_of_one_exchange_need_no_column_for_it(definitions: str) -> None:
    analysis = RouteFunction.analyze(table("ROUTING_KEY"), constant(definitions), exchange=constant("orders"))
    message = Row("ROUTING_KEY")("orders.toys")
    assert list(RouteFunction(analysis).eval(message)) == [("orders.toys", "all", None)]


def test_headers_are_text_maps_or_structs_of_values_that_amqp_has() -> None:
    assert headers_text(None) is None
    assert headers_text('{"a": 1}') == '{"a": 1}'
    assert headers_text({"a": None, "b": [1, {"c": b"x"}]}) == '{"a": null, "b": [1, {"c": {"$bytes": "eA=="}}]}'
    assert headers_text(Row(a=None, b=1.5)) == '{"b": 1.5}'
    with pytest.raises(InvalidValueError, match="headers must be JSON text, a map or a struct, got int"):
        headers_text(3)
    with pytest.raises(InvalidValueError, match=r"headers contain a value of type datetime: expected text, .* as JSON text"):
        headers_text({"when": datetime(2026, 1, 1, tzinfo=UTC)})
