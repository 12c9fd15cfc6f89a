"""The cache of routes: which parts of a message affect its route from an exchange, and the routes found so far."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from holtmq.routing.matcher import EVERY_VALUE, Matcher
from holtmq.routing.route import Route
from holtmq.table import FieldValue
from holtmq.topology.criteria import PRESENT, comparable

LEFT_OUT = 4
"""A full cache is kept until it has left out this many times as many routes as it holds: if every message has a routing key of
its own, it is cheaper not to cache them."""
QUEUES_PER_ENTRY = 16
"""A cached route takes the memory of one entry more for each of this many queues."""


class Plan:
    """The routes from one exchange. It is created for the first message and dropped when anything within reach changes.

    Routes are cached in two generations. When the plans of a router are full, and have been for a while, the recent generation
    becomes the older one; an entry that is used again moves back to the recent one. Memory is bounded, and routes in use stay
    cached.
    """

    __slots__ = ("_older", "_plans", "entries", "headers", "is_costly", "only_matcher", "reads_routing_key", "recent")

    def __init__(self, matchers: Sequence[Matcher], plans: Plans, *, is_alone: bool) -> None:
        self.headers: dict[str, Collection[Hashable]] = {}
        """The headers that bindings within reach test, each with the comparable values that they test for."""
        self.only_matcher = matchers[0] if is_alone and matchers else None
        """The matcher of the exchange, if messages reach no other exchange from there."""
        self.is_costly = any(matcher.is_costly for matcher in matchers)
        self.reads_routing_key = any(matcher.reads_routing_key for matcher in matchers)
        for matcher in matchers:
            for name, values in matcher.header_values.items():
                known = self.headers.get(name, values)
                is_whole = EVERY_VALUE in (known, values)
                self.headers[name] = EVERY_VALUE if is_whole else values if known is values else {*known, *values}
        self.recent: dict[Hashable, Route] = {}
        self.entries = 0
        """What the recent generation counts for."""
        self._older: dict[Hashable, Route] = {}
        self._plans = plans

    def signature(self, routing_keys: Hashable, headers: Mapping[str, FieldValue]) -> Hashable:
        """Return a key that is equal only for messages with the same route.

        A value that no binding tests for is reduced to the presence of its header. Headers in another order give another
        signature, because sorting would cost more than a second entry in the cache.
        """
        decisive = self.headers
        if not self.reads_routing_key:
            routing_keys = ""
        if not decisive:
            return routing_keys
        signature = [routing_keys]
        for name in headers:
            if name in decisive:
                value = headers[name]
                key = value if type(value) is str else comparable(value)
                signature += (name, key if key in decisive[name] else PRESENT)
        return tuple(signature) if len(signature) > 1 else routing_keys

    def find(self, signature: Hashable) -> Route | None:
        """Return the cached route for a signature, or None."""
        route = self.recent.get(signature)
        if route is None:
            route = self._older.get(signature)
            if route is not None:
                self.keep(signature, route)
        return route

    def keep(self, signature: Hashable, route: Route) -> None:
        """Cache the route of a signature."""
        if self._plans.make_room(self, 1 + len(route.queues) // QUEUES_PER_ENTRY):
            self.recent[signature] = route

    def age(self) -> None:
        """Make the recent generation the older one."""
        self._older, self.recent, self.entries = self.recent, {}, 0


class Plans(dict[str, Plan]):
    """The plans of a router, by exchange. Each of their two generations holds at most `limit` routes, all plans together.

    When they are full, a plan may still add routes up to its share of half as many: an exchange that gets a routing key of its
    own with every message does not keep the routes of others out of the cache.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self._entries = 0
        self._left_out = 0

    def make_room(self, plan: Plan, entries: int) -> bool:
        """Count a route that is about to be cached. Return False if it is not to be cached."""
        if self._entries >= self.limit and plan.entries >= self.limit // (2 * max(1, len(self))):
            self._left_out += 1
            if self._left_out <= LEFT_OUT * self.limit or not self.limit:
                return False
            self._entries = self._left_out = 0
            for each in self.values():
                each.age()
        self._entries += entries
        plan.entries += entries
        return True

    def drop(self, exchange: str) -> None:
        """Drop the plan of an exchange, if there is one."""
        plan = self.pop(exchange, None)
        if plan is not None:
            self._entries -= plan.entries

    def clear(self) -> None:
        super().clear()
        self._entries = self._left_out = 0
