"""Problems of a topology: unreachable queues, exchanges without a way to a queue, redundant bindings, missing names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from holtmq.errors import InvalidValueError
from holtmq.routing.explanation_text import describe_rule
from holtmq.routing.router import MATCHERS, Router, require_supported
from holtmq.topology import DEFAULT_EXCHANGE, Binding, Exchange, Topology
from holtmq.topology.criteria import Criteria

Level: TypeAlias = Literal["warning", "notice"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. A warning is almost certainly a mistake; a notice may be intended."""

    level: Level
    kind: str
    vhost: str
    subject: str
    message: str


def check(topology: Topology) -> list[Finding]:
    """Return all findings for a topology, warnings first, in a stable order."""
    findings = [finding for vhost in topology.vhosts for finding in _check_vhost(topology, vhost)]
    return sorted(findings, key=lambda f: (f.level != "warning", f.kind, f.vhost, f.subject, f.message))


def _check_vhost(topology: Topology, vhost: str) -> Iterator[Finding]:
    examined = _Vhost(topology, vhost)
    for look in (
        _dangling_bindings,
        _unsupported_exchanges,
        _alternate_exchanges,
        _dead_letter_exchanges,
        _exchanges_that_lead_nowhere,
        _internal_exchanges_without_source,
        _unreachable_queues,
        _shadowed_bindings,
        _headers_bindings_that_never_match,
        _lost_nulls,
    ):
        for level, kind, subject, message in look(examined):
            yield Finding(level, kind, vhost, subject, message)


Findings: TypeAlias = Iterator[tuple[Level, str, str, str]]


class _Vhost:
    """One vhost of the topology: its router, and its bindings and exchanges as declared."""

    def __init__(self, topology: Topology, vhost: str) -> None:
        self.bindings = [binding for binding in topology.bindings if binding.vhost == vhost]
        self.declared = [exchange for exchange in topology.exchanges if exchange.vhost == vhost]
        self.router = Router(topology, vhost)
        self.registry = self.router.registry

    def alternate(self, exchange: Exchange) -> str | None:
        return self.registry.alternate_exchange(exchange)[0]

    def onward(self, name: str) -> set[str]:
        """Return the exchanges that this one can pass a message to."""
        alternate = self.alternate(self.registry.exchanges[name])
        linked = {binding.destination for binding in self.registry.links_from(name)}
        return linked | ({alternate} & self.registry.exchanges.keys() if alternate else set())

    def closure(self, names: set[str], step: Callable[[str], set[str]]) -> set[str]:
        """Return everything that can be reached from these names in any number of steps, including themselves."""
        reached = set(names)
        for name in (ahead := list(names)):
            new = step(name) - reached
            reached |= new
            ahead += new
        return reached


def _dangling_bindings(vhost: _Vhost) -> Findings:
    for binding in vhost.bindings:
        if vhost.registry.has_ends(binding):
            continue
        missing = (
            f"exchange {binding.source!r}"
            if binding.source not in vhost.registry.exchanges
            else f"{binding.destination_type} {binding.destination!r}"
        )
        yield "warning", "dangling binding", str(binding), f"{missing} does not exist, so the binding is ignored"


def _unsupported_exchanges(vhost: _Vhost) -> Findings:
    for exchange in vhost.declared:
        subject = f"exchange {exchange.name!r}"
        if exchange.type not in MATCHERS:
            message = f"its type {exchange.type!r} is not supported; supported types are {', '.join(MATCHERS)}"
            yield "warning", "unknown exchange type", subject, message
            continue
        try:
            require_supported(exchange)
        except InvalidValueError as error:
            yield "warning", "unsupported argument", subject, str(error)


def _alternate_exchanges(vhost: _Vhost) -> Findings:
    for exchange in vhost.registry.exchanges.values():
        name, policy = vhost.registry.alternate_exchange(exchange)
        by_policy = f" (set by policy {policy.name!r})" if policy else ""
        if name == DEFAULT_EXCHANGE:
            message = (
                f"its alternate exchange{by_policy} is the default exchange, which routes nothing as an alternate exchange"
            )
        elif name is not None and name not in vhost.registry.exchanges:
            message = f"its alternate exchange {name!r}{by_policy} does not exist: unroutable messages are dropped"
        else:
            continue
        yield "warning", "missing alternate exchange", f"exchange {exchange.name!r}", message


