"""An exchange and routing key to which a channel publishes, cached with the resolved route."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holtmq.broker.memory import MESSAGE_BYTES
from holtmq.broker.queued_message import Origin, QueuedMessage, known_properties
from holtmq.routing.route import Entry
from holtmq.wire.content import Content, Properties, body_of, make_content

if TYPE_CHECKING:
    from holtmq.broker.channel import Channel
    from holtmq.broker.traffic import Way

PUBLICATION_BYTES = 1500
DESTINATION_BYTES = 8


class Destination(Protocol):
    """A destination of messages: a queue, or the consumer of a direct reply."""

    name: str
    is_deleted: bool

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool: ...

    def takes_all(self, properties: Properties) -> bool:
        """Whether `put_all` takes messages with these properties: nothing has to be decided for each of them."""

    def put_all(self, messages: Sequence[QueuedMessage], size: int) -> None:
        """Add messages with the same properties and origin, all of which are taken. `size` is that of all bodies together."""

    def save_memory(self) -> None:
        """Leave messages to the file if they do not fit into the current window in memory."""


class Publication:
    """A handle for publishing messages with one exchange and routing key."""

    __slots__ = ("channel", "generation", "has_any_key", "is_mandatory", "origin", "reads_headers", "way")

    def __init__(self, channel: Channel, origin: Origin, *, is_mandatory: bool) -> None:
        self.channel = channel
        self.origin = origin
        self.is_mandatory = is_mandatory
        self.generation = -1
        """The vhost's generation when the route was resolved. In any other generation the route is stale."""
        self.way: Way
        self.reads_headers = False
        self.has_any_key = False
        """Whether messages with any other routing key go the same way."""

    @property
    def memory(self) -> int:
        """Bytes that the handle takes in a cache."""
        return PUBLICATION_BYTES + DESTINATION_BYTES * len(self.way.destinations)

    def with_key(self, routing_key: str, address: bytes) -> Publication:
        """Return the handle for another routing key. `address` is the encoded one of its origin."""
        channel = self.channel
        origin = Origin(self.origin.exchange, routing_key, address)
        publication = Publication(channel, origin, is_mandatory=self.is_mandatory)
        if self.has_any_key and self.generation == channel.vhost.generation:
            publication.way, publication.reads_headers = self.way, self.reads_headers
            publication.has_any_key, publication.generation = True, self.generation
        else:
            channel.ways.resolve(publication)
        return publication

    def publish(self, raw_properties: bytes, contents: Sequence[Content]) -> None:
        """Publish messages that differ in nothing but their body. On the hot path: see benchmarks/broker.py."""
        channel = self.channel
        if self.generation != channel.vhost.generation:
            channel.ways.resolve(self)
        known = channel.known_properties
        properties = known.get(raw_properties) or known_properties(raw_properties, known)
        way = self.way
        if not properties.is_plain:
            properties, way = channel.look_closer(self, properties)
            if properties.raw != raw_properties:
                contents = [make_content(properties.raw, body_of(content)) for content in contents]
        if channel.transaction is None:
            channel.put(self, properties, contents, way)
            return
        publish = partial(channel.put_committed, self, properties, contents, way)
        channel.transaction.add(publish, len(contents), len(way.destinations))
        channel.count_uncommitted(sum(map(len, contents)) + len(contents) * (len(properties.raw) + MESSAGE_BYTES))
