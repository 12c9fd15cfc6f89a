"""route(): a DataFrame of messages in, a DataFrame of deliveries out, batch or streaming.

A route depends on the signature only. If there are few signatures, the distinct ones are routed and joined to the messages
(`join_plan`). If nearly every message has its own, and if the input is expensive to read or can be read only once, the
signatures go through Arrow (`arrow_plan`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from holtmq.errors import InvalidValueError
from holtmq.spark.added_columns import AddedColumns
from holtmq.spark.arguments import require_one_of, require_topology_of_stream
from holtmq.spark.arrow_plan import with_routes_by_arrow
from holtmq.spark.input_plan import InputPlan
from holtmq.spark.join_plan import ROUTES, deliveries_by_join
from holtmq.spark.prepared_request import PreparedRequest
from holtmq.spark.routing_request import DEFAULT_COLUMNS, Columns, RoutingRequest, Unroutable
from holtmq.topology import DEFAULT_VHOST, Topology

Plan: TypeAlias = Literal["auto", "join", "arrow"]
PLANS: tuple[Plan, ...] = ("auto", "join", "arrow")


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

    With `plan="arrow"`, nothing runs until the result is used. The executors then read the messages once and send their
    signatures through Python. With `plan="join"`, `route` reads the columns of the signature immediately, and the driver routes
    the distinct signatures. The executors read the messages and join them with the routes when the result is used. "auto" joins
    only if the input is cheap to read again (Parquet or ORC files, cached data) and a sample shows few distinct signatures.

    Args:
        messages: The messages, batch or streaming.
        topology: The exchanges, queues and bindings. For a stream whose topology changes, see `route_batches`.
        vhost: The virtual host of the topology.
        exchange: The exchange of all messages (default: the exchange column).
        columns: The names of the columns for routing key, exchange and headers. Headers may be a map, a struct, VARIANT or
            JSON text. Only a headers column with the default name may be missing.
        unroutable: What to do with messages that reach no queue: "keep" them with a null `queue`, "drop" them, or return
            "only" them.
        settings: Whether to add `binding_priority` and `binding_ttl_ms`, the priority and time to live that bindings set.
        bindings: Whether to add `bindings`, the bindings through which the message entered the queue.
        plan: "join" reads the input twice, "arrow" once, "auto" chooses.
    """
    if isinstance(messages, DataFrame) and messages.isStreaming:
        require_topology_of_stream(topology)
    request = RoutingRequest(topology, vhost, exchange, columns, unroutable, AddedColumns(settings, bindings))
    return route_prepared(PreparedRequest.of(messages, request), plan)


def route_prepared(prepared: PreparedRequest, plan: Plan = "auto") -> DataFrame:
    """Return the deliveries that a request asks for. Runs on the driver, as `route` does."""
    require_one_of("plan", plan, PLANS)
    deliveries = _joined(prepared, plan) if plan != "arrow" else None
    if deliveries is None:
        routed = with_routes_by_arrow(prepared.messages, prepared.signature.parts, prepared.spec, ROUTES)
        deliveries = routed.select("*", F.inline_outer(ROUTES)).drop(ROUTES)
    return _selected(deliveries, prepared.request.unroutable)


def _joined(prepared: PreparedRequest, plan: Plan) -> DataFrame | None:
    """Return the deliveries by a join, or None if the other plan is better."""
    spec = prepared.spec
    source = InputPlan(prepared.messages)
    if plan == "auto" and not source.is_cheap():
        return None
    once = source.source_read_once()
    if once is not None:
        raise InvalidValueError(f"plan 'join' reads the input twice, which {once} does not support: use plan 'arrow' or 'auto'")
    parts = prepared.signature.without_ignored_keys(spec.exchange, spec.inputs).parts
    is_auto = plan == "auto"
    is_sampled = is_auto and not source.is_filtered()
    return deliveries_by_join(prepared.messages, parts, spec, prepared.router, is_limited=is_auto, is_sampled=is_sampled)


def _selected(deliveries: DataFrame, unroutable: Unroutable) -> DataFrame:
    match unroutable:
        case "keep":
            return deliveries
        case "drop":
            return deliveries.where("queue is not null or reason is not null")
        case "only":
            return deliveries.where("queue is null")
