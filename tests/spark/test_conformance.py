"""The table of routing cases through Spark, and random topologies and messages: Spark and the router agree."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from holtmq import Binding, Exchange, Queue, Router, Topology
from holtmq.errors import AmqpError
from holtmq.spark import route
from holtmq.spark.arrow_plan import ListingTask
from holtmq.spark.key_classes import KeyClasses
from holtmq.spark.route_cache import RouteCache
from holtmq.spark.routing_request import RoutingRequest
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch
from holtmq.table_json import table_to_json
from tests.conformance.strategies import histories
from tests.conformance.table import Action, Outcome, Publish, load
from tests.conformance.targets import RouterTarget

SCHEMA = "number int, exchange string, routing_key string, headers string"
Cases = list[tuple[Topology, Publish, Outcome]]


def row(number: int, action: Publish) -> tuple[Any, ...]:
    headers = json.dumps(table_to_json(action.headers)) if action.headers else None
    return number, action.exchange, action.key, headers


def table_cases() -> Cases:
    """Return each publish of the table with the topology at that time and the expected result."""
    cases: Cases = []
    for scenario in load():
        target = RouterTarget()
        for step in scenario.steps:
            if isinstance(step.action, Publish):
                cases.append((target.broker.to_topology(), step.action, step.expected))
            else:
                target.apply(step.action)
    return cases


def by_topology(cases: Cases) -> dict[Topology, list[tuple[Publish, Outcome]]]:
    found: dict[Topology, list[tuple[Publish, Outcome]]] = defaultdict(list)
    for topology, action, expected in cases:
        found[topology].append((action, expected))
    return found


def outcomes(rows: list[Any], count: int) -> list[tuple[str, ...] | str]:
    """Return for each message its queues, or "malformed"."""
    queues: dict[int, list[str]] = {number: [] for number in range(count)}
    malformed = {row["number"] for row in rows if row["reason"] is not None}
    for row in rows:
        if row["queue"] is not None:
            queues[row["number"]].append(row["queue"])
    return ["malformed" if number in malformed else tuple(sorted(found)) for number, found in queues.items()]


def expected_outcomes(messages: list[tuple[Publish, Outcome]]) -> list[tuple[str, ...] | str]:
    return ["malformed" if isinstance(outcome, int) else outcome or () for _, outcome in messages]


@pytest.mark.parametrize("plan", ["join", "arrow"])
def test_every_case_of_the_table_has_the_same_result_in_spark(spark: SparkSession, plan: Any) -> None:
    topologies = list(by_topology(table_cases()).items())
    assert sum(len(messages) for _, messages in topologies) > 350
    some = topologies if plan == "arrow" else topologies[::6]  # a join runs more jobs, around the same routing
    for topology, messages in some:
        rows = [row(number, action) for number, (action, _) in enumerate(messages)]
        routed = route(spark.createDataFrame(rows, SCHEMA), topology, plan=plan)
        assert outcomes(routed.collect(), len(rows)) == expected_outcomes(messages), [action for action, _ in messages]


@given(histories(most=20))
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@pytest.mark.parametrize("plan", ["join", "arrow"])
def test_random_topologies_and_messages_are_routed_as_by_the_router(
    spark: SparkSession, plan: Any, history: list[Action]
) -> None:
    router, messages = _played(history)
    rows = [row(number, action) for number, (action, _) in enumerate(messages)]
    routed = route(spark.createDataFrame(rows, SCHEMA), router.to_topology(), plan=plan)
    assert outcomes(routed.collect(), len(rows)) == expected_outcomes(messages)


def _played(history: list[Action]) -> tuple[Router, list[tuple[Publish, Outcome]]]:
    """Return the topology at the end of a history, and the result of routing its messages there."""
    target = RouterTarget()
    for action in history:
        target.apply(action)
    return target.broker, [(action, target.apply(action)) for action in history if isinstance(action, Publish)]


@given(histories())
@settings(max_examples=300, deadline=None)
def test_batches_are_routed_as_by_the_router_with_all_options(history: list[Action]) -> None:
    """Test the code of the executors without Spark, which is fast enough for many topologies."""
    router, messages = _played(history)
    fields = zip(*(row(number, action) for number, (action, _) in enumerate(messages)), strict=True)
    if not messages:
        return
    names = ["number", "exchange", "routing_key", "headers"]
    batch = pa.RecordBatch.from_arrays([pa.array(list(values)) for values in fields], names=names)
    columns = tuple(batch.column(name).cast(pa.string()) for name in names[1:])
    spec = RoutingSpec.of(RoutingRequest(router.to_topology()), router)
    task = ListingTask(spec, ("exchange", "routing_key", "headers"))
    for batches in ([columns], [tuple(column.slice(n, 1) for column in columns) for n in range(len(batch))]):
        lists = [routes for array in task.run(iter(batches)) for routes in array.to_pylist()]
        rows = [{"number": number, **row} for number, routes in enumerate(lists) for row in routes]
        assert outcomes(rows, len(messages)) == expected_outcomes(messages)


words = st.sampled_from(["a", "b", "c", "", "zz", "?", "17", "é"])
some_keys = st.lists(st.lists(words, max_size=6).map(".".join), min_size=1, max_size=60, unique=True)


@given(histories(most=4), some_keys)
@settings(max_examples=300, deadline=None)
def test_keys_of_one_class_take_the_same_route(history: list[Action], keys: list[str]) -> None:
    router, _ = _played(history)
    stand_ins, of_key = KeyClasses(router).find(pa.array([*keys, "x" * 300]))
    for key, number in zip([*keys, "x" * 300], of_key.tolist(), strict=True):
        for exchange in ("", *router.registry.exchanges):
            assert _route(router, exchange, stand_ins[number].as_py()) == _route(router, exchange, key)


def _route(router: Router, exchange: str, key: str) -> object:
    try:
        return router.route(exchange, key)
    except AmqpError as error:
        return error.reply_code


def test_words_that_no_pattern_contains_are_equivalent() -> None:
    router = Router(Topology((Exchange("x", "topic"),), (Queue("q"),), (Binding("x", "q", "spec.*.paid"),)))
    stand_ins, of_key = KeyClasses(router).find(pa.array([f"spec.{n}.paid" for n in range(1000)] + ["spec.1.paid.x", "a.b.c"]))
    assert sorted(stand_ins.to_pylist()) == ["?.?.?", "spec.?.paid", "spec.?.paid.?"]
    assert len(np.unique(of_key[:1000])) == 1


def test_a_word_counts_only_where_a_pattern_compares_it() -> None:
    bindings = tuple(Binding("x", "q", pattern) for pattern in ("a.b", "*.*.c", "d.#.e"))
    router = Router(Topology((Exchange("x", "topic"),), (Queue("q"),), bindings))
    stand_ins, of_key = KeyClasses(router).find(pa.array(["b.a", "b.c.c.b", "a.b.a", "e.a.e", "c.b.d.e"]))
    assert [stand_ins[number].as_py() for number in of_key.tolist()] == ["?.?", "?.?.c.?", "a.b.?", "e.?.e", "?.b.?.e"]


def test_a_collision_of_hashes_is_detected() -> None:
    router = Router(Topology((Exchange("x", "topic"),), (Queue("q"),), (Binding("x", "q", "a.b"),)))
    classes = KeyClasses(router)
    classes._word_codes[:] = 1
    keys = pa.array(["a.b", "b.a", "c.d"])
    stand_ins, of_key = classes.find(keys)
    assert [stand_ins[number].as_py() for number in of_key.tolist()] == keys.to_pylist()


def k_topology(*patterns: str, queues: int = 1) -> Topology:
    names = [f"q{n}" for n in range(queues)]
    bindings = tuple(Binding("x", name, pattern) for pattern in patterns for name in names)
    return Topology((Exchange("x", "topic"),), tuple(map(Queue, names)), bindings)


def cache_of(topology: Topology, unroutable: Any = "keep") -> RouteCache:
    spec = RoutingSpec.of(RoutingRequest(topology, exchange="x"), Router(topology))
    return RouteCache(replace(spec, unroutable=unroutable), Router(topology))


def keys(*values: str | None) -> SignatureBatch:
    return SignatureBatch(pa.array(values, pa.string()))


def test_the_cache_is_cleared_when_it_exceeds_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.spark.route_cache.SIGNATURES_KEPT", 10)
    cache = cache_of(k_topology("k.15"), unroutable="drop")
    for start in (0, 12, 0):
        rows, at = cache.spread(cache.outcomes(keys(*(f"k.{n}" for n in range(start, start + 12)))))
        assert rows is not None
        assert rows.tolist() == ([3] if start else [])
        assert len(at) == len(rows)
    assert len(cache._known) == 12


def test_equal_sets_of_queues_are_stored_once() -> None:
    cache = cache_of(k_topology("a.#", queues=50))
    outcomes = cache.outcomes(keys("a.1", "b", "a.2", None, "a.3", "c"))
    assert outcomes.tolist() == [0, 1, 0, 2, 0, 1]
    assert [len(column) for column in cache.columns()] == [52, 52]


def test_many_distinct_keys_are_routed_like_few() -> None:
    topology = k_topology("k.*", "k.7", "#.x", queues=2)
    many = [f"k.{n}" if n % 3 else f"{n}.x" if n % 2 else f"{n}.y" for n in range(6_000)]
    cache, router = cache_of(topology), Router(topology)
    lists = [routes for array in cache.lists(cache.outcomes(keys(*many))) for routes in array.to_pylist()]
    assert [tuple(row["queue"] for row in rows) for rows in lists] == [router.route("x", key) or (None,) for key in many]
    assert len(cache._known) == 4  # the classes k.?, k.7, ?.x and ?.?


def test_many_distinct_keys_are_hashed_like_few() -> None:
    bindings = (*(Binding("x", f"q{n}", str(n)) for n in (1, 1, 2, 3)), Binding("y", "x", "#.9", {}, "exchange"))
    exchanges = (Exchange("x", "x-consistent-hash"), Exchange("y", "topic"))
    topology = Topology(exchanges, tuple(Queue(f"q{n}") for n in (1, 2, 3)), bindings)
    cache, router = cache_of(topology), Router(topology)
    for start in (0, 3_000):  # the keys of the second batch are represented by those of the first
        many = [f"k.{n}" for n in range(start, start + 6_000)]
        lists = [routes for array in cache.lists(cache.outcomes(keys(*many))) for routes in array.to_pylist()]
        assert [tuple(row["queue"] for row in rows) for rows in lists] == [router.route("x", key) for key in many]


def test_lists_of_many_queues_come_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.spark.route_cache.LISTED_ROWS", 100)
    cache = cache_of(k_topology("a.#", "b.#", queues=40))
    batch = keys("a", "b", "c", "a", "a", "b")
    assert [len(array) for array in cache.lists(cache.outcomes(batch))] == [3, 2, 1]
    monkeypatch.setattr("holtmq.spark.route_cache.LISTED_ROWS", 10)
    assert [len(array) for array in cache.lists(cache.outcomes(batch))] == [1] * 6
