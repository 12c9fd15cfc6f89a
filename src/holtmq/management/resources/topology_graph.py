"""A vhost as a graph: exchanges, queues and the edges between them, with rates."""

from __future__ import annotations

from typing import Any

from holtmq.broker.vhost import VirtualHost
from holtmq.management.operations import Call, api
from holtmq.management.slices import finish
from holtmq.management.statistics import Statistics
from holtmq.steps import Steps, one_by_one
from holtmq.topology import DEFAULT_EXCHANGE
from holtmq.topology.registry import PREDECLARED

KEYS_SHOWN = 5


@api.get("/api/topology/{vhost}")
async def topology(call: Call) -> dict[str, Any]:
    """Return a vhost as a graph. All bindings between the same two objects form one edge."""
    vhost, statistics = call.vhost, call.statistics
    registry = vhost.router.registry
    edges = await finish(_edges(vhost))
    used = {source for source, _, _ in edges} | {destination for _, kind, destination in edges if kind != "queue"}
    published = (await finish(vhost.traffic())).published
    exchanges = (
        {
            "name": each.name,
            "type": each.type,
            "internal": each.internal,
            "rate": statistics.rate(0, "exchange", vhost.name, each.name),
        }
        for each in list(registry.exchanges.values())
        if each.name not in PREDECLARED or each.name in used or published[each.name]
    )
    default_rate = statistics.rate(0, "exchange", vhost.name, DEFAULT_EXCHANGE)
    queues = (
        {
            "name": queue.name,
            "messages": queue.message_count + queue.unsettled,
            "consumers": len(queue.consumers),
            "dead_letter_exchange": queue.rules.dead_letter_exchange,
            "rate_in": statistics.rate(3, "queue", vhost.name, queue.name),
            "rate_out": _rate_out(statistics, vhost.name, queue.name),
        }
        for queue in one_by_one(vhost.queues.values())
    )
    rated = (
        edge | {"rate": statistics.rate(0, "pair", vhost.name, source, destination)} if kind == "queue" else edge
        for (source, kind, destination), edge in edges.items()
    )
    return {"vhost": vhost.name, "exchanges": exchanges, "queues": queues, "edges": rated, "default_rate": default_rate}


def _rate_out(statistics: Statistics, vhost: str, queue: str) -> float:
    history = statistics.history("queue", vhost, queue)
    return 0.0 if history is None else round(sum(history.rate(column) for column in range(4, 8)), 1)


def _edges(vhost: VirtualHost) -> Steps[dict[tuple[str, str, str], dict[str, Any]]]:
    edges: dict[tuple[str, str, str], dict[str, Any]] = {}

    def add(source: str, kind: str, destination: str, key: str) -> None:
        edge = edges.get((source, kind, destination))
        if edge is None:
            edge = edges[source, kind, destination] = {
                "source": source, "kind": kind, "destination": destination, "bindings": 0, "keys": [],
            }  # fmt: skip
        edge["bindings"] += 1
        if len(edge["keys"]) < KEYS_SHOWN:
            edge["keys"].append(key)

    registry = vhost.router.registry
    for binding in registry.bindings():
        add(binding.source, binding.destination_type, binding.destination, binding.routing_key)
        yield
    for exchange in list(registry.exchanges.values()):
        yield
        alternate, _ = registry.alternate_exchange(exchange)
        if alternate is not None and alternate in registry.exchanges:
            add(exchange.name, "alternate", alternate, "")
    for queue in one_by_one(vhost.queues.values()):
        yield
        dead = queue.rules.dead_letter_exchange
        if dead is not None and dead in registry.exchanges:
            add(queue.name, "dead-letters", dead, queue.rules.dead_letter_routing_key or "")
    return edges
