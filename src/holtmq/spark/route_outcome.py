"""What routing a signature gives: the queues that its messages reach, or the reason why no broker would accept them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from holtmq.errors import HoltmqError
from holtmq.routing import Route, Router
from holtmq.routing.route import Entry
from holtmq.routing.router import routing_keys
from holtmq.spark.added_columns import AddedColumns
from holtmq.spark.signature_value import SignatureValue, read_signature
from holtmq.table import FieldValue
from holtmq.topology import Binding


class RouteOutcome(NamedTuple):
    """The rows that a message becomes, as columns: one row for each queue, or a single one without a queue."""

    queues: tuple[str | None, ...]
    reason: str | None = None
    entries: tuple[Entry, ...] = ()
    """What the bindings set, if requested and routable."""
    bindings: tuple[tuple[str, ...], ...] = ()
    """The bindings into each queue, if requested and routable."""

    @classmethod
    def of(cls, router: Router, signature: SignatureValue, added: AddedColumns) -> RouteOutcome:
        """Route a signature. Runs on the executors, and on the driver for few signatures."""
        try:
            exchange, key, headers = read_signature(*signature)
            route = router.resolve(exchange, key, headers)
        except HoltmqError as error:
            return cls((None,), str(error))
        if not route.queues:
            return UNROUTABLE
        entries = tuple(route.entries.get(queue, NO_ENTRY) for queue in route.queues) if added.settings else ()
        return cls(route.queues, None, entries, _bindings_into(router, route, exchange, key, headers) if added.bindings else ())


NO_ENTRY = Entry()
UNROUTABLE = RouteOutcome((None,))
NO_ROWS = RouteOutcome(())
"""The outcome of a message that is dropped."""


def _bindings_into(
    router: Router, route: Route, exchange: str, key: str, headers: Mapping[str, FieldValue]
) -> tuple[tuple[str, ...], ...]:
    by_queue: dict[str, list[str]] = {queue: [] for queue in route.queues}
    for binding in matched_bindings(router, exchange, key, headers):
        if binding.is_to_queue:
            by_queue[binding.destination].append(str(binding))
    return tuple(tuple(sorted(names)) for names in by_queue.values())


def matched_bindings(router: Router, exchange: str, key: str, headers: Mapping[str, FieldValue]) -> Collection[Binding]:
    """Return all bindings that a message matches on its way through the exchanges into its queues."""
    hops = router.walk(exchange, routing_keys(key, headers), headers)
    return [binding for hop in hops for binding in hop.matched]
