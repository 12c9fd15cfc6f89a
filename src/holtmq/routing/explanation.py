"""The explanation of a route, as values: each exchange on the way, the bindings that matched, and the near misses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holtmq.routing.explanation_text import to_text
from holtmq.routing.route import Route
from holtmq.table import FieldValue
from holtmq.table_json import table_to_json
from holtmq.topology import Binding, Exchange


@dataclass(frozen=True, slots=True)
class Match:
    """A binding that matched, with the reason. `note` is set if its destination had been reached before."""

    binding: Binding
    reason: str
    note: str | None = None


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A binding that nearly matched, with the reason why it did not. `closeness` is between 0 and 1."""

    binding: Binding
    reason: str
    closeness: float


@dataclass(frozen=True, slots=True)
class ExplainedHop:
    """The routing at one exchange."""

    exchange: Exchange
    cause: str
    matches: tuple[Match, ...]
    near_misses: tuple[NearMiss, ...]
    bindings: int
    """The total number of bindings of the exchange."""
    note: str | None = None
    """What happened because no binding matched: the alternate exchange was used, or there is none."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a message is routed to its queues. `str()` gives plain text, and `to_dict()` a dictionary for JSON."""

    vhost: str
    exchange: str
    routing_keys: tuple[str, ...]
    headers: Mapping[str, FieldValue]
    hops: tuple[ExplainedHop, ...]
    route: Route

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that the message reaches."""
        return self.route.queues

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain dictionaries and lists, ready for JSON."""
        return {
            "vhost": self.vhost,
            "exchange": self.exchange,
            "routing_keys": list(self.routing_keys),
            "headers": table_to_json(self.headers),
            "queues": list(self.queues),
            "entries": {queue: asdict(entry) for queue, entry in self.route.entries.items()},
            "hops": [_hop_to_dict(hop) for hop in self.hops],
        }

    def __str__(self) -> str:
        return to_text(self)


def _hop_to_dict(hop: ExplainedHop) -> dict[str, Any]:
    return {
        "exchange": hop.exchange.name,
        "type": hop.exchange.type,
        "cause": hop.cause,
        "bindings": hop.bindings,
        "matches": [{**_binding_to_dict(m.binding), "reason": m.reason, "note": m.note} for m in hop.matches],
        "near_misses": [
            {**_binding_to_dict(miss.binding), "reason": miss.reason, "closeness": round(miss.closeness, 3)}
            for miss in hop.near_misses
        ],
        "note": hop.note,
    }


def _binding_to_dict(binding: Binding) -> dict[str, Any]:
    return {
        "destination_type": binding.destination_type,
        "destination": binding.destination,
        "routing_key": binding.routing_key,
        "arguments": table_to_json(binding.arguments),
    }
