"""route(): a DataFrame of messages in, a DataFrame of deliveries out, batch or streaming.

A route depends on the signature only. If there are few signatures, the distinct ones are routed and joined to the messages,
which stay in the JVM. If nearly every message has its own signature, and on streams, the messages themselves go through Arrow
to the same function. A sample, and the number of routes found, decide between the two plans.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from holtmq.errors import InvalidValueError
from holtmq.routing import Router
from holtmq.spark.executor import UNROUTABLE, PackedTopology, RouteCache, RoutingSpec, Unroutable
from holtmq.spark.signature import DEFAULT_COLUMNS, Columns, RoutingInputs, Signature, quote_name
from holtmq.topology import DEFAULT_VHOST, Topology

Plan: TypeAlias = Literal["auto", "join", "arrow"]
PLANS: tuple[Plan, ...] = ("auto", "join", "arrow")
JOIN_LIMIT = 300_000
"""Number of routes up to which the join is the faster plan and the routes are small enough to broadcast."""
ROUTED_ON_DRIVER = 20_000
"""Number of distinct signatures up to which the driver, which has a router already, is faster than the executors."""
SAMPLE = 20_000
ADDED_TYPES = {
    "queue": StringType(),
    "reason": StringType(),
    "binding_priority": IntegerType(),
    "binding_ttl_ms": LongType(),
    "bindings": ArrayType(StringType()),
}
HASH = "__holtmq_hash"
CHANGED = "the input returned different messages when it was read again"


def route(
    messages: DataFrame,
    topology: Topology,
    *,
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    unroutable: Unroutable = "keep",
    settings: bool = False,
    bindings: bool = False,
    plan: Plan = "auto",
) -> DataFrame:
    """Return each message once for each queue that it reaches: all its columns, then `queue` and `reason`.

    A message that no broker would accept (no routing key, invalid headers, an exchange that does not exist) is always part of
    the result. Its `queue` is null, and its `reason` says what is wrong.

    For a batch, `route` reads the columns of the signature immediately. The driver routes the distinct signatures, or the
    executors do if there are many. The messages are read when the result is used: the executors join them with the routes. For
    a stream, and with `plan="arrow"`, nothing runs until the result is used, and the executors send whole messages through
    Python.

    Args:
        messages: The messages, batch or streaming.
        topology: The exchanges, queues and bindings.
        vhost: The virtual host of the topology.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers. Headers may be a map, a struct, VARIANT or
            JSON text. The headers column may be missing.
        unroutable: What to do with messages that reach no queue: "keep" them with a null `queue`, "drop" them, or return
            "only" them.
        settings: Whether to add `binding_priority` and `binding_ttl_ms`, the priority and time to live that bindings set.
        bindings: Whether to add `bindings`, the bindings through which the message entered the queue.
        plan: "join" routes distinct signatures, "arrow" routes whole messages, "auto" chooses.
    """
    require_one_of("plan", plan, PLANS)
    router = Router(topology, vhost)
    inputs = RoutingInputs.of(router)
    signature = Signature.of(messages, columns, exchange, inputs)
    spec = make_spec(
        topology, router, inputs, signature, exchange, messages.columns, unroutable, settings=settings, bindings=bindings
    )
    if plan != "arrow" and not messages.isStreaming:
        limit = JOIN_LIMIT if plan == "auto" else None
        routes = _routes(messages, signature, spec, router, limit)
        if routes is not None:
            return _join(messages, routes, signature, spec)
    if plan == "join" and messages.isStreaming:
        raise InvalidValueError(
            "plan 'join' reads the input twice, which a stream does not support: use plan 'arrow' or 'auto'"
        )
    return _routed(messages.select("*", *(part.column.alias(part.name) for part in signature.parts if part.is_added)), spec)


def make_spec(
    topology: Topology,
    router: Router,
    inputs: RoutingInputs,
    signature: Signature,
    exchange: str | None,
    carried: Collection[str],
    unroutable: Unroutable,
    *,
    settings: bool,
    bindings: bool,
) -> RoutingSpec:
    """Return what the executors have to do. Runs on the driver, and checks the arguments there."""
    require_one_of("unroutable", unroutable, UNROUTABLE)
    if exchange is not None:
        router.require_publishable(exchange)
    spec = RoutingSpec(
        topology=PackedTopology.of(topology, router.vhost),
        routing_key=signature.routing_key.name,
        exchange_column=signature.exchange.name if signature.exchange else None,
        exchange=exchange,
        headers=signature.headers.name if signature.headers else None,
        inputs=inputs,
        carried=tuple(carried),
        unroutable=unroutable,
        settings=settings,
        bindings=bindings,
    )
    _require_free(carried, spec.added)
    return spec


def _routes(
    messages: DataFrame, signature: Signature, spec: RoutingSpec, router: Router, limit: int | None
) -> DataFrame | None:
    """Return the routes of all distinct signatures with their hashes, or None if there are more than `limit`. Runs jobs."""
    hashed = _hash(part.column for part in signature.parts)
    if limit is not None and _estimated_distinct(messages.select(hashed)) > limit:
        return None
    distinct = messages.select(*(part.column.alias(part.name) for part in signature.parts)).distinct()
    distinct = distinct.withColumn(HASH, _hash(distinct[quote_name(name)] for name in distinct.columns))
    signatures = (distinct.limit(limit + 1) if limit is not None else distinct).toArrow()
    if len(signatures) == 0 or (limit is not None and len(signatures) > limit):
        return None
    if len(signatures[HASH].unique()) < len(signatures):
        return None  # two signatures have the same hash, and the join could not distinguish them
    spec = replace(spec, carried=(HASH,), unroutable="keep")  # the join drops rows, if requested
    if len(signatures) > ROUTED_ON_DRIVER:
        routes = _routed(messages.sparkSession.createDataFrame(signatures, distinct.schema), spec).toArrow()
    else:
        cache = RouteCache(spec, router)
        routes = pa.Table.from_batches(rows for batch in signatures.to_batches() for rows in spec.route(cache, batch))
    if limit is not None and len(routes) > limit:
        return None
    return messages.sparkSession.createDataFrame(routes, _schema(distinct, spec))


def _hash(parts: Iterable[Column]) -> Column:
    """Return a hash of the signature. Joining by a number is several times as fast as by strings that may be null."""
    return F.xxhash64(*parts)


def _estimated_distinct(hashes: DataFrame) -> float:
    """Estimate the number of distinct signatures from the first ones, as if all were equally likely."""
    sample = hashes.limit(SAMPLE).toArrow().column(0)
    drawn, seen = len(sample), len(sample.unique())
    if drawn < SAMPLE:
        return seen
    low, high = float(seen), 1e12
    while high / low > 1.01:  # find the number for which the expected number of distinct draws is what was seen
        middle = (low * high) ** 0.5
        expected = -middle * math.expm1(-drawn / middle)
        low, high = (middle, high) if expected < seen else (low, middle)
    return low


def _join(messages: DataFrame, routes: DataFrame, signature: Signature, spec: RoutingSpec) -> DataFrame:
    """Broadcast the routes and join them with the messages, on the executors."""
    same = _hash(part.column for part in signature.parts) == routes[HASH]
    joined = messages.join(F.broadcast(routes), same, "left")
    joined = joined.withColumn("reason", F.coalesce(F.col("reason"), F.when(F.col(HASH).isNull(), F.lit(CHANGED))))
    if spec.unroutable == "drop":
        joined = joined.where("queue is not null or reason is not null")
    elif spec.unroutable == "only":
        joined = joined.where("queue is null")
    return joined.select(*map(quote_name, messages.columns), *spec.added)


def _routed(messages: DataFrame, spec: RoutingSpec) -> DataFrame:
    """Send the messages through Arrow to the router, on the executors."""
    if any("." in name or "`" in name for name in messages.columns):  # mapInArrow reads a dot as access to a field
        plain = {name: f"__holtmq_{number}" for number, name in enumerate(messages.columns)}
        return _routed(messages.toDF(*plain.values()), spec.renamed(plain)).toDF(*spec.carried, *spec.added)
    return messages.mapInArrow(spec.route_all, _schema(messages, spec))


def _schema(messages: DataFrame, spec: RoutingSpec) -> StructType:
    carried = [field for field in messages.schema if field.name in spec.carried]
    return StructType([*carried, *(StructField(name, ADDED_TYPES[name]) for name in spec.added)])


def require_one_of(name: str, value: str, expected: tuple[str, ...]) -> None:
    """Raise InvalidValueError if the value of a parameter is not one of those expected."""
    if value not in expected:
        raise InvalidValueError(f"{name} must be one of {', '.join(expected)}, got {value!r}")


def _require_free(columns: Collection[str], added: list[str]) -> None:
    """Raise InvalidValueError if a column that will be added exists. Spark's column names are case-insensitive."""
    taken = sorted(name for name in columns if name.lower() in added)
    if taken:
        raise InvalidValueError(f"the messages already have a column {taken[0]!r}, which routing adds: rename or drop it first")
