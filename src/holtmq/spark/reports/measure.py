"""report(): three passes over the columns of the signature. Only counts reach the driver."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from holtmq.errors import HoltmqError
from holtmq.routing import Router
from holtmq.spark.arguments import require_messages, require_place, require_topology
from holtmq.spark.comparison import count_signatures
from holtmq.spark.deliveries import route
from holtmq.spark.message_columns import MessageColumns, quote_name
from holtmq.spark.packed_topology import PackedTopology
from holtmq.spark.reports.outcome import KeyVolume, Overlap, Report, Series, Volume
from holtmq.spark.route_outcome import matched_bindings
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns, require_columns
from holtmq.spark.signature import Signature
from holtmq.spark.signature_value import Text, read_signature, texts
from holtmq.spark.times import message_time
from holtmq.topology import DEFAULT_VHOST, Topology

SHOWN = 25
SERIES_SHOWN = 7
MOST_SPANS = 160
SPANS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
ROUTED = (
    "exchange string, routing_key string, messages long, bytes long, queues array<string>, reason string, "
    "bindings array<int>, overlaps array<struct<first: int, second: int>>"
)
ROUTED_ARROW = pa.schema(
    [
        ("exchange", pa.string()),
        ("routing_key", pa.string()),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("queues", pa.list_(pa.string())),
        ("reason", pa.string()),
        ("bindings", pa.list_(pa.int32())),
        ("overlaps", pa.list_(pa.struct([("first", pa.int32()), ("second", pa.int32())]))),
    ]
)

TRACE_ARROW = pa.struct([field for field in ROUTED_ARROW if field.name in ("queues", "reason", "bindings", "overlaps")])


def report(
    messages: DataFrame,
    topology: Topology,
    *,
    title: str = "Traffic",
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    body: str = "body",
    shown: int = SHOWN,
) -> Report:
    """Measure the traffic of these messages under this topology. Runs the jobs.

    The executors count and route the distinct signatures. The driver receives counts only. Rendering the result as HTML needs
    jinja2.

    Args:
        messages: The messages of a batch DataFrame.
        topology: The exchanges, queues and bindings.
        title: The title of the report.
        vhost: The virtual host of the topology.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers.
        body: The column that contains the body, for the number of bytes. It may be missing.
        shown: The maximum length of the lists of keys, prefixes, reasons and overlaps.
    """
    require_messages("messages", messages)
    require_topology("topology", topology)
    require_place(vhost, exchange)
    require_columns(columns)
    router = Router(topology, vhost)
    signature = Signature.of(messages, columns, exchange, RoutingInputs.of(router))
    found = MessageColumns.of(messages).find(body)
    size = F.octet_length(messages[quote_name(found.name)]) if found is not None else F.lit(0)
    total_bytes = F.coalesce(F.sum(size), F.lit(0)).cast("long")
    time = message_time(messages)
    counted = count_signatures(messages, signature, exchange, total_bytes.alias("bytes"))
    routed = counted.mapInArrow(_TracingTask(PackedTopology.of(topology, vhost)).route_all, ROUTED).persist()
    try:
        totals = _totals(routed)
        first, last = _span(messages, time)
        queues = _volumes(routed.withColumn("queue", F.explode("queues")), F.col("queue"))
        hits = {row["binding"]: row for row in _per_binding(routed).collect()}
        bindings = list(router.registry.bindings())
        series = None
        if time is not None and first is not None and last is not None:
            span_s = _fitting_span_s(first, last)
            start = (F.floor(F.unix_seconds(time) / span_s) * span_s).alias("start")
            timed = count_signatures(messages, signature, exchange, by=[start])
            series = _series(timed, topology, vhost, span_s, [volume.name for volume in queues[:SERIES_SHOWN]])
        return Report(
            title=title,
            vhost=vhost,
            created_at=datetime.now(UTC),
            first=first,
            last=last,
            series=series,
            exchanges=_volumes(routed, F.coalesce("exchange", F.lit("(none)"))),
            prefixes=_volumes(routed.where("routing_key is not null"), F.substring_index("routing_key", ".", 1), shown),
            queues=queues,
            keys=_keys(routed, shown),
            unroutable_keys=_keys(routed.where("reason is null and size(queues) = 0"), shown),
            reasons=_volumes(routed.where("reason is not null"), F.col("reason"), shown),
            bindings=tuple(
                Volume(str(bindings[number]), hit["messages"], hit["bytes"])
                for number, hit in sorted(hits.items(), key=lambda pair: (-pair[1]["messages"], pair[0]))
            ),
            idle_bindings=tuple(str(binding) for number, binding in enumerate(bindings) if number not in hits),
            overlaps=_overlaps(routed, [str(binding) for binding in bindings], shown),
            idle_queues=tuple(sorted(router.registry.queues.keys() - {volume.name for volume in queues})),
            **totals,
        )
    finally:
        routed.unpersist()


class _TracingTask:
    """Routes counted signatures and records the bindings that they match. Runs on the executors."""

    def __init__(self, topology: PackedTopology) -> None:
        self._topology = topology

    def route_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        router = self._topology.router()
        numbers = {binding: number for number, binding in enumerate(router.registry.bindings())}
        for batch in batches:
            signatures = zip(*(texts(batch.column(name)) for name in ("exchange", "routing_key", "headers")), strict=True)
            traces = pa.array([_trace(router, numbers, *signature) for signature in signatures], TRACE_ARROW)
            yield pa.RecordBatch.from_arrays(
                [*(batch.column(name) for name in ("exchange", "routing_key", "messages", "bytes")), *traces.flatten()],
                schema=ROUTED_ARROW,
            )


def _trace(router: Router, numbers: dict[Any, int], *signature: Text) -> dict[str, Any]:
    try:
        exchange, key, headers = read_signature(*signature)
        queues = router.route(exchange, key, headers)
        passed = matched_bindings(router, exchange, key, headers)
    except HoltmqError as error:
        return {"queues": [], "reason": str(error), "bindings": [], "overlaps": []}
    matched = [binding for binding in passed if binding in numbers]
    by_ends = defaultdict(list)
    for binding in matched:
        by_ends[binding.source, binding.destination_type, binding.destination].append(numbers[binding])
    pairs = [pair for rivals in by_ends.values() for pair in combinations(sorted(rivals), 2)]
    return {
        "queues": queues,
        "reason": None,
        "bindings": [numbers[binding] for binding in matched],
        "overlaps": [{"first": first, "second": second} for first, second in pairs],
    }


def _totals(routed: DataFrame) -> dict[str, int]:
    def total(column: Column) -> Column:
        return F.coalesce(F.sum(column), F.lit(0))

    is_malformed = F.col("reason").isNotNull()
    row = routed.agg(
        total(F.col("messages")).alias("messages"),
        total(F.col("bytes")).alias("bytes"),
        total(F.col("messages") * F.size("queues")).alias("deliveries"),
        total(F.when(~is_malformed & (F.size("queues") == 0), F.col("messages"))).alias("unroutable"),
        total(F.when(is_malformed, F.col("messages"))).alias("malformed"),
        F.count_distinct("routing_key").alias("distinct_keys"),
    ).collect()[0]
    return row.asDict()


def _span(messages: DataFrame, time: Column | None) -> tuple[datetime | None, datetime | None]:
    if time is None:
        return None, None
    row = messages.agg(F.min(time).cast("double").alias("first"), F.max(time).cast("double").alias("last")).collect()[0]
    if row["first"] is None:
        return None, None
    return datetime.fromtimestamp(row["first"], UTC), datetime.fromtimestamp(row["last"], UTC)


def _volumes(routed: DataFrame, name: Column, limit: int | None = None) -> tuple[Volume, ...]:
    grouped = routed.groupBy(name.alias("name")).agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))
    ordered = grouped.orderBy(F.desc("messages"), "name")
    rows = (ordered.limit(limit) if limit is not None else ordered).collect()
    return tuple(Volume(row["name"], row["messages"], row["bytes"]) for row in rows)


def _keys(routed: DataFrame, limit: int) -> tuple[KeyVolume, ...]:
    grouped = routed.groupBy("exchange", "routing_key").agg(
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set("queues")))).alias("queues"),
    )
    rows = grouped.orderBy(F.desc("messages"), "exchange", "routing_key").limit(limit).collect()
    return tuple(
        KeyVolume(row["exchange"], row["routing_key"], row["messages"], row["bytes"], tuple(row["queues"])) for row in rows
    )


def _per_binding(routed: DataFrame) -> DataFrame:
    exploded = routed.select(F.explode("bindings").alias("binding"), "messages", "bytes")
    return exploded.groupBy("binding").agg(F.sum("messages").alias("messages"), F.sum("bytes").alias("bytes"))


def _overlaps(routed: DataFrame, names: list[str], limit: int) -> tuple[Overlap, ...]:
    pairs = routed.select(F.inline("overlaps"), "messages").groupBy("first", "second").agg(F.sum("messages").alias("messages"))
    rows = pairs.orderBy(F.desc("messages"), "first", "second").limit(limit).collect()
    return tuple(Overlap(names[row["first"]], names[row["second"]], row["messages"]) for row in rows)


def _series(timed: DataFrame, topology: Topology, vhost: str, span_s: int, queues: list[str]) -> Series:
    """Return the volumes over time, in total and for these queues."""
    timed = timed.persist()
    try:
        totals = timed.groupBy("start").agg(F.sum("messages").alias("messages")).collect()
        deliveries = route(timed, topology, vhost=vhost, unroutable="drop", plan="arrow")
        wanted = deliveries.where(F.col("queue").isin(queues)).groupBy("start", "queue")
        return _series_of(span_s, totals, wanted.agg(F.sum("messages").alias("messages")).collect(), queues)
    finally:
        timed.unpersist()


def _fitting_span_s(first: datetime, last: datetime) -> int:
    """Return the shortest span for which a chart is readable."""
    length_s = (last - first).total_seconds()
    return next((span for span in SPANS_S if length_s / span < MOST_SPANS), SPANS_S[-1])


def _series_of(span_s: int, totals: list[Row], by_queue: list[Row], queues: list[str]) -> Series:
    messages = {int(row["start"]): row["messages"] for row in totals if row["start"] is not None}
    starts = tuple(range(min(messages), max(messages) + span_s, span_s))
    found = {(row["queue"], row["start"]): row["messages"] for row in by_queue}
    per_queue = {queue: tuple(found.get((queue, start), 0) for start in starts) for queue in queues}
    return Series(span_s, starts, tuple(messages.get(start, 0) for start in starts), per_queue)
