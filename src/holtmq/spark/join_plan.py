"""The plan for few signatures: the distinct ones are routed on the driver, and the messages are joined with their routes.

The messages never leave the JVM. Each signature is one row with the number of its outcome, and each outcome is one row with an
array of queues: equal sets of queues are broadcast once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from holtmq.routing import Router
from holtmq.spark.route_cache import ROWS_KEPT, RouteCache
from holtmq.spark.routing_spec import RoutingSpec
from holtmq.spark.signature_batch import SignatureBatch

SIGNATURE_LIMIT = 300_000
"""Number of signatures up to which the join is the faster plan and they are small enough to broadcast."""
SAMPLE = 20_000
HASH, OUTCOME, NUMBER = "__holtmq_hash", "__holtmq_outcome", "__holtmq_number"


class JoinedMessages(NamedTuple):
    """Messages with their routes."""

    messages: DataFrame
    is_repeated: bool
    """Whether any message has several routes."""


def with_routes_by_join(
    messages: DataFrame,
    parts: dict[str, Column],
    spec: RoutingSpec,
    router: Router,
    name: str,
    *,
    is_limited: bool,
    is_sampled: bool,
) -> JoinedMessages | None:
    """Add the routes of each message, as an array of structs in a column of this name. Runs jobs.

    Messages whose signature was not there when the signatures were read have null. Return None if the join cannot distinguish
    two signatures or, if `is_limited`, if there are too many. `is_sampled` says whether to look at the first messages before
    all of them: that costs little, unless a filter leaves few messages.
    """
    hashed = hash_of(parts.values())
    signatures = _signatures(messages, parts, is_limited=is_limited, is_sampled=is_sampled)
    if signatures is None:
        return None
    hashes = signatures[HASH].combine_chunks()
    if len(hashes.unique()) < len(hashes) or (is_limited and len(hashes) > SIGNATURE_LIMIT):
        return None
    cache = RouteCache(spec, router)
    batch = SignatureBatch(**{part: signatures[part].combine_chunks() for part in parts})
    outcomes = cache.outcomes(batch)
    lists = cache.list_all()
    if is_limited and len(lists.values) > ROWS_KEPT:
        return None
    spark = messages.sparkSession
    by_hash = pa.table({HASH: hashes, OUTCOME: pa.array(outcomes, pa.int32())})
    by_number = pa.table({NUMBER: pa.array(np.arange(len(lists)), pa.int32()), name: lists})
    numbers = spark.createDataFrame(by_hash, f"{HASH} long, {OUTCOME} int")
    routes = spark.createDataFrame(
        by_number, StructType([StructField(NUMBER, IntegerType()), StructField(name, spec.added.list_type)])
    )
    numbered = messages.join(F.broadcast(numbers), hashed == numbers[HASH], "left")
    joined = numbered.join(F.broadcast(routes), numbered[OUTCOME] == routes[NUMBER], "left").drop(HASH, OUTCOME, NUMBER)
    return JoinedMessages(joined, is_repeated=cache.longest > 1)


def _signatures(messages: DataFrame, parts: dict[str, Column], *, is_limited: bool, is_sampled: bool) -> pa.Table | None:
    """Return the distinct signatures with their hashes, or None if there are too many. Reads the messages once.

    A sample is read partition by partition until it is large enough. If it never is, it contains all messages.
    """
    named = messages.select(*(column.alias(part) for part, column in parts.items()))
    if is_sampled:
        # as bytes, because rows represent no text that is not UTF-8
        texts = [named[part].cast("binary").alias(part) for part in parts]
        sample = named.select(*texts, hash_of(named[part] for part in parts).alias(HASH)).limit(SAMPLE).collect()
        if len(sample) < SAMPLE:
            distinct_rows = {tuple(raw if raw is None else bytes(raw) for raw in row[:-1]): row[HASH] for row in sample}
            columns = [pa.array([row[n] for row in distinct_rows], pa.binary()).view(pa.string()) for n in range(len(parts))]
            return pa.table([*columns, pa.array(distinct_rows.values(), pa.int64())], [*parts, HASH])
        if estimated_distinct([row[HASH] for row in sample]) > SIGNATURE_LIMIT:
            return None
    distinct = named.distinct()
    distinct = distinct.select("*", hash_of(distinct[part] for part in parts).alias(HASH))
    return (distinct.limit(SIGNATURE_LIMIT + 1) if is_limited else distinct).toArrow()


def hash_of(parts: Iterable[Column]) -> Column:
    """Return a hash of the signature. Joining by a number is several times as fast as by strings that may be null."""
    return F.xxhash64(*parts)


def estimated_distinct(hashes: Sequence[int]) -> float:
    """Estimate the number of distinct signatures from those of the first messages, as if all were equally likely."""
    drawn, seen = len(hashes), len(set(hashes))
    low, high = float(seen), 1e12
    while high / low > 1.01:  # find the number for which the expected number of distinct draws is what was seen
        middle = (low * high) ** 0.5
        expected = -middle * math.expm1(-drawn / middle)
        low, high = (middle, high) if expected < seen else (low, middle)
    return low
