"""An exchange and routing key to which a channel publishes, cached with the resolved route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.routing.route import Entry

if TYPE_CHECKING:
    from holtmq.broker.traffic import Way


class Destination(Protocol):
    """A destination of messages: a queue, or the consumer of a direct reply."""

    name: str

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool: ...


class Publication:
    __slots__ = ("generation", "is_mandatory", "origin", "reads_headers", "way")

    def __init__(self, exchange: str, routing_key: str, *, is_mandatory: bool) -> None:
        self.origin = Origin(exchange, routing_key)
        self.is_mandatory = is_mandatory
        self.generation = -1
        """The vhost's generation when the route was resolved. In any other generation the route is stale."""
        self.way: Way
        self.reads_headers = False
