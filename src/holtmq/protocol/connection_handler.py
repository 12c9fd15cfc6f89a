"""The seam between the protocol and the code around it: what a connection needs of its handler and of messages.

`server` implements `ConnectionHandler`. The broker's channels, consumers and messages satisfy the other protocols by their
attributes alone, so neither package imports the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from holtmq.table import FieldValue
from holtmq.wire.content import Content
from holtmq.wire.methods import BasicPublish, Method

if TYPE_CHECKING:
    from holtmq.protocol.server_channel import ServerChannel


class PublishTarget(Protocol):
    """An exchange, a routing key and flags to publish with, resolved once and called for every message."""

    @property
    def memory(self) -> int:
        """Bytes that the target takes."""

    def with_key(self, routing_key: str, address: bytes) -> PublishTarget:
        """Return the target with another routing key. `address` is that of messages with this exchange and key."""

    def publish(self, raw_properties: bytes, contents: Sequence[Content]) -> None:
        """Publish messages with the same raw properties and the same length of the body, given their contents."""


class AckTarget(Protocol):
    """The broker's side of a channel, limited to what the hot path calls directly."""

    def ack(self, tag: int, *, multiple: bool) -> None: ...
    def ack_each(self, tags: Sequence[int]) -> None:
        """Acknowledge several deliveries, in this order."""


class OriginOnWire(Protocol):
    """The exchange and routing key of a message, also in encoded form."""

    exchange: str
    routing_key: str
    address: bytes
    """Exchange, routing key and frame-end octet: the end of every `basic.deliver` frame."""


class MessageOnWire(Protocol):
    """The parts of a message that are sent to clients."""

    id: int
    content: Content

    @property
    def origin(self) -> OriginOnWire: ...


class FramesOnWire(Protocol):
    """The content of a message of a stream in three parts: before its offset, between offset and body, and after the body."""

    def __iter__(self) -> Iterator[bytes]: ...
    def content(self, offset: int, body: bytes) -> Content: ...


class RowOnWire(Protocol):
    """Messages of a stream that differ in offset and body, and whose bodies have one length."""

    @property
    def origin(self) -> OriginOnWire: ...
    @property
    def frames(self) -> FramesOnWire: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def bodies(self) -> Sequence[bytes]: ...


class ConsumerOnWire(Protocol):
    """The part of a consumer that is sent to clients."""

    tag: str


class ConnectionHandler(Protocol):
    """Carries out the requests of one client. An `AmqpError` raised here closes the channel or the connection."""

    @property
    def server_properties(self) -> Mapping[str, FieldValue]: ...
    @property
    def mechanisms(self) -> str:
        """The SASL mechanisms on offer, separated by spaces."""

    def has_output(self) -> None:
        """Note that output is waiting. Called once, until the output is taken."""

    def log_in(self, mechanism: str, response: bytes, client_properties: Mapping[str, FieldValue]) -> bool:
        """Return whether the client is logged in; False if the check goes on, which ends with `finish_login`."""

    def tuned(self, heartbeat_s: int) -> None: ...
    def enter(self, vhost: str) -> None: ...
    def open_channel(self, channel: ServerChannel) -> AckTarget:
        """Open the broker's side of a channel and return it."""

    def close_channel(self, channel: ServerChannel) -> None:
        """Close the broker's side of a channel. When a connection ends, its channels are closed with the session instead."""

    def publication(self, channel: ServerChannel, method: BasicPublish) -> PublishTarget:
        """Return the target that publishes messages as `method` requests."""

    def carry_out(self, channel: ServerChannel, method: Method) -> None: ...
    def update_secret(self, secret: bytes) -> None: ...
