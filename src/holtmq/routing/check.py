"""The weak spots of a topology: what can't be reached, leads nowhere, adds nothing, or names what does not exist."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holtmq.routing.explanation_text import describe_rule
from holtmq.routing.router import MATCHERS, Router
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange, Topology
from holtmq.topology.criteria import Criteria

Level: TypeAlias = Literal["warning", "notice"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One weak spot. A warning is almost surely a mistake; a notice may well be meant."""

    level: Level
    kind: str
    vhost: str
    subject: str
    message: str


def check(topology: Topology) -> list[Finding]:
    """All findings of a topology, warnings first, in a stable order."""
    findings = [finding for vhost in topology.vhosts for finding in _check_vhost(topology, vhost)]
    return sorted(findings, key=lambda f: (f.level != "warning", f.kind, f.vhost, f.subject, f.message))


def _check_vhost(topology: Topology, vhost: str) -> Iterator[Finding]:
    spot = _Spot(topology, vhost)
    for look in (
        _dangling_bindings,
        _unknown_types,
        _alternate_exchanges,
        _dead_letter_exchanges,
        _exchanges_that_lead_nowhere,
        _internal_exchanges_without_source,
        _unreachable_queues,
        _shadowed_bindings,
        _headers_bindings_that_never_match,
        _lost_nulls,
    ):
        for level, kind, subject, message in look(spot):
            yield Finding(level, kind, vhost, subject, message)


Findings: TypeAlias = Iterator[tuple[Level, str, str, str]]


class _Spot:
    """One vhost under examination: the router built from it, and what of the file is not in it."""

    def __init__(self, topology: Topology, vhost: str) -> None:
        self.bindings = [binding for binding in topology.bindings if binding.vhost == vhost]
        self.declared = [exchange for exchange in topology.exchanges if exchange.vhost == vhost]
        self.router = Router(topology, vhost)
        self.registry = self.router.registry

    def alternate(self, exchange: Exchange) -> str | None:
        return self.registry.alternate_exchange(exchange)[0]

    def onward(self, name: str) -> set[str]:
        """The exchanges to which this one can pass a message."""
        alternate = self.alternate(self.registry.exchanges[name])
        linked = {binding.destination for binding in self.registry.links_from(name)}
        return linked | ({alternate} & self.registry.exchanges.keys() if alternate else set())

    def closure(self, names: set[str], step: Callable[[str], set[str]]) -> set[str]:
        """All that can be reached from these names by any number of steps, themselves included."""
        reached = set(names)
        for name in (ahead := list(names)):
            new = step(name) - reached
            reached |= new
            ahead += new
        return reached


def _dangling_bindings(spot: _Spot) -> Findings:
    for binding in spot.bindings:
        if spot.registry.has_ends(binding):
            continue
        missing = (
            f"exchange {binding.source!r}"
            if binding.source not in spot.registry.exchanges
            else f"{binding.destination_type} {binding.destination!r}"
        )
        yield "warning", "dangling binding", str(binding), f"{missing} does not exist here, so the binding is ignored"


def _unknown_types(spot: _Spot) -> Findings:
    for exchange in spot.declared:
        if exchange.type not in MATCHERS:
            message = f"its type is {exchange.type!r}, which HoltMQ can't route; known are {', '.join(MATCHERS)}"
            yield "warning", "unknown exchange type", f"exchange {exchange.name!r}", message


def _alternate_exchanges(spot: _Spot) -> Findings:
    for exchange in spot.registry.exchanges.values():
        name, policy = spot.registry.alternate_exchange(exchange)
        by_policy = f" (by policy {policy.name!r})" if policy else ""
        if name == DEFAULT_EXCHANGE:
            message = f"its alternate exchange{by_policy} is the default exchange, which leads nowhere as such"
        elif name is not None and name not in spot.registry.exchanges:
            message = f"its alternate exchange {name!r}{by_policy} does not exist: unmatched messages are dropped"
        else:
            continue
        yield "warning", "missing alternate exchange", f"exchange {exchange.name!r}", message


