"""route_batches(): a stream follows its topology."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holtmq import Binding, Exchange, InvalidValueError, Policy, Queue, Topology
from holtmq.spark import route, route_batches
from holtmq.spark.changing_topology import TopologyError, read_topology, version_of
from tests.management.conftest import running_node

EMPTY = Topology((Exchange("orders", "topic"),), (Queue("food"), Queue("all")))
FOOD = Topology(EMPTY.exchanges, EMPTY.queues, (Binding("orders", "food", "orders.food"),))
ALL = Topology(EMPTY.exchanges, EMPTY.queues, (Binding("orders", "all", "orders.#"),))


def test_each_micro_batch_is_routed_with_the_topology_as_it_is_then(spark: SparkSession, tmp_path: Path) -> None:
    definitions, source = tmp_path / "definitions.json", str(tmp_path / "in")
    message = spark.sql("SELECT 'orders' AS exchange, 'orders.food' AS routing_key")
    written: list[tuple[int, str, str]] = []

    def write(deliveries: DataFrame, batch: int) -> None:
        written.extend((batch, row["queue"], row["topology_version"]) for row in deliveries.collect())

    definitions.write_text(json.dumps(FOOD.to_definitions()))
    message.write.parquet(source)
    stream = spark.readStream.schema(message.schema).parquet(source)
    writer = stream.writeStream.foreachBatch(route_batches(write, definitions))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        query.processAllAvailable()
        definitions.write_text(json.dumps(ALL.to_definitions()))
        message.write.mode("append").parquet(source)
        query.processAllAvailable()
    finally:
        query.stop()
    assert written == [(0, "food", version_of(FOOD)), (1, "all", version_of(ALL))]
    assert version_of(FOOD) != version_of(ALL)


def test_the_version_changes_only_with_what_routes() -> None:
    document = {**FOOD.to_definitions(), "bindings": [*FOOD.to_definitions()["bindings"], *ALL.to_definitions()["bindings"]]}
    both = Topology.from_definitions(document)
    others = {"users": [{"name": "new", "password_hash": "x", "tags": ""}], "parameters": [], "rabbit_version": "4.0"}
    reordered = {name: [{**entry, "unknown": 1} for entry in reversed(entries)] for name, entries in document.items()}
    assert version_of(Topology.from_definitions({**reordered, **others})) == version_of(both)
    policy = Policy("p", "^food$", {"message-ttl": 5})
    versions = {version_of(each) for each in (EMPTY, FOOD, ALL, both, replace(both, policies=(policy,)))}
    assert len(versions) == 5


def test_a_topology_is_read_from_a_function_and_from_a_broker() -> None:
    assert read_topology(lambda: FOOD) is FOOD
    with running_node() as node:
        url = node.http.base.replace("://", "://guest:guest@")
        node.http.put("/api/queues/%2F/food", {"durable": True})
        assert [queue.name for queue in read_topology(f"{url}/api/definitions").queues] == ["food"]
        with pytest.raises(
            TopologyError, match=r"cannot read the definitions at http://127\.0\.0\.1:\d+/api/definitions: .*401"
        ):
            read_topology(f"{url.replace('guest:guest', 'guest:wrong')}/api/definitions")


@pytest.mark.parametrize(
    ("given", "of_stream", "of_batch"),
    [
        ("shop.json", "got 'shop.json': ", r"got 'shop.json': read the file with Topology\.from_definitions\('shop.json'\)"),
        (
            Path("shop.json"),
            "got 'shop.json': ",
            r"got a PosixPath: read the file with Topology\.from_definitions\('shop.json'\)",
        ),
        ("http://guest:secret@mq:15672/api/definitions", "got a URL: ", "got a URL: save the definitions to a file"),
        (lambda: FOOD, "got a function: ", "got a function: call it, and pass the Topology that it returns"),
    ],
    ids=["text", "path", "url", "function"],
)
def test_route_takes_no_topology_that_changes_and_names_what_does(
    spark: SparkSession, given: Any, of_stream: str, of_batch: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("'orders' AS exchange", "'orders.food' AS routing_key")
    advice = (
        r"To read it again for each micro-batch, .* messages\.writeStream\.foreachBatch\(route_batches\(write, topology\)\)"
    )
    with pytest.raises(InvalidValueError, match=f"topology must be a Topology, {of_stream}.*{advice}") as caught:
        route(stream, given)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidValueError, match=f"topology must be a Topology, {of_batch}") as caught:
        route(spark.sql("SELECT 'orders' AS exchange, 'orders.food' AS routing_key"), given)
    assert "secret" not in str(caught.value)


def test_anything_else_is_refused(tmp_path: Path) -> None:
    anything: Any = FOOD
    with pytest.raises(
        InvalidValueError, match=r"topology must be a path, a URL or a function .*, got Topology\. For a topology"
    ):
        route_batches(lambda *_: None, anything)
    with pytest.raises(TopologyError, match="the function for the topology must return a Topology, got NoneType"):
        read_topology(lambda: None)  # type: ignore[arg-type, return-value]