def _dead_letter_exchanges(vhost: _Vhost) -> Findings:
    for queue in vhost.registry.queues.values():
        name = queue.arguments.get("x-dead-letter-exchange")
        if isinstance(name, str) and name != DEFAULT_EXCHANGE and name not in vhost.registry.exchanges:
            message = f"its dead-letter exchange {name!r} does not exist: dead letters are dropped"
            yield "warning", "missing dead-letter exchange", f"queue {queue.name!r}", message


def _exchanges_that_lead_nowhere(vhost: _Vhost) -> Findings:
    upstream: dict[str, set[str]] = defaultdict(set)
    for name in vhost.registry.exchanges:
        for target in vhost.onward(name):
            upstream[target].add(name)
    with_queues = {binding.source for binding in vhost.registry.bindings() if binding.is_to_queue}
    useful = vhost.closure(with_queues, lambda name: upstream[name])
    for exchange in vhost.declared:
        if exchange.name not in useful:
            has_bindings = bool(vhost.registry.bindings_from(exchange.name))
            message = "its bindings lead to no queue" if has_bindings else "it has no bindings and no alternate exchange"
            yield "warning", "leads nowhere", f"exchange {exchange.name!r}", message


def _internal_exchanges_without_source(vhost: _Vhost) -> Findings:
    reachable = _reachable_exchanges(vhost)
    for exchange in vhost.declared:
        if exchange.internal and exchange.name not in reachable:
            message = "it is internal, and no exchange that clients can publish to leads to it"
            yield "warning", "unreachable exchange", f"exchange {exchange.name!r}", message


def _unreachable_queues(vhost: _Vhost) -> Findings:
    reachable = _reachable_exchanges(vhost)
    for name in vhost.registry.queues:
        bindings = vhost.registry.bindings_to("queue", name)
        if not any(binding.source in reachable for binding in bindings):
            why = "none of its bindings can receive messages" if bindings else "it has no bindings"
            message = f"{why}: it is reached only through the default exchange"
            yield "notice", "unreachable queue", f"queue {name!r}", message


def _reachable_exchanges(vhost: _Vhost) -> set[str]:
    public = {exchange.name for exchange in vhost.registry.exchanges.values() if not exchange.internal}
    return vhost.closure(public, vhost.onward)


def _shadowed_bindings(vhost: _Vhost) -> Findings:
    """Find bindings whose messages all reach the same destination through another binding of the same exchange."""
    for exchange in vhost.registry.exchanges.values():
        matcher_type = MATCHERS.get(exchange.type)
        if matcher_type is None:
            continue
        by_destination: dict[tuple[str, str], list[Binding]] = defaultdict(list)
        for binding in vhost.registry.bindings_from(exchange.name):
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
                    continue  # its settings matter even if its rule does not
                broader = next((o for o in matcher.covering(binding) if o != binding and o not in shadowed), None)
                if broader is not None:
                    shadowed.add(binding)
                    message = (
                        f"redundant, because {describe_rule(broader, exchange.type)} matches every message that it matches"
                    )
                    yield "warning", "shadowed binding", str(binding), message


def _headers_bindings_that_never_match(vhost: _Vhost) -> Findings:
    for exchange in vhost.registry.exchanges.values():
        for binding in vhost.registry.bindings_from(exchange.name) if exchange.type == "headers" else ():
            criteria = Criteria.of(binding.arguments)
            if criteria.is_any and not criteria.tests:
                yield "warning", "never matches", str(binding), "x-match requires any criterion, and there are no criteria"


def _lost_nulls(vhost: _Vhost) -> Findings:
    for binding in vhost.bindings:
        for name, value in binding.arguments.items():
            if value == "undefined":
                message = f"{name} is the string 'undefined', which RabbitMQ exports for null; null would match any value"
                yield "notice", "null lost in export", str(binding), message
