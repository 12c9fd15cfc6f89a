"""What of a message can affect its route under a topology."""

from __future__ import annotations

from typing import NamedTuple

from holtmq.routing import Router


class RoutingInputs(NamedTuple):
    """The parts of a message that can affect its route."""

    header_names: frozenset[str]
    """Headers that at least one binding reads."""
    keyless_exchanges: frozenset[str]
    """Exchanges that ignore the routing key."""

    @classmethod
    def of(cls, *routers: Router) -> RoutingInputs:
        """Return the parts that can affect the route in at least one of the routers. Runs on the driver."""
        header_names = frozenset().union(*(router.header_names() for router in routers))
        return cls(header_names, frozenset.intersection(*(frozenset(router.keyless_exchanges()) for router in routers)))
