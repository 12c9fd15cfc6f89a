"""compare(): two topologies applied to the same messages, to see what a change would do to real traffic.

The executors count the messages by signature and route each signature with both topologies. Only counts reach the driver.

A message that reaches no queue with either topology, or that both refuse, says nothing about the change. Such messages are
counted, and if there are no others the comparison fails: a wrong virtual host or exchange would otherwise look like a change
without effect. In a virtual host that does not exist, the default exchange accepts every message and delivers none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holtmq.errors import HoltmqError, InvalidValueError
from holtmq.routing import Router
from holtmq.spark.arguments import require_messages, require_place, require_topology
from holtmq.spark.deprecated_names import OldToJson
from holtmq.spark.packed_topology import PackedTopology
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns, require_columns
from holtmq.spark.signature import Signature
from holtmq.spark.signature_value import Text, read_signature, texts
from holtmq.topology import DEFAULT_VHOST, Topology

KEYS_SHOWN = 50
REASONS_SHOWN = 10
ROUTED = (
    "exchange string, routing_key string, messages long, before array<string>, after array<string>, "
    "before_reason string, after_reason string"
)


class NothingComparedError(InvalidValueError):
    """With both topologies, all messages are unroutable or refused."""


@dataclass(frozen=True, slots=True)
class QueueChange:
    """The number of messages that a queue receives before and after the change, and how many it gains and loses."""

    queue: str
    before: int
    after: int
    gained: int
    lost: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A routing key whose messages reach other queues after the change."""

    exchange: str | None
    routing_key: str | None
    messages: int
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A reason why both topologies refuse messages, and the number of these messages."""

    reason: str
    messages: int


@dataclass(frozen=True, slots=True)
class Comparison(OldToJson):
    """The result of a comparison.

    A message is affected if the set of its queues changes, or if only one of the topologies accepts it.
    """

    messages: int
    affected: int
    gaining: int
    losing: int
    newly_unroutable: int
    newly_routable: int
    newly_refused: int
    still_unroutable: int
    """Messages that reach no queue with either topology."""
    still_refused: int
    """Messages that both topologies refuse."""
    keys_affected: int
    queues: tuple[QueueChange, ...]
    """Queues that gain or lose messages, most affected first."""
    keys: tuple[KeyChange, ...]
    """The affected keys with the most messages; `keys_affected` counts all."""
    refusals: tuple[Refusal, ...]
    """The most frequent reasons of `still_refused`."""

    @property
    def share(self) -> float:
        """Affected messages as a fraction of all messages, from 0 to 1."""
        return self.affected / self.messages if self.messages else 0.0

    def exceeds(self, percent: float) -> bool:
        """Return whether more than this percentage of the messages is affected or refused by both topologies."""
        return 100 * (self.affected + self.still_refused) > percent * self.messages

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        return {**asdict(self), "share": self.share}


def compare(
    messages: DataFrame,
    before: Topology,
    after: Topology,
    *,
    vhost: str = DEFAULT_VHOST,
    exchange: str | None = None,
    columns: Columns = DEFAULT_COLUMNS,
    keys_shown: int = KEYS_SHOWN,
) -> Comparison:
    """Return what would change for these messages if `after` replaced `before`. Runs the job.

    The executors count and route the distinct signatures. The driver receives the totals, the affected queues, and the
    `keys_shown` affected keys with the most messages. Raise NothingComparedError if all messages are unroutable or refused
    with both topologies.

    Args:
        messages: The messages of a batch DataFrame.
        before: The current topology.
        after: The changed topology.
        vhost: The virtual host of both topologies.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers.
        keys_shown: The maximum number of keys in the result.
    """
    require_messages("messages", messages)
    require_topology("before", before)
    require_topology("after", after)
    require_place(vhost, exchange)
    require_columns(columns)
    inputs = RoutingInputs.of(Router(before, vhost), Router(after, vhost))
    signature = Signature.of(messages, columns, exchange, inputs)
    counted = count_signatures(messages, signature, exchange)
    comparing = _ComparingTask(PackedTopology.of(before, vhost), PackedTopology.of(after, vhost))
    routed = counted.mapInArrow(comparing.route_all, ROUTED).persist()
    try:
        comparison = _summarise(routed, keys_shown)
    finally:
        routed.unpersist()
    _require_compared(comparison, vhost)
    return comparison


def _require_compared(comparison: Comparison, vhost: str) -> None:
    """Raise NothingComparedError if no message reaches a queue, or is refused by only one of the topologies."""
    messages, refused = comparison.messages, comparison.still_refused
    if not messages or refused + comparison.still_unroutable < messages:
        return
    seen = f"both topologies refuse all {messages:,} messages"
    if refused < messages:
        seen = f"none of the {messages:,} messages reaches a queue with either topology"
    why = ""
    if comparison.refusals:
        first = comparison.refusals[0]
        why = f" The most frequent reason ({first.messages:,} messages): {first.reason}."
    raise NothingComparedError(
        f"{seen}, so nothing was compared.{why} Check the virtual host (got {vhost!r}), the exchange, and the names of the "
        "columns"
    )


def count_signatures(
    messages: DataFrame, signature: Signature, exchange: str | None, *totals: Column, by: Sequence[Column] = ()
) -> DataFrame:
    """Count the messages of each signature. Return exchange, routing_key, headers (JSON text), messages, and the totals."""
    source = signature.exchange.column if signature.exchange else F.lit(exchange)
    headers = signature.headers.column if signature.headers else F.lit(None).cast("string")
    parts = [source.alias("exchange"), signature.routing_key.column.alias("routing_key"), headers.alias("headers")]
    return messages.groupBy(*by, *parts).agg(F.count("*").alias("messages"), *totals)


class _ComparingTask:
    """Routes counted signatures with two topologies. Runs on the executors."""

    def __init__(self, before: PackedTopology, after: PackedTopology) -> None:
        self._before = before
        self._after = after

    def route_all(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        before, after = self._before.router(), self._after.router()
        for batch in batches:
            exchanges, keys, headers = (texts(batch.column(name)) for name in ("exchange", "routing_key", "headers"))
            old = [queues_of(before, *one) for one in zip(exchanges, keys, headers, strict=True)]
            new = [queues_of(after, *one) for one in zip(exchanges, keys, headers, strict=True)]
            queues = pa.list_(pa.string())
            yield pa.RecordBatch.from_arrays(
                [
                    *(batch.column(name) for name in ("exchange", "routing_key", "messages")),
                    *(pa.array([route[0] for route in routes], queues) for routes in (old, new)),
                    *(pa.array([route[1] for route in routes], pa.string()) for routes in (old, new)),
                ],
                names=["exchange", "routing_key", "messages", "before", "after", "before_reason", "after_reason"],
            )


def queues_of(router: Router, exchange: Text, key: Text, headers: Text) -> tuple[tuple[str, ...], str | None]:
    """Return the queues of a signature, or none and the reason why no broker would accept it. Runs on the executors."""
    try:
        return router.route(*read_signature(exchange, key, headers)), None
    except HoltmqError as error:
        return (), str(error)


def _summarise(routed: DataFrame, keys_shown: int) -> Comparison:
    gained, lost = F.array_except("after", "before"), F.array_except("before", "after")
    was_refused, is_refused = F.col("before_reason").isNotNull(), F.col("after_reason").isNotNull()
    undelivered_before, undelivered_after = F.size("before") == 0, F.size("after") == 0
    is_affected = (F.size(gained) > 0) | (F.size(lost) > 0) | (was_refused != is_refused)

    def count(condition: Column) -> Column:
        return F.coalesce(F.sum(F.when(condition, F.col("messages"))), F.lit(0))

    totals = routed.agg(
        F.coalesce(F.sum("messages"), F.lit(0)).alias("messages"),
        count(is_affected).alias("affected"),
        count(F.size(gained) > 0).alias("gaining"),
        count(F.size(lost) > 0).alias("losing"),
        count(undelivered_after & ~undelivered_before & ~is_refused).alias("newly_unroutable"),
        count(undelivered_before & ~undelivered_after).alias("newly_routable"),
        count(is_refused & ~was_refused).alias("newly_refused"),
        count(undelivered_before & undelivered_after & ~was_refused & ~is_refused).alias("still_unroutable"),
        count(was_refused & is_refused).alias("still_refused"),
        F.count_distinct(F.when(is_affected, F.struct("exchange", "routing_key"))).alias("keys_affected"),
    ).collect()[0]
    affected = routed.where(is_affected)
    by_key = affected.groupBy("exchange", "routing_key", "before", "after").agg(F.sum("messages").alias("messages"))
    keys = by_key.orderBy(F.desc("messages"), "exchange", "routing_key").limit(keys_shown).collect()
    refused = routed.where(was_refused & is_refused).groupBy("after_reason").agg(F.sum("messages").alias("messages"))
    reasons = refused.orderBy(F.desc("messages"), "after_reason").limit(REASONS_SHOWN).collect()
    return Comparison(
        **totals.asDict(),
        queues=_queue_changes(routed),
        keys=tuple(
            KeyChange(row["exchange"], row["routing_key"], row["messages"], tuple(row["before"]), tuple(row["after"]))
            for row in keys
        ),
        refusals=tuple(Refusal(row["after_reason"], row["messages"]) for row in reasons),
    )


def _queue_changes(routed: DataFrame) -> tuple[QueueChange, ...]:
    was, will = F.array_contains("before", F.col("queue")), F.array_contains("after", F.col("queue"))

    def count(condition: Column) -> Column:
        return F.sum(F.when(condition, F.col("messages")).otherwise(0))

    per_queue = (
        routed.withColumn("queue", F.explode(F.array_union("before", "after")))
        .groupBy("queue")
        .agg(
            count(was).alias("was"),
            count(will).alias("will"),
            count(will & ~was).alias("gained"),
            count(was & ~will).alias("lost"),
        )
        .where("gained > 0 or lost > 0")
    )
    found = [QueueChange(row["queue"], row["was"], row["will"], row["gained"], row["lost"]) for row in per_queue.collect()]
    return tuple(sorted(found, key=lambda change: (-(change.gained + change.lost), change.queue)))
