"""What a caller asks `route` and `route_job` for, checked on the driver before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from holtmq.routing import Router
from holtmq.spark.added_columns import QUEUE_AND_REASON, AddedColumns
from holtmq.spark.arguments import require_one_of, require_place, require_topology, require_type
from holtmq.topology import DEFAULT_VHOST, Topology

Unroutable: TypeAlias = Literal["keep", "drop", "only"]
UNROUTABLE: tuple[Unroutable, ...] = ("keep", "drop", "only")


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of the columns that contain the routing key, the exchange and the headers of a message."""

    routing_key: str = "routing_key"
    exchange: str = "exchange"
    headers: str = "headers"

    def __post_init__(self) -> None:
        for field in fields(self):
            require_type(f"columns.{field.name}", getattr(self, field.name), str, "the name of a column")


DEFAULT_COLUMNS = Columns()


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """The topology, where to find what it reads in the messages, and what to return."""

    topology: Topology
    vhost: str = DEFAULT_VHOST
    exchange: str | None = None
    """The exchange of all messages, or None if it is a column."""
    columns: Columns = DEFAULT_COLUMNS
    unroutable: Unroutable = "keep"
    added: AddedColumns = QUEUE_AND_REASON

    def __post_init__(self) -> None:
        require_topology("topology", self.topology)
        require_place(self.vhost, self.exchange)
        require_columns(self.columns)
        require_one_of("unroutable", self.unroutable, UNROUTABLE)

    def make_router(self) -> Router:
        """Return a router for the topology. Raise an error if no message can be published to the exchange of all messages."""
        router = Router(self.topology, self.vhost)
        if self.exchange is not None:
            router.require_publishable(self.exchange)
        return router


def require_columns(value: object) -> None:
    """Raise InvalidValueError if a parameter is not Columns."""
    require_type("columns", value, Columns, "Columns, such as Columns(routing_key='key')")
