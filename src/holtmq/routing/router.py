"""The router: from a published message to the queues that it reaches, for the broker, the embedded library and Spark alike.

A route depends on the exchange, the routing keys and the headers that some binding tests; together they are its signature.
Routes are cached by signature for each exchange. A change to an exchange drops the caches of the exchanges that lead to it,
and no others. Pure, without I/O or clock: a pickled router routes in the same way in another process.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from holtmq.allocator import nothing_collected
from holtmq.errors import AccessRefusedError, InvalidValueError
from holtmq.routing.consistent_hash import ConsistentHashMatcher
from holtmq.routing.default import DefaultMatcher
from holtmq.routing.direct import DirectMatcher
from holtmq.routing.explain import explain
from holtmq.routing.explanation import Explanation
from holtmq.routing.fanout import FanoutMatcher
from holtmq.routing.headers import HeadersMatcher
from holtmq.routing.matcher import NO_HEADERS, Matcher
from holtmq.routing.plan import Plan, Plans
from holtmq.routing.route import Route
from holtmq.routing.topic import TopicMatcher
from holtmq.steps import Steps, complete
from holtmq.table import FieldValue, describe, require_short_string
from holtmq.topology import (
    DEFAULT_EXCHANGE,
    DEFAULT_VHOST,
    Binding,
    Exchange,
    Policy,
    Queue,
    Registry,
    Removal,
    Topology,
)

MATCHERS: Mapping[str, type[Matcher]] = MappingProxyType(
    {matcher.type: matcher for matcher in (DirectMatcher, FanoutMatcher, TopicMatcher, HeadersMatcher, ConsistentHashMatcher)}
)
CACHE_SIZE = 50_000
"""Routes kept, twice over: see `Plan`."""

log = logging.getLogger(__name__)


class Hop(NamedTuple):
    """One exchange on the way of a message: the bindings that match or, if none does, its alternate exchange."""

    exchange: str
    matched: Collection[Binding]
    alternate: str | None


class Router:
    """Routes messages through the exchanges, queues and bindings of one vhost, which can be changed at any time.

    `strict_unbind` refuses an unbind whose arguments differ from those of the binding; RabbitMQ ignores it. `cache_size` is
    the number of recent routes that are cached for each exchange.
    """

    def __init__(
        self,
        topology: Topology | None = None,
        vhost: str = DEFAULT_VHOST,
        *,
        strict_unbind: bool = True,
        cache_size: int = CACHE_SIZE,
    ) -> None:
        self._strict_unbind = strict_unbind
        self._plans = Plans(cache_size)
        self._planned_through: dict[str, set[str]] = {}
        with nothing_collected():
            self.registry = Registry.of(topology or Topology(), vhost)
            self._default = DefaultMatcher(self.registry)
            self._matchers: dict[str, Matcher] = {DEFAULT_EXCHANGE: self._default}
            for exchange in self.registry.exchanges.values():
                self._start_matching(exchange)

    @property
    def vhost(self) -> str:
        """The vhost that the router is for."""
        return self.registry.vhost

    def to_topology(self) -> Topology:
        """Return the current state as a frozen value."""
        return self.registry.to_topology()

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, FieldValue] | None = None) -> tuple[str, ...]:
        """Return the names of the queues that a message reaches, each once, sorted."""
        return self.resolve(exchange, routing_key, headers).queues

    def resolve(self, exchange: str, routing_key: str, headers: Mapping[str, FieldValue] | None = None) -> Route:
        """Return the route of a message, with the priority and TTL that it gets from bindings."""
        # Most messages end in one of these two lookups. They check nothing: what is cached was checked when it was added.
        try:
            plan = self._plans[exchange]
            route = None
            if not headers:
                route = plan.recent.get(routing_key)
                if route is None and plan.only_matcher is not None:
                    return self._resolve_key(plan, plan.only_matcher, routing_key)
            elif type(headers) is dict and "CC" not in headers and "BCC" not in headers:
                if not plan.reads_routing_key:
                    require_short_string(routing_key, "a routing key")  # as it is not part of the signature
                route = plan.recent.get(plan.signature(routing_key, headers))
            if route is not None:
                return route
        except (KeyError, TypeError):
            pass
        return self._resolve_checked(exchange, routing_key, NO_HEADERS if headers is None else headers)

    def forget_routes(self) -> None:
        """Clear the cache of routes."""
        self._plans.clear()
        self._planned_through.clear()

    def reads_routing_key(self, exchange: str) -> bool:
        """Return whether the routing key can affect the route of a message that is published to an exchange."""
        return (self._plans.get(exchange) or self._make_plan(exchange)).reads_routing_key

    def is_costly(self, exchange: str) -> bool:
        """Return whether finding a new route from an exchange may take a millisecond."""
        return (self._plans.get(exchange) or self._make_plan(exchange)).is_costly

    def reads_headers(self, exchange: str) -> bool:
        """Return whether headers can affect the route of a message that is published to an exchange."""
        self.require_publishable(exchange)
        return bool((self._plans.get(exchange) or self._make_plan(exchange)).headers)

    def header_names(self) -> set[str]:
        """Return the headers that some binding of this vhost tests, without CC and BCC, which apply everywhere."""
        return {name for matcher in self._matchers.values() for name in matcher.header_values}

    def keyless_exchanges(self) -> set[str]:
        """Return the exchanges from which the routing key of a message does not affect its route."""
        readers = {name for name, matcher in self._matchers.items() if matcher.reads_routing_key}
        return {name for name in self.registry.exchanges if readers.isdisjoint(self._reach(name))}

    def hashes_routing_keys(self) -> bool:
        """Return whether an exchange hashes routing keys, so that any two keys can have different routes."""
        return any(matcher.chooses_one and matcher.reads_routing_key for matcher in self._matchers.values())

    def resolve_unpublished(
        self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, FieldValue] = NO_HEADERS
    ) -> Route:
        """Return the route of a message that no client publishes, such as a dead letter; internal exchanges accept it."""
        if exchange != DEFAULT_EXCHANGE and self.registry.exchange(exchange).internal:  # these have no plan
            return self._walked(exchange, routing_keys, headers)
        return self._planned(self._plans.get(exchange) or self._make_plan(exchange), exchange, routing_keys, headers)

    def explain(self, exchange: str, routing_key: str, headers: Mapping[str, FieldValue] | None = None) -> Explanation:
        """Explain the route of a message, with near misses. This examines every binding on the way: avoid it in hot paths."""
        return complete(self.explain_in_steps(exchange, routing_key, headers or NO_HEADERS))

    def explain_in_steps(self, exchange: str, routing_key: str, headers: Mapping[str, FieldValue]) -> Steps[Explanation]:
        """Explain the route of a message, a binding in each step. Changes to the router in between are seen in part."""
        self.require_publishable(exchange)
        require_short_string(routing_key, "a routing key")
        return explain(self, exchange, routing_keys(routing_key, headers), headers)

    def declare_exchange(self, exchange: Exchange) -> bool:
        """Add an exchange; return False if an equal one exists."""
        self._require_vhost(exchange)
        require_supported(exchange)
        is_new = self.registry.declare_exchange(exchange)
        if is_new:
            self._start_matching(exchange)
            self._forget_routes(exchange.name)
        return is_new

    def declare_queue(self, queue: Queue) -> bool:
        """Add a queue; return False if an equal one exists."""
        self._require_vhost(queue)
        is_new = self.registry.declare_queue(queue)
        if is_new:
            self._forget_routes(DEFAULT_EXCHANGE)
        return is_new

    def adopt_queue(self, queue: Queue) -> None:
        """Add a queue that the server named, or that a file restores."""
        self._require_vhost(queue)
        self.registry.adopt_queue(queue)
        self._forget_routes(DEFAULT_EXCHANGE)

    def set_policies(self, policies: Iterable[Policy]) -> None:
        """Replace all policies."""
        self.registry.set_policies(policies)
        self._plans.clear()
        self._planned_through.clear()

    def bind(self, binding: Binding) -> bool:
        """Add a binding; return False if one with the same identity exists."""
        self.require_valid(binding)
        ghost = self.registry.ghost_of(binding)
        if ghost is not None:
            self._sweep(ghost)
        is_new = self.registry.add_binding(binding)
        if is_new:
            self.matcher(binding.source).add(binding)
            self._forget_routes(binding.source)
        return is_new

    def require_valid(self, binding: Binding) -> None:
        """Raise an error if a binding cannot be added."""
        self._require_vhost(binding)
        self.registry.require_ends(binding)
        self.matcher(binding.source).validate(binding)

    def unbind(self, binding: Binding, *, is_swept: bool = True) -> Removal:
        """Remove the binding with this identity, and its source if that is auto-delete and has no other binding.

        See `delete_queue` for `is_swept`.
        """
        self._require_vhost(binding)
        return self._follow(self.registry.unbind(binding, strict=self._strict_unbind), is_swept=is_swept)

    def delete_queue(self, name: str, *, is_swept: bool = True) -> Removal:
        """Remove a queue and its bindings; do nothing if it does not exist.

        If not `is_swept`, the caller runs `sweep` at leisure.
        """
        return self._follow(self.registry.delete_queue(name), is_swept=is_swept)

    def delete_exchange(self, name: str, *, if_unused: bool = False, is_swept: bool = True) -> Removal:
        """Remove an exchange and its bindings; do nothing if it does not exist. See `delete_queue`."""
        return self._follow(self.registry.delete_exchange(name, if_unused=if_unused), is_swept=is_swept)

    def sweep(self, removal: Removal) -> Steps[None]:
        """Forget the bindings of a removal, one in each step. Nobody sees the difference, but it frees memory."""
        for ghost in removal.bindings:
            self._sweep(ghost)
            yield
        self.registry.swept(removal)

    def _sweep(self, ghost: Binding) -> None:
        if self.registry.sweep(ghost) and ghost.source in self._matchers:
            self._matchers[ghost.source].remove(ghost)

    def matcher(self, exchange: str) -> Matcher:
        """Return the matcher of an exchange; raise NotFoundError if the exchange does not exist."""
        try:
            return self._matchers[exchange]
        except KeyError:
            return require_supported(self.registry.exchange(exchange))

    def require_publishable(self, exchange: str) -> None:
        """Raise an error if the exchange does not exist or is internal."""
        require_short_string(exchange, "the name of an exchange")
        if exchange != DEFAULT_EXCHANGE and self.registry.exchange(exchange).internal:
            raise AccessRefusedError(f"cannot publish to internal exchange {exchange!r} in vhost {self.vhost!r}")

    def alternate_exchange(self, exchange: str) -> tuple[str | None, Policy | None]:
        """Return the alternate exchange of an exchange and the policy that sets it, if any."""
        if exchange == DEFAULT_EXCHANGE:
            return None, None
        return self.registry.alternate_exchange(self.registry.exchange(exchange))

    def bindings_from(self, exchange: str) -> Collection[Binding]:
        """Return all bindings of an exchange; those of the default exchange are implicit."""
        return self._default.bindings() if exchange == DEFAULT_EXCHANGE else self.registry.bindings_from(exchange)

    def snapshot_from(self, exchange: str) -> tuple[int, Iterator[Binding]]:
        """Return the current number of bindings of an exchange, and an iterator over them that survives changes."""
        if exchange == DEFAULT_EXCHANGE:
            return len(self.registry.queues), map(self._default.implicit_binding, list(self.registry.queues))
        bindings = list(self.registry.bindings_from(exchange))
        return len(bindings), iter(bindings)

    def walk(self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, FieldValue]) -> Iterator[Hop]:
        """Yield every exchange that a message reaches, each once, nearest first, then by name; cycles end by themselves."""
        seen = {exchange}
        for name in (ahead := [exchange]):
            hop = self._hop(name, routing_keys, headers, is_first=name == exchange)
            yield hop
            following = {hop.alternate} if hop.alternate is not None else set()
            if self.registry.links_from(name):  # most exchanges lead to queues only, and then no binding needs a look
                following |= {binding.destination for binding in hop.matched if not binding.is_to_queue}
            for target in sorted(following - seen):
                seen.add(target)
                ahead.append(target)

    def _hop(self, name: str, routing_keys: Collection[str], headers: Mapping[str, FieldValue], *, is_first: bool) -> Hop:
        if name == DEFAULT_EXCHANGE and not is_first:
            return Hop(name, (), None)  # it routes nothing as an alternate exchange, as observed on RabbitMQ 3.10.8
        matcher = self.matcher(name)
        matched: Collection[Binding]
        if len(routing_keys) == 1 or not matcher.reads_routing_key or matcher.chooses_one:
            matched = self._match(matcher, next(iter(routing_keys)), headers)
        else:
            matched = {binding for key in routing_keys for binding in self._match(matcher, key, headers)}
        if matched:
            return Hop(name, matched, None)
        alternate, _ = self.alternate_exchange(name)
        if alternate is not None and alternate != DEFAULT_EXCHANGE and alternate not in self.registry.exchanges:
            log.warning("alternate exchange %r of exchange %r in vhost %r does not exist", alternate, name, self.vhost)
            alternate = None
        return Hop(name, matched, alternate)

    def _match(self, matcher: Matcher, routing_key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
        matched = matcher.match(routing_key, headers)
        if self.registry.has_ghosts and matcher is not self._default:
            matched = [binding for binding in matched if self.registry.is_real(binding)]
        return matched

    def _resolve_key(self, plan: Plan, matcher: Matcher, routing_key: str) -> Route:
        """Return the route of a message without headers from an exchange that leads to queues only, as most do."""
        require_short_string(routing_key, "a routing key")
        signature = routing_key if plan.reads_routing_key else ""
        route = plan.find(signature)
        if route is None:
            route = Route.through(self._match(matcher, routing_key, NO_HEADERS))
            plan.keep(signature, route)
        return route

    def _resolve_checked(self, exchange: str, routing_key: str, headers: Mapping[str, FieldValue]) -> Route:
        plan = self._plans.get(exchange) if isinstance(exchange, str) else None
        if plan is None:
            self.require_publishable(exchange)
            plan = self._make_plan(exchange)
        keys = routing_keys(routing_key, headers)
        require_short_string(routing_key, "a routing key")
        return self._planned(plan, exchange, keys, headers)

    def _planned(self, plan: Plan, exchange: str, routing_keys: Collection[str], headers: Mapping[str, FieldValue]) -> Route:
        """Return the route of a message from an exchange that has a plan, from the cache if it is there."""
        only_key = next(iter(routing_keys)) if len(routing_keys) == 1 else None
        own_and_all = (next(iter(routing_keys)), frozenset(routing_keys)) if only_key is None else only_key
        signature = plan.signature(own_and_all, headers)
        route = plan.find(signature)
        if route is None:
            if plan.only_matcher is not None and only_key is not None:
                route = Route.through(self._match(plan.only_matcher, only_key, headers))
            else:
                route = self._walked(exchange, routing_keys, headers)
            plan.keep(signature, route)
        return route

    def _walked(self, exchange: str, routing_keys: Collection[str], headers: Mapping[str, FieldValue]) -> Route:
        """Return the route of a message, found by way of all exchanges that it reaches."""
        hops = self.walk(exchange, routing_keys, headers)
        return Route.through([binding for hop in hops for binding in hop.matched if binding.is_to_queue])

    def _make_plan(self, exchange: str) -> Plan:
        """Create the plan of an exchange that was checked to be publishable; it is not checked again."""
        reach = self._reach(exchange)
        for name in reach:
            self._planned_through.setdefault(name, set()).add(exchange)
        matchers = [self._matchers[name] for name in reach if name in self._matchers]
        is_alone = len(reach) == 1 and not self.registry.links_from(exchange)
        plan = self._plans[exchange] = Plan(matchers, self._plans, is_alone=is_alone)
        return plan

    def _reach(self, exchange: str) -> dict[str, None]:
        """Return the exchange and all exchanges that its messages can reach, in breadth-first order."""
        reach = {exchange: None}
        for name in (ahead := [exchange]):
            onward = [binding.destination for binding in self.registry.links_from(name)]
            if name in self.registry.exchanges:
                alternate, _ = self.alternate_exchange(name)
                onward += [alternate] if alternate is not None else []
            for target in onward:
                if target not in reach:
                    reach[target] = None
                    ahead.append(target)
        return reach

    def _forget_routes(self, exchange: str) -> None:
        """Drop the plans of the exchanges whose messages can reach this one."""
        for planned in self._planned_through.pop(exchange, ()):
            self._plans.drop(planned)

    def _start_matching(self, exchange: Exchange) -> None:
        try:
            matcher = self._matchers[exchange.name] = require_supported(exchange)
        except InvalidValueError:
            return  # a plugin's type in an imported file: only routes through this exchange fail, with its name
        for binding in self.registry.bindings_from(exchange.name):
            matcher.validate(binding)
            matcher.add(binding)

    def _follow(self, removal: Removal, *, is_swept: bool = True) -> Removal:
        for exchange in removal.exchanges:
            self._matchers.pop(exchange.name, None)  # as a whole, however many bindings it has
            self._forget_routes(exchange.name)
        sources = {binding.source for binding in removal.bindings}
        for source in sources:
            self._forget_routes(source)
        if removal.queues:
            self._forget_routes(DEFAULT_EXCHANGE)
        choosing = {source for source in sources if source in self._matchers and self._matchers[source].chooses_one}
        for ghost in removal.bindings if choosing else ():
            if ghost.source in choosing:
                self._sweep(ghost)  # at once, as its weight would still count
        if removal and is_swept:
            complete(self.sweep(removal))
        return removal

    def _require_vhost(self, part: Exchange | Queue | Binding) -> None:
        if part.vhost != self.vhost:
            raise InvalidValueError(f"this router is for vhost {self.vhost!r}, got {part} of vhost {part.vhost!r}")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.to_topology(), self.vhost, self._strict_unbind, self._plans.limit)


def require_supported(exchange: Exchange) -> Matcher:
    """Return an empty matcher for an exchange; raise InvalidValueError if its type is unknown or its arguments are invalid."""
    matcher_type = MATCHERS.get(exchange.type)
    if matcher_type is None:
        raise InvalidValueError(
            f"unknown exchange type {exchange.type!r} of exchange {exchange.name!r}, expected one of {', '.join(MATCHERS)}"
        )
    return matcher_type.of(exchange)


def routing_keys(routing_key: str, headers: Mapping[str, FieldValue]) -> tuple[str, ...]:
    """Return the routing key of a message, followed by those in its CC and BCC headers, each once, sorted."""
    if type(routing_key) is not str:
        require_short_string(routing_key, "a routing key")
    if type(headers) is not dict and not isinstance(headers, Mapping):
        raise InvalidValueError(f"headers must be a table (a mapping), got {describe(headers)}")
    if "CC" not in headers and "BCC" not in headers:
        return (routing_key,)
    keys = set[str]()
    for name in ("CC", "BCC"):
        more = headers.get(name, ())
        if not isinstance(more, list | tuple):
            raise InvalidValueError(f"header {name!r} must be an array of routing keys, got {describe(more)}")
        keys.update(key for key in more if isinstance(key, str))
    return (routing_key, *sorted(keys - {routing_key}))


def _rebuild(topology: Topology, vhost: str, strict_unbind: bool, cache_size: int) -> Router:  # noqa: FBT001
    return Router(topology, vhost, strict_unbind=strict_unbind, cache_size=cache_size)
