"""The plan for few signatures: the distinct ones are routed on the driver, and the messages are joined with their routes.

The messages never leave the JVM. If each of them has one route at most, a signature is one row with that route. If not, it is
one row with the number of its outcome, and each outcome is one row with an array of routes: equal sets of queues are broadcast
once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from holtmq.routing import Router
from holtmq.spark.added_columns import AddedColumns
from holtmq.spark.key_classes import Integers
from holtmq.spark.route_cache import ROWS_KEPT, RouteCache
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch

SIGNATURE_LIMIT = 300_000
"""Number of signatures up to which the join is the faster plan and they are small enough to broadcast."""
SAMPLE = 20_000
HASH, OUTCOME, NUMBER, ROUTES = "__holtmq_hash", "__holtmq_outcome", "__holtmq_number", "__holtmq_routes"
CHANGED = "the input returned different messages when it was read again"


def deliveries_by_join(
    messages: DataFrame,
    parts: dict[str, Column],
    spec: RoutingSpec,
    router: Router,
    *,
    is_limited: bool,
    is_sampled: bool,
) -> DataFrame | None:
    """Return each message once for each of its routes, with the columns that routing adds. Runs jobs.

    Messages whose signature was not there when the signatures were read have a reason that says so. Return None if the join
    cannot distinguish two signatures or, if `is_limited`, if there are too many. `is_sampled` says whether to look at the first
    messages before all of them: that costs little, unless a filter leaves few messages.
    """
    hashed = hash_of(parts.values())
    signatures = _signatures(messages, parts, is_limited=is_limited, is_sampled=is_sampled)
    if signatures is None:
        return None
    hashes = signatures[HASH].combine_chunks()
    if len(hashes.unique()) < len(hashes) or (is_limited and len(hashes) > SIGNATURE_LIMIT):
        return None
    cache = RouteCache(spec, router)
    outcomes = cache.outcomes(SignatureBatch(**{part: signatures[part].combine_chunks() for part in parts}))
    if is_limited and cache.size > ROWS_KEPT:
        return None
    join = _with_routes if cache.longest > 1 else _with_route
    return join(messages, hashed, hashes, outcomes, cache, spec.added)


def _with_route(
    messages: DataFrame, hashed: Column, hashes: pa.Array, outcomes: Integers, cache: RouteCache, added: AddedColumns
) -> DataFrame:
    """Join messages that have one route at most with its columns. That costs hardly more than to copy them."""
    columns = dict(zip(added.names, cache.single_rows(outcomes), strict=True))
    fields = [StructField(HASH, LongType()), *(StructField(name, type_) for name, type_ in added.types.items())]
    routes = messages.sparkSession.createDataFrame(pa.table({HASH: hashes, **columns}), StructType(fields))
    joined = messages.join(F.broadcast(routes), hashed == routes[HASH], "left")
    reason = F.when(F.col(HASH).isNull(), F.lit(CHANGED)).otherwise(F.col("reason"))
    return joined.withColumn("reason", reason).drop(HASH)


def _with_routes(
    messages: DataFrame, hashed: Column, hashes: pa.Array, outcomes: Integers, cache: RouteCache, added: AddedColumns
) -> DataFrame:
    """Join messages with the number of their outcome, and that with an array of routes, of which Spark makes rows."""
    spark, lists = messages.sparkSession, cache.list_all()
    by_hash = pa.table({HASH: hashes, OUTCOME: pa.array(outcomes, pa.int32())})
    by_number = pa.table({NUMBER: pa.array(np.arange(len(lists)), pa.int32()), ROUTES: lists})
    numbers = spark.createDataFrame(by_hash, f"{HASH} long, {OUTCOME} int")
    routes = spark.createDataFrame(
        by_number, StructType([StructField(NUMBER, IntegerType()), StructField(ROUTES, added.list_type)])
    )
    numbered = messages.join(F.broadcast(numbers), hashed == numbers[HASH], "left")
    joined = numbered.join(F.broadcast(routes), numbered[OUTCOME] == routes[NUMBER], "left").drop(HASH, OUTCOME, NUMBER)
    none = {name: F.lit(None).cast(type_) for name, type_ in added.types.items()} | {"reason": F.lit(CHANGED)}
    changed = F.array(F.struct(*(column.alias(name) for name, column in none.items())))
    return joined.withColumn(ROUTES, F.coalesce(ROUTES, changed)).select("*", F.inline_outer(ROUTES)).drop(ROUTES)


def _signatures(messages: DataFrame, parts: dict[str, Column], *, is_limited: bool, is_sampled: bool) -> pa.Table | None:
    """Return the distinct signatures with their hashes, or None if there are too many. Reads the messages once.

    A sample is read partition by partition until it is large enough. If it never is, it contains all messages.
    """
    named = messages.select(*(column.alias(part) for part, column in parts.items()))
    if is_sampled:
        # as bytes, because Arrow's text must be UTF-8
        texts = [named[part].cast("binary").alias(part) for part in parts]
        sample = named.select(*texts, hash_of(named[part] for part in parts).alias(HASH)).limit(SAMPLE).toArrow()
        if len(sample) < SAMPLE:
            distinct = sample.group_by(sample.column_names).aggregate([]).combine_chunks()
            columns = [_as_text(distinct[part].combine_chunks()) for part in parts]
            return pa.table([*columns, distinct[HASH]], [*parts, HASH])
        if estimated_distinct(len(sample), len(sample[HASH].unique())) > SIGNATURE_LIMIT:
            return None
    found = named.distinct()
    found = found.select("*", hash_of(found[part] for part in parts).alias(HASH))
    return (found.limit(SIGNATURE_LIMIT + 1) if is_limited else found).toArrow()


def _as_text(column: pa.Array) -> pa.Array:
    """Return bytes as text without a look at them. A setting of Spark (`useLargeVarTypes`) decides how long both may be."""
    return column.view(pa.large_string() if pa.types.is_large_binary(column.type) else pa.string())


def hash_of(parts: Iterable[Column]) -> Column:
    """Return a hash of the signature. Joining by a number is several times as fast as by strings that may be null."""
    return F.xxhash64(*parts)


def estimated_distinct(drawn: int, seen: int) -> float:
    """Estimate the number of distinct signatures from those seen among the first messages, as if all were equally likely."""
    low, high = float(seen), 1e12
    while high / low > 1.01:  # find the number for which the expected number of distinct draws is what was seen
        middle = (low * high) ** 0.5
        expected = -middle * math.expm1(-drawn / middle)
        low, high = (middle, high) if expected < seen else (low, middle)
    return low
