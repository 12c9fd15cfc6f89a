"""Publishes in bulk, and forgets a message only when the broker has confirmed it."""

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
"""Messages on their way without a confirm."""
PIECE_BYTES = 128 * 1024
RETRIES = 8
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
CONFIRM_TIMEOUT_S = 60.0
METHODS_KEPT = 10_000


class PublishError(HoltmqError):
    """Messages that the broker would not take, however often they were sent."""


class Outgoing(NamedTuple):
    exchange: str
    routing_key: str
    raw_properties: bytes
    body: bytes


@dataclass(slots=True)
class ReceivedConfirms:
    """What became of the messages."""

    confirmed: int = 0
    returned: int = 0
    """Mandatory messages that reached no queue; confirmed all the same."""
    retried: int = 0
    first_return: str | None = None


class Publisher:
    """Connects when there is something to publish, again where the connection breaks, and sends what was not confirmed."""

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
        self._waiting: dict[int, Outgoing] = {}
        """What was sent and is not confirmed, by its number on this connection, in order."""
        self._again: list[Outgoing] = []
        self._next_tag = 1
        self.published = ReceivedConfirms()

    def publish(self, messages: Iterable[Outgoing]) -> None:
        """Send; this may return before all are confirmed."""
        piece: list[Outgoing] = []
        size = 0
        for message in messages:
            piece.append(message)
            size += len(message.body) + 200
            if size >= PIECE_BYTES or len(piece) >= self._window:
                self._send(piece)
                piece, size = [], 0
        self._send(piece)

    def flush(self) -> None:
        """Wait until the broker has taken everything."""
        while self._waiting or self._again:
            self._attempt(self._settle_some)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _send(self, messages: list[Outgoing]) -> None:
        if not messages:
            return
        self._pace(len(messages))
        while len(self._waiting) + len(messages) > self._window and self._waiting:
            self._attempt(self._settle_some)
        self._again += messages
        self._attempt(self._send_again)

    def _pace(self, count: int) -> None:
        if self._rate:
            now = time.monotonic()
            self._started = self._started or now
            self._sent += count
            time.sleep(max(0.0, self._started + self._sent / self._rate - now))

    def _attempt(self, step: Callable[[BlockingConnection], None]) -> None:
        """Do something that may find the connection broken; if it does, connect anew and send what was not confirmed."""
        try:
            step(self._connected())
            return
        except ConnectionLostError as error:
            self.close()
            self._again = [*self._waiting.values(), *self._again]
            self.published.retried += len(self._waiting)
            self._waiting.clear()
            self._failures += 1
            if self._failures > self._retries:
                raise PublishError(
                    f"{len(self._again)} messages are not confirmed after {self._retries} retries: {error}"
                ) from error
        time.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._failures - 1)))

    def _connected(self) -> BlockingConnection:
        if self._connection is None:
            connection = self._connect()
            connection.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)
            self._connection, self._next_tag = connection, 1
        return self._connection

    def _send_again(self, connection: BlockingConnection) -> None:
        while self._again:
            batch, self._again = self._again[: self._window], self._again[self._window :]
            data = b"".join([self._spell(message, connection.frame_max) for message in batch])
            for message in batch:
                self._waiting[self._next_tag] = message
                self._next_tag += 1
            connection.write(data)
            if self._again:
                self._settle_some(connection)

    def _settle_some(self, connection: BlockingConnection) -> None:
        """Wait for the broker's word on some messages; send again what it refused."""
        if self._again and not self._waiting:
            self._send_again(connection)
        if not connection.settlements and not connection.receive(CONFIRM_TIMEOUT_S):
            raise ConnectionLostError(f"no confirm from the broker for {CONFIRM_TIMEOUT_S:g} s")
        settlements, connection.settlements = connection.settlements, []
        refused = []
        for tag, multiple, is_taken in settlements:
            tags = list(_up_to(self._waiting, tag)) if multiple else [tag]
            settled = [self._waiting.pop(number) for number in tags]
            if is_taken:
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
            self._again = refused + self._again
            self._send_again(connection)

    def _note_returns(self, connection: BlockingConnection) -> None:
        if connection.returns:
            self.published.returned += len(connection.returns)
            self.published.first_return = self.published.first_return or connection.returns[0]
            connection.returns = []

    def _spell(self, message: Outgoing, frame_max: int) -> bytes:
        method = self._methods.get(message[:2])
        if method is None:
            if len(self._methods) >= METHODS_KEPT:
                self._methods.clear()
            publish = wire.BasicPublish(0, message.exchange, message.routing_key, self._mandatory)
            method = self._methods[message[:2]] = method_frame(CHANNEL, publish)
        content = make_content(message.raw_properties, message.body, CHANNEL)
        return method + (content if len(message.body) < frame_max - 8 else on_channel(content, CHANNEL, frame_max))


def _up_to(waiting: dict[int, Outgoing], tag: int) -> Iterable[int]:
    """The numbers up to one, which are the first in order."""
    for number in waiting:
        if number > tag:
            return
        yield number