def _dead_letter_exchanges(spot: _Spot) -> Findings:
    for queue in spot.registry.queues.values():
        name = queue.arguments.get("x-dead-letter-exchange")
        if isinstance(name, str) and name != DEFAULT_EXCHANGE and name not in spot.registry.exchanges:
            message = f"its dead-letter exchange {name!r} does not exist: dead letters are dropped"
            yield "warning", "missing dead-letter exchange", f"queue {queue.name!r}", message


def _exchanges_that_lead_nowhere(spot: _Spot) -> Findings:
    upstream: dict[str, set[str]] = defaultdict(set)
    for name in spot.registry.exchanges:
        for target in spot.onward(name):
            upstream[target].add(name)
    with_queues = {binding.source for binding in spot.registry.bindings() if binding.is_to_queue}
    useful = spot.closure(with_queues, lambda name: upstream[name])
    for exchange in spot.declared:
        if exchange.name not in useful:
            has_bindings = bool(spot.registry.bindings_from(exchange.name))
            message = "its bindings lead to no queue" if has_bindings else "it has no bindings and no alternate exchange"
            yield "warning", "leads nowhere", f"exchange {exchange.name!r}", message


def _internal_exchanges_without_source(spot: _Spot) -> Findings:
    reachable = _reachable_exchanges(spot)
    for exchange in spot.declared:
        if exchange.internal and exchange.name not in reachable:
            message = "it is internal, and no exchange that can be published to leads to it"
            yield "warning", "unreachable exchange", f"exchange {exchange.name!r}", message


def _unreachable_queues(spot: _Spot) -> Findings:
    reachable = _reachable_exchanges(spot)
    for name in spot.registry.queues:
        bindings = spot.registry.bindings_to("queue", name)
        if not any(binding.source in reachable for binding in bindings):
            why = "none of its bindings can be reached" if bindings else "it has no bindings"
            message = f"{why}: messages come only by its name through the default exchange"
            yield "notice", "unreachable queue", f"queue {name!r}", message


def _reachable_exchanges(spot: _Spot) -> set[str]:
    public = {exchange.name for exchange in spot.registry.exchanges.values() if not exchange.internal}
    return spot.closure(public, spot.onward)


def _shadowed_bindings(spot: _Spot) -> Findings:
    """Bindings whose every message comes to the same destination by another binding of the same exchange as well."""
    for exchange in spot.registry.exchanges.values():
        matcher_type = MATCHERS.get(exchange.type)
        if matcher_type is None:
            continue
        by_destination: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        for binding in spot.registry.bindings_from(exchange.name):
            by_destination[binding.destination_type, binding.destination].append(binding)
        for rivals in by_destination.values():
            if len(rivals) == 1:
                continue
            matcher = matcher_type()
            for binding in rivals:
                matcher.add(binding)
            shadowed: set[Binding] = set()
            for binding in rivals:
                if binding.priority is not None or binding.ttl_ms is not None:
                    continue  # its settings make a difference even where its rule makes none
                broader = next((o for o in matcher.covering(binding) if o != binding and o not in shadowed), None)
                if broader is not None:
                    shadowed.add(binding)
                    message = f"adds nothing: {describe_rule(broader, exchange.type)} takes all that it takes"
                    yield "warning", "shadowed binding", str(binding), message


def _headers_bindings_that_never_match(spot: _Spot) -> Findings:
    for exchange in spot.registry.exchanges.values():
        for binding in spot.registry.bindings_from(exchange.name) if exchange.type == "headers" else ():
            criteria = Criteria.of(binding.arguments)
            if criteria.is_any and not criteria.tests:
                yield "warning", "never matches", str(binding), "x-match asks for any criterion, and there is none"


def _lost_nulls(spot: _Spot) -> Findings:
    for binding in spot.bindings:
        for name, value in binding.arguments.items():
            if value == "undefined":
                message = f"{name} is the text 'undefined', which is how RabbitMQ exports null: perhaps presence was meant"
                yield "notice", "null lost in export", str(binding), message
