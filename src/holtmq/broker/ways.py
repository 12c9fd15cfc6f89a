"""The ways of the messages that a channel publishes: the queues of their routes, after a check of the permissions.

They are kept until the topology or the permissions change, because most messages go the way of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holtmq.broker.publication import Destination, Publication
from holtmq.broker.queued_message import Origin
from holtmq.broker.reply import REPLY_QUEUE
from holtmq.broker.traffic import WAYS_KEPT, Tallies, Way
from holtmq.routing.matcher import NO_HEADERS
from holtmq.routing.route import NO_ENTRIES, Entry, Route
from holtmq.routing.router import routing_keys
from holtmq.steps import nothing
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE
from holtmq.wire.content import Properties

if TYPE_CHECKING:
    from holtmq.broker.session import Session

DESTINATIONS_KEPT = 20_000
"""Number of destinations in all the ways that a channel keeps."""
WAY_BYTES = 600
WAY_DESTINATION_BYTES = 16
"""What a way takes, and each of its destinations: once in the way, and once in the route that it is found by."""


class ExchangeAccess:
    """What is the same for all messages to an exchange that the user may publish to."""

    __slots__ = ("has_topic_permission", "is_costly", "last_route", "last_way", "reads_headers", "way")

    def __init__(self, *, has_topic_permission: bool, reads_headers: bool, way: Way | None, is_costly: bool) -> None:
        self.has_topic_permission = has_topic_permission
        """Whether the routing key decides if the user may publish."""
        self.reads_headers = reads_headers
        self.way = way
        """The way of all messages without headers, if the routing key has no effect on it."""
        self.is_costly = is_costly
        """Whether finding the way of a message may take a millisecond."""
        self.last_route: Route | None = None
        self.last_way: Way | None = None
        """The route of an earlier message, and its way: many routing keys have the same route."""


class Ways:
    """The ways that a channel has found, and the counters of the messages that took them."""

    def __init__(self, session: Session, subject: str) -> None:
        self._session = session
        self._subject = subject
        """Whose ways they are, for the log."""
        self._vhost = session.vhost
        self.tallies = Tallies()
        self._generation = -1
        """The vhost's generation in which the following was found."""
        self._accesses: dict[str, ExchangeAccess] = {}
        self._ways: dict[tuple[str, tuple[str, ...]], Way] = {}
        self._destinations = 0
        """Number of destinations of the ways that are kept."""
        self._memory = 0
        """Bytes of the ways and tallies, as the session counts them."""

    def resolve(self, publication: Publication) -> None:
        """Resolve the route: the first time, and after any change of topology or permissions."""
        origin, vhost = publication.origin, self._vhost
        exchange = origin.exchange
        if self._generation != vhost.generation:
            self._generation = vhost.generation
            self._forget()
        access = self._accesses.get(exchange) or self._access(origin)
        if access.has_topic_permission:
            self._require_topic(exchange, origin.routing_key)
        publication.reads_headers = access.reads_headers
        publication.way = access.way or self._way(origin, NO_HEADERS, access)
        publication.generation = vhost.generation
        publication.has_any_key = access.way is not None and not access.has_topic_permission and not access.is_costly
        if access.is_costly:
            self._give_way()

    def with_headers(self, publication: Publication, properties: Properties) -> Way:
        """Return the way of a message whose headers may affect it, after a check of the keys in its CC and BCC headers."""
        origin = publication.origin
        access = self._accesses.get(origin.exchange) or self._access(origin)
        if properties.adds_keys and access.has_topic_permission:
            for key in routing_keys(origin.routing_key, properties.headers):
                self._require_topic(origin.exchange, key)
        if not (properties.has_headers and (publication.reads_headers or properties.adds_keys)):
            return publication.way
        way = self._way(origin, properties.headers, access)
        if access.is_costly:
            self._give_way()
        return way

    def _access(self, origin: Origin) -> ExchangeAccess:
        """Check that the user may publish to an exchange."""
        exchange, router = origin.exchange, self._vhost.router
        self._session.broker.chores.count_time()  # a route to tens of thousands of queues takes longer than a chore may
        self._session.require("write", "exchange", exchange)
        router.require_publishable(exchange)
        access = self._accesses[exchange] = ExchangeAccess(
            has_topic_permission=self._vhost.has_topic_permission(self._session.user.name, exchange),
            reads_headers=router.reads_headers(exchange),
            way=None,
            is_costly=router.is_costly(exchange),
        )
        if not router.reads_routing_key(exchange):
            access.way = self._way(origin, NO_HEADERS, access)
        return access

    def _way(self, origin: Origin, headers: Mapping[str, FieldValue], access: ExchangeAccess) -> Way:
        """Return the way of a message, from a cache, since many routing keys lead to the same queues."""
        exchange, vhost = origin.exchange, self._vhost
        if exchange == DEFAULT_EXCHANGE and origin.routing_key.startswith(REPLY_QUEUE):
            return self.tallied(exchange, vhost.reply_destinations(origin.routing_key), NO_ENTRIES)
        route = vhost.router.resolve(exchange, origin.routing_key, headers)
        if route is access.last_route and access.last_way is not None:
            return access.last_way
        access.last_route, access.last_way = route, self._way_of(exchange, route)
        return access.last_way

    def _way_of(self, exchange: str, route: Route) -> Way:
        vhost = self._vhost
        if route.entries:
            return self.tallied(exchange, vhost.destinations(route), route.entries)
        way = self._ways.get((exchange, route.queues))
        if way is None:
            if len(self._ways) >= WAYS_KEPT or self._destinations > DESTINATIONS_KEPT:
                self._forget()
            destinations = vhost.destinations(route)
            self._destinations += len(destinations)
            way = self._ways[exchange, route.queues] = self.tallied(exchange, destinations, NO_ENTRIES)
        return way

    def tallied(self, exchange: str, destinations: Sequence[Destination], entries: Mapping[str, Entry]) -> Way:
        way = self.tallies.way(exchange, destinations, entries)
        self._count()
        return way

    def _forget(self) -> None:
        self._accesses.clear()
        self._ways.clear()
        self._destinations = 0
        self._count()

    def _count(self) -> None:
        """Count what the ways and tallies take."""
        ways = WAY_BYTES * len(self._ways) + WAY_DESTINATION_BYTES * self._destinations
        self._set_memory(ways + self.tallies.memory)

    def _set_memory(self, size: int) -> None:
        self._session.routing += size - self._memory
        self._memory = size

    def close(self) -> None:
        """Count nothing any more: the channel is closed."""
        self._set_memory(0)

    def _give_way(self) -> None:
        """Let others go first, if this turn has taken its time."""
        chore = self._session.broker.chores.add("routing", self._subject, nothing)
        if not chore.is_done:
            self._session.wait_for(chore)

    def _require_topic(self, exchange: str, routing_key: str) -> None:
        user, vhost = self._session.user.name, self._vhost.name
        self._session.broker.authorization.require_topic(user, vhost, "write", exchange, routing_key)
