"""What the executors have to do: the topology, what of a message matters, and the columns to add."""

from __future__ import annotations

from dataclasses import dataclass

from holtmq.routing import Router
from holtmq.spark.added_columns import QUEUE_AND_REASON, AddedColumns
from holtmq.spark.packed_topology import PackedTopology
from holtmq.spark.routing_inputs import RoutingInputs
from holtmq.spark.routing_request import RoutingRequest, Unroutable


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """A request in the form in which it is sent to the executors."""

    topology: PackedTopology
    inputs: RoutingInputs
    """If no binding reads headers, they still matter when they add routing keys or cannot be parsed."""
    exchange: str | None = None
    """The exchange of all messages, or None if it is a column."""
    unroutable: Unroutable = "keep"
    """What tasks do that write the deliveries themselves. Otherwise the JVM drops rows."""
    added: AddedColumns = QUEUE_AND_REASON

    @classmethod
    def of(cls, request: RoutingRequest, router: Router) -> RoutingSpec:
        """Pack a request, whose topology this router has. Runs on the driver."""
        return cls(
            topology=PackedTopology.of(request.topology, request.vhost),
            inputs=RoutingInputs.of(router),
            exchange=request.exchange,
            added=request.added,
        )
