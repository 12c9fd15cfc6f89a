"""What of a message matters to the exchange that it is published to, and the routes found there so far."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping

from holtmq.routing.matcher import Matcher
from holtmq.routing.route import Route
from holtmq.table import FieldValue
from holtmq.topology.criteria import PRESENT, comparable


class Plan:
    """Made for one exchange when a message first comes to it; thrown away whole when anything within its reach changes.

    Routes are kept in two generations of at most `limit` each: when the recent one is full it becomes the older one, and
    what is asked for again moves back. So memory is bounded whatever keys come, and what is in use stays.
    """

    __slots__ = ("_limit", "_older", "headers", "recent")

    def __init__(self, matchers: Iterable[Matcher], limit: int) -> None:
        self.headers: dict[str, Collection[Hashable]] = {}
        """The headers that some binding in reach looks at, each with the values that the bindings compare it to."""
        for matcher in matchers:
            for name, values in matcher.header_values.items():
                self.headers[name] = {*self.headers[name], *values} if name in self.headers else values
        self.recent: dict[Hashable, Route] = {}
        self._older: dict[Hashable, Route] = {}
        self._limit = limit

    def signature(self, routing_keys: Hashable, headers: Mapping[str, FieldValue]) -> Hashable:
        """Equal only for messages that must take the same route. A value that no binding names says only that it is there.

        Headers in another order give another signature: sorting would cost more than the second entry in the cache.
        """
        decisive = self.headers
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
        route = self.recent.get(signature)
        if route is None:
            route = self._older.get(signature)
            if route is not None:
                self.keep(signature, route)
        return route

    def keep(self, signature: Hashable, route: Route) -> None:
        if len(self.recent) >= self._limit:
            self._older, self.recent = self.recent, {}
        if self._limit:
            self.recent[signature] = route
