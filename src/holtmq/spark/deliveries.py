"""route(): a DataFrame of messages in, a DataFrame of deliveries out, batch or streaming.

A route depends on the signature alone, so where signatures are few the distinct ones are routed and joined back: the
messages stay in the JVM. Where nearly every message has its own, and on streams, the messages themselves go through Arrow
to the same function. Which of the two is better shows in a sample, and in the number of routes that were found.
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
from holtmq.spark.messages import DEFAULT_COLUMNS, Columns, Matters, Signature, quoted
from holtmq.spark.routes import UNROUTABLE, Order, Outcomes, PackedTopology, Unroutable
from holtmq.topology import DEFAULT_VHOST, Topology

Plan: TypeAlias = Literal["auto", "join", "arrow"]
PLANS: tuple[Plan, ...] = ("auto", "join", "arrow")
JOIN_LIMIT = 300_000
"""Up to so many routes the join is the faster plan, and they are small enough to be sent to every executor."""
ROUTED_HERE = 20_000
"""So few distinct signatures are routed on the driver, which has a router already, sooner than executors would build theirs."""
SAMPLE = 20_000
ADDED_TYPES = {
    "queue": StringType(),
    "reason": StringType(),
    "binding_priority": IntegerType(),
    "binding_ttl_ms": LongType(),
    "bindings": ArrayType(StringType()),
}
HASH = "__holtmq_hash"
CHANGED = "the input gave another message when it was read again"


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
    """Every message once for each queue that it reaches: all its columns, then `queue` and `reason`.

    The routing key, exchange and headers are read from the columns that `columns` names. Headers may be a map, a struct,
    VARIANT or JSON text; they and the exchange may be missing, the latter if `exchange` says where all messages go.

    A message that reaches no queue has a null `queue`; with `unroutable="drop"` it is left out, with `"only"` such messages
    are all there is. A message that no broker would take (no routing key, unreadable headers, an exchange that does not
    exist) is never left out: its `reason` says what is wrong with it.

    `settings` adds the priority and time to live that bindings give (`binding_priority`, `binding_ttl_ms`), `bindings` adds
    the bindings by which a message entered the queue.

    Of a batch, this reads the columns of the signature at once, to route the distinct ones; the messages are read when the
    result is used. `plan="arrow"` does without the former and sends whole messages through Python, as for a stream.
    """
    _require_one_of("plan", plan, PLANS)
    router = Router(topology, vhost)
    matters = Matters.to(router)
    signature = Signature.of(messages, columns, exchange, matters)
    order = make_order(
        topology, router, matters, signature, exchange, messages.columns, unroutable, settings=settings, bindings=bindings
    )
    if plan != "arrow" and not messages.isStreaming:
        limit = JOIN_LIMIT if plan == "auto" else None
        routes = _routes(messages, signature, order, router, limit)
        if routes is not None:
            return _join(messages, routes, signature, order)
    if plan == "join" and messages.isStreaming:
        raise InvalidValueError("a stream can't be read twice, as plan 'join' would: expected plan 'arrow' or 'auto'")
    return _routed(messages.select("*", *(part.column.alias(part.name) for part in signature.parts if part.is_added)), order)


def make_order(
    topology: Topology,
    router: Router,
    matters: Matters,
    signature: Signature,
    exchange: str | None,
    carried: Collection[str],
    unroutable: Unroutable,
    *,
    settings: bool,
    bindings: bool,
) -> Order:
    """What the executors are asked to do; checked here, where the user sees it."""
    _require_one_of("unroutable", unroutable, UNROUTABLE)
    if exchange is not None:
        router.require_publishable(exchange)
    order = Order(
        topology=PackedTopology.of(topology, router.vhost),
        routing_key=signature.routing_key.name,
        exchange_column=signature.exchange.name if signature.exchange else None,
        exchange=exchange,
        headers=signature.headers.name if signature.headers else None,
        matters=matters,
        carried=tuple(carried),
        unroutable=unroutable,
        settings=settings,
        bindings=bindings,
    )
    _require_free(carried, order.added)
    return order


def _routes(messages: DataFrame, signature: Signature, order: Order, router: Router, limit: int | None) -> DataFrame | None:
    """What becomes of each distinct signature, by its hash; None where there are more than `limit`. Runs a job or two."""
    hashed = _hash(part.column for part in signature.parts)
    if limit is not None and _estimated_distinct(messages.select(hashed)) > limit:
        return None
    distinct = messages.select(*(part.column.alias(part.name) for part in signature.parts)).distinct()
    distinct = distinct.withColumn(HASH, _hash(distinct[quoted(name)] for name in distinct.columns))
    signatures = (distinct.limit(limit + 1) if limit is not None else distinct).toArrow()
    if len(signatures) == 0 or (limit is not None and len(signatures) > limit):
        return None
    if len(signatures[HASH].unique()) < len(signatures):
        return None  # two have the same one, and could not be told apart; all that are looked up later are among these
    order = replace(order, carried=(HASH,), unroutable="keep")  # which to leave out is seen when they are looked up
    if len(signatures) > ROUTED_HERE:
        routes = _routed(messages.sparkSession.createDataFrame(signatures, distinct.schema), order).toArrow()
    else:
        outcomes = Outcomes(order, router)
        routes = pa.Table.from_batches(rows for batch in signatures.to_batches() for rows in order.route(outcomes, batch))
    if limit is not None and len(routes) > limit:
        return None
    return messages.sparkSession.createDataFrame(routes, _schema(distinct, order))


def _hash(parts: Iterable[Column]) -> Column:
    """A signature as a number, by which rows are joined several times as fast as by texts that may be null."""
    return F.xxhash64(*parts)


def _estimated_distinct(hashes: DataFrame) -> float:
    """How many distinct signatures there are, to judge by the first ones: as if each were as likely as any other."""
    sample = hashes.limit(SAMPLE).toArrow().column(0)
    drawn, seen = len(sample), len(sample.unique())
    if drawn < SAMPLE:
        return seen
    low, high = float(seen), 1e12
    while high / low > 1.01:  # the more there are, the fewer of those drawn were drawn before: find the number that fits
        middle = (low * high) ** 0.5
        expected = -middle * math.expm1(-drawn / middle)
        low, high = (middle, high) if expected < seen else (low, middle)
    return low


def _join(messages: DataFrame, routes: DataFrame, signature: Signature, order: Order) -> DataFrame:
    """Send the routes to every executor, and look them up for each message."""
    same = _hash(part.column for part in signature.parts) == routes[HASH]
    joined = messages.join(F.broadcast(routes), same, "left")
    joined = joined.withColumn("reason", F.coalesce(F.col("reason"), F.when(F.col(HASH).isNull(), F.lit(CHANGED))))
    if order.unroutable == "drop":
        joined = joined.where("queue is not null or reason is not null")
    elif order.unroutable == "only":
        joined = joined.where("queue is null")
    return joined.select(*map(quoted, messages.columns), *order.added)


def _routed(messages: DataFrame, order: Order) -> DataFrame:
    """The messages through Arrow to the router, on the executors."""
    if any("." in name or "`" in name for name in messages.columns):  # which mapInArrow would take for the way to a field
        plain = {name: f"__holtmq_{number}" for number, name in enumerate(messages.columns)}
        return _routed(messages.toDF(*plain.values()), order.renamed(plain)).toDF(*order.carried, *order.added)
    return messages.mapInArrow(order.route_all, _schema(messages, order))


def _schema(messages: DataFrame, order: Order) -> StructType:
    carried = [field for field in messages.schema if field.name in order.carried]
    return StructType([*carried, *(StructField(name, ADDED_TYPES[name]) for name in order.added)])


def _require_one_of(name: str, value: str, expected: tuple[str, ...]) -> None:
    if value not in expected:
        raise InvalidValueError(f"{name} must be one of {', '.join(expected)}, got {value!r}")


def _require_free(columns: Collection[str], added: list[str]) -> None:
    """Spark takes names that differ in case only for the same."""
    taken = sorted(name for name in columns if name.lower() in added)
    if taken:
        raise InvalidValueError(f"the messages have a column {taken[0]!r}, which is to be added: rename or drop it first")
