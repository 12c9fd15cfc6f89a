"""One way to publish: to an exchange, by a key, on a channel; remembered with its route for the messages that follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.routing.route import Entry

if TYPE_CHECKING:
    from holtmq.broker.channel import Channel
    from holtmq.broker.traffic import Way


class Destination(Protocol):
    """What a message can be put into: a queue, or the one who waits for a reply."""

    name: str

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool: ...


class Publication:
    __slots__ = ("channel", "generation", "is_mandatory", "origin", "reads_headers", "way")

    def __init__(self, channel: Channel, exchange: str, routing_key: str, *, is_mandatory: bool) -> None:
        self.channel = channel
        self.origin = Origin(exchange, routing_key)
        self.is_mandatory = is_mandatory
        self.generation = -1
        """The state of the vhost that the route was found in; in another one it must be found again."""
        self.way: Way
        self.reads_headers = False
