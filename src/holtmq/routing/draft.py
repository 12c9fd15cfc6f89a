"""Explanations that include draft bindings, which do not exist yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holtmq.routing.explanation import Explanation
from holtmq.routing.router import Router
from holtmq.table import FieldValue
from holtmq.topology import Binding, Exchange, Topology


def explain_with(
    router: Router, drafts: Sequence[Binding], exchange: str, routing_key: str, headers: Mapping[str, FieldValue]
) -> Explanation:
    """Explain a route as if the drafts were bound. The router is not changed: the drafts are bound in a copy."""
    if not drafts:
        return router.explain(exchange, routing_key, headers)
    router.require_publishable(exchange)
    copy = Router(_within_reach(router, exchange, drafts), router.vhost)
    for draft in drafts:
        copy.bind(draft)
    return copy.explain(exchange, routing_key, headers)


def _within_reach(router: Router, start: str, drafts: Sequence[Binding]) -> Topology:
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
