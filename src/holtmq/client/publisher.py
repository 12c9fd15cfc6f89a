"""Publishing in bulk: a message is kept until the broker has confirmed it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection, Connect, ConnectionLostError
from holtmq.errors import HoltmqError
from holtmq.wire import methods as wire
from holtmq.wire.content import make_content, on_channel
from holtmq.wire.frames import method_frame

WINDOW = 4_000
"""Maximum number of unconfirmed messages."""
PIECE_BYTES = 128 * 1024
PACE_S = 0.1
"""With a maximum rate, messages are sent in pieces for this time, rather than in bursts."""
RETRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CONFIRM_TIMEOUT_S = 60.0
METHODS_KEPT = 10_000


class PublishError(HoltmqError):
    """The broker did not confirm messages, even after all retries."""


class Outgoing(NamedTuple):
    """A message to publish."""

    exchange: str
    routing_key: str
    """The routing key. Bytes that are not UTF-8 are escaped as in a `Delivery`."""
    raw_properties: bytes
    body: bytes


@dataclass(slots=True)
class ReceivedConfirms:
    """Counts of what happened to published messages."""

    confirmed: int = 0
    returned: int = 0
    """Mandatory messages that reached no queue. The broker confirms them as well."""
    retried: int = 0
    first_return: str | None = None


class Publisher:
    """Connects on the first publish, reconnects when the connection breaks, and resends unconfirmed messages."""

    def __init__(
        self, connect: Connect, *, mandatory: bool = True, window: int = WINDOW, retries: int = RETRIES, rate: float = 0
    ) -> None:
        self._connect = connect
        self._mandatory = mandatory
        self._window = window
        self._retries = retries
        self._rate = rate
        self._started = 0.0
        self._sent = 0
        self._failures = 0
        self._connection: BlockingConnection | None = None
        self._methods: dict[tuple[str, str], bytes] = {}
        self._unconfirmed: dict[int, Outgoing] = {}
        """Unconfirmed messages by their delivery tag on this connection, in order."""
        self._to_send: list[Outgoing] = []
        self._next_tag = 1
        self.published = ReceivedConfirms()

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Send messages. They may not all be confirmed when this returns; see `flush`."""
        most = min(self._window, max(1, int(self._rate * PACE_S))) if self._rate else self._window
        piece: list[Outgoing] = []
        size = 0
        for message in messages:
            piece.append(message)
            size += len(message.body) + 200
            if size >= PIECE_BYTES or len(piece) >= most:
                self._send(piece)
                piece, size = [], 0
        self._send(piece)

    def flush(self) -> None:
        """Wait until the broker has confirmed all messages."""
        while self._unconfirmed or self._to_send:
            self._attempt(self._receive_confirms)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, messages: list[Outgoing]) -> None:
        if not messages:
            return
        self._pace(len(messages))
        while len(self._unconfirmed) + len(messages) > self._window and self._unconfirmed:
            self._attempt(self._receive_confirms)
        self._to_send += messages
        self._attempt(self._send_all)

    def _pace(self, count: int) -> None:
        if self._rate:
            now = time.monotonic()
            self._started = self._started or now
            self._sent += count
            time.sleep(max(0.0, self._started + self._sent / self._rate - now))

    def _attempt(self, step: Callable[[BlockingConnection], None]) -> None:
        """Run a step. If the connection breaks, reconnect on the next attempt and resend unconfirmed messages."""
        try:
            step(self._connected())
            return
        except ConnectionLostError as error:
            self.close()
            self._to_send = [*self._unconfirmed.values(), *self._to_send]
            self.published.retried += len(self._unconfirmed)
            self._unconfirmed.clear()
            self._failures += 1
            if self._failures > self._retries:
                raise PublishError(
                    f"{len(self._to_send)} messages are not confirmed after {self._retries} retries: {error}"
                ) from error
        time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1)))

    def _connected(self) -> BlockingConnection:
        if self._connection is None:
            connection = self._connect()
            connection.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)
            self._connection, self._next_tag = connection, 1
        return self._connection

    def _send_all(self, connection: BlockingConnection) -> None:
        while self._to_send:
            batch, self._to_send = self._to_send[: self._window], self._to_send[self._window :]
            data = b"".join([self._encode(message, connection.frame_max) for message in batch])
            for message in batch:
                self._unconfirmed[self._next_tag] = message
                self._next_tag += 1
            connection.write(data)
            if self._to_send:
                self._receive_confirms(connection)

    def _receive_confirms(self, connection: BlockingConnection) -> None:
        """Wait for at least one confirm, and resend the messages that the broker refused."""
        if self._to_send and not self._unconfirmed:
            self._send_all(connection)
        if not connection.settlements and not connection.receive(CONFIRM_TIMEOUT_S):
            raise ConnectionLostError(f"expected a confirm from the broker, got nothing for {CONFIRM_TIMEOUT_S:g} s")
        settlements, connection.settlements = connection.settlements, []
        refused = []
        for tag, is_multiple, is_accepted, _ in settlements:
            tags = list(_up_to(self._unconfirmed, tag)) if is_multiple else [tag]
            settled = [self._unconfirmed.pop(number) for number in tags]
            if is_accepted:
                self.published.confirmed += len(settled)
                self._failures = 0
            else:
                refused += settled
        self._note_returns(connection)
        if refused:
            self._failures += 1
            if self._failures > self._retries:
                raise PublishError(f"the broker refused {len(refused)} messages (nack) after {self._retries} retries")
            self.published.retried += len(refused)
            time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1)))
            self._to_send = refused + self._to_send
            self._send_all(connection)

    def _note_returns(self, connection: BlockingConnection) -> None:
        if connection.returns:
            self.published.returned += len(connection.returns)
            self.published.first_return = self.published.first_return or connection.returns[0]
            connection.returns = []

    def _encode(self, message: Outgoing, frame_max: int) -> bytes:
        method = self._methods.get(message[:2])
        if method is None:
            if len(self._methods) >= METHODS_KEPT:
                self._methods.clear()
            publish = wire.BasicPublish(0, message.exchange, message.routing_key, self._mandatory)
            method = self._methods[message[:2]] = method_frame(CHANNEL, publish, "surrogateescape")
        content = make_content(message.raw_properties, message.body, CHANNEL)
        return method + (content if len(message.body) < frame_max - 8 else on_channel(content, CHANNEL, frame_max))


def _up_to(unconfirmed: dict[int, Outgoing], tag: int) -> Iterable[int]:
    """Yield the tags up to and including `tag`. They come first, because tags are in ascending order."""
    for number in unconfirmed:
        if number > tag:
            return
        yield number
