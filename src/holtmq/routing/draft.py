"""Explanations that include draft bindings, which do not exist yet: a copy of the topology binds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holtmq.routing.explanation import Explanation
from holtmq.routing.router import Router
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Topology


def explain_with(
    topology: Topology, drafts: Sequence[Binding], exchange: str, routing_key: str, headers: Mapping[str, FieldValue]
) -> Explanation:
    """Explain a route in a topology as if the drafts were bound."""
    router = Router(topology, drafts[0].vhost)
    for draft in drafts:
        router.bind(draft)
    return router.explain(exchange, routing_key, headers)


def within_reach(router: Router, start: str, drafts: Sequence[Binding]) -> Topology:
    """Return the part of a router's topology that the explanation of a route from an exchange needs."""
    router.require_publishable(start)
    registry = router.registry
    exchanges: dict[str, Exchange] = {}
    pending = [start, *(draft.source for draft in drafts), *(each.destination for each in drafts if not each.is_to_queue)]
    while pending:
        name = pending.pop()
        if name in exchanges or name not in registry.exchanges:
            continue
        exchanges[name] = registry.exchanges[name]
        alternate, _ = registry.alternate_exchange(exchanges[name])
        pending += [binding.destination for binding in registry.links_from(name)]
        pending += [alternate] if alternate is not None else []
    bindings = [binding for name in exchanges for binding in registry.bindings_from(name)]
    named = {binding.destination for binding in (*bindings, *drafts) if binding.is_to_queue}
    queues = registry.queues.values() if not exchanges else [registry.queues[name] for name in named]
    return Topology(tuple(exchanges.values()), tuple(queues), tuple(bindings), registry.policies)
