"""Clients of a broker under faults. One thread drives all of them, so that the ledger sees one order of events.

No call waits: what the broker does not read stays in the client, and what it does not send is not there yet.
"""

from __future__ import annotations

import random
import select
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self

from holtmq.protocol.client_connection import ClientConnection, ClientEvent, ClientOptions, Delivery, ReceivedMethod, Settlement
from holtmq.table import EMPTY_TABLE, FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import Method
from tests.deadline import PATIENCE_S
from tests.faults.ledger import Found, Ledger, Mark, ViolationError

SYNC_QUEUE = "sync"
"""Takes the messages whose confirms tell that the acknowledgements before them are on disk."""
CHUNK = 1 << 16
MOST_UNACKNOWLEDGED = 65_535
"""The largest prefetch count."""


class Client:
    """A connection with one channel."""

    def __init__(self, port: int, name: str, channel: int = 1) -> None:
        self.name = name
        self.channel = channel
        self.is_lost = False
        self.is_reading = True
        self._protocol = ClientConnection(ClientOptions())
        self._output = b""
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        deadline = time.monotonic() + PATIENCE_S
        while not self._protocol.is_open:
            if time.monotonic() > deadline:
                raise ViolationError(f"{name} waited {PATIENCE_S:g} s for its connection to open")
            if self.is_lost:
                raise ConnectionResetError(f"{name} lost its connection before it was open")
            self.exchange()
            self.wait()
        self.call(wire.ChannelOpen(), wire.ChannelOpenOk)

    def send(self, method: Method) -> None:
        self._output += method_frame(self.channel, method)

    def call(self, method: Method, reply: type[Method]) -> Method:
        """Send a method and wait for its reply. Whatever else arrives meanwhile is handled as usual."""
        self.send(method)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for event in self.exchange():
                if isinstance(event, ReceivedMethod) and isinstance(event.method, reply):
                    return event.method
            if self.is_lost:
                raise ConnectionResetError(f"{self.name} lost its connection while waiting for {reply.label()}")
            self.wait()
        raise ViolationError(f"{self.name} waited {PATIENCE_S:g} s for {reply.label()}")

    def publish(self, exchange: str, key: str, mark: Mark) -> None:
        properties = encode_properties({"delivery_mode": 2 if mark.is_persistent else 1, "priority": mark.priority})
        self._output += method_frame(self.channel, wire.BasicPublish(0, exchange, key, False, False))
        self._output += on_channel(make_content(properties, mark.body()), self.channel, self._protocol.frame_max)

    def exchange(self) -> list[ClientEvent]:
        """Send and receive what can be without waiting. Handle what arrived and return it."""
        if self.is_lost:
            return []
        try:
            with suppress(BlockingIOError):
                while self.is_reading and not self.is_lost:
                    data = self.socket.recv(CHUNK)
                    self._protocol.receive(data)
                    if not data:
                        self.lose()
            self._output += self._protocol.take_output()
            with suppress(BlockingIOError):
                while self._output and not self.is_lost:
                    self._output = self._output[self.socket.send(self._output[:CHUNK]) :]
        except OSError:
            self.lose()
        events = self._protocol.take_events()
        for event in events:
            if isinstance(event, ReceivedMethod) and isinstance(event.method, wire.ChannelClose | wire.ConnectionClose):
                self.closed(event.method)
            self.handle(event)
        return events

    def handle(self, event: ClientEvent) -> None:
        """Handle what arrived."""

    def closed(self, close: wire.ChannelClose | wire.ConnectionClose) -> None:
        if close.reply_code != 320:  # the broker is stopped
            raise ViolationError(f"the broker closed the channel of {self.name}: {close.reply_code} {close.reply_text}")
        self.lose()

    def wait(self, seconds: float = 0.02) -> None:
        """Wait until something can be sent or received."""
        if not self.is_lost:
            select.select([self.socket], [self.socket] if self._output else [], [], seconds)

    @property
    def is_idle(self) -> bool:
        """Whether nothing that the client did is still open."""
        return True

    def lose(self) -> None:
        """Take note that the connection is gone."""
        self.is_lost = True
        self.socket.close()

    def cut(self, rng: random.Random) -> None:
        """End the connection without a word: with or without a reset, and perhaps in the middle of a frame."""
        if self.is_lost:
            return
        if self._output and rng.random() < 0.7:
            with suppress(OSError):
                self.socket.send(self._output[: rng.randint(1, len(self._output))])
        if rng.random() < 0.5:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.lose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.lose()

    def close(self) -> None:
        """End the connection as a client should. The broker has then done everything that was asked."""
        self.is_reading = True
        try:
            self.call(wire.ChannelClose(200, "", 0, 0), wire.ChannelCloseOk)
        except ConnectionError:
            return
        self.lose()


class Publisher(Client):
    """Publishes with confirms. Its number is that of its channel, and part of every message."""

    def __init__(self, port: int, number: int, ledger: Ledger, channel: int = 1) -> None:
        self._ledger = ledger
        self._number = number
        self._sequence = 0
        self._tag = 0
        self._open: dict[int, tuple[Mark, Sequence[str]]] = {}
        self.published: dict[int, tuple[Mark, Sequence[str]]] = {}
        """What each of its delivery tags stands for."""
        super().__init__(port, f"publisher {number}", channel)
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)

    def next_mark(self, rng: random.Random) -> Mark:
        self._sequence += 1
        size = rng.choice((0, 20, 200, 2000, 2000, 20_000))
        return Mark(self._number, self._sequence, rng.randint(0, 3), rng.random() < 0.8, size)

    def put(self, mark: Mark, exchange: str, key: str, queues: Sequence[str]) -> None:
        self._tag += 1
        self._open[self._tag] = self.published[self._tag] = mark, queues
        self._ledger.publish(mark, queues)
        self.publish(exchange, key, mark)

    def handle(self, event: ClientEvent) -> None:
        if isinstance(event, Settlement):
            for tag in [tag for tag in self._open if tag == event.tag or (event.multiple and tag < event.tag)]:
                mark, queues = self._open.pop(tag)
                if not event.is_accepted:
                    raise ViolationError(f"the broker refused {mark}")
                self._ledger.confirm(mark, queues)

    @property
    def is_idle(self) -> bool:
        return self.is_lost or not self._open


class TransactionPublisher(Client):
    """Publishes in transactions, each of which takes effect as a whole or not at all."""

    def __init__(self, port: int, number: int, ledger: Ledger, channel: int = 1) -> None:
        self._ledger = ledger
        self._number = number
        self._sequence = 0
        self._open: list[tuple[Mark, Sequence[str]]] = []
        self.commits: list[list[tuple[Mark, Sequence[str]]]] = []
        super().__init__(port, f"transactions {number}", channel)
        self.call(wire.TxSelect(), wire.TxSelectOk)

    def commit(self, routes: Iterable[tuple[str, str, Sequence[str]]]) -> None:
        """Publish a persistent message on each route and commit."""
        for exchange, key, queues in routes:
            self._sequence += 1
            mark = Mark(self._number, self._sequence, size=100)
            self._ledger.publish(mark, queues, group=self._number * 1_000_000 + self._sequence // 100)
            self._open.append((mark, queues))
            self.publish(exchange, key, mark)
        self.commits.append(list(self._open))
        self._sequence = (self._sequence // 100 + 1) * 100
        self.send(wire.TxCommit())

    def handle(self, event: ClientEvent) -> None:
        if isinstance(event, ReceivedMethod) and isinstance(event.method, wire.TxCommitOk):
            for mark, queues in self._open:
                self._ledger.confirm(mark, queues)
            self._open.clear()

    @property
    def is_idle(self) -> bool:
        return self.is_lost or not self._open


class Consumer(Client):
    """Consumes from a queue, and settles in its own time what was delivered to it."""

    def __init__(self, port: int, name: str, queue: str, prefetch: int, ledger: Ledger, channel: int = 1) -> None:
        self._ledger = ledger
        self.queue = queue
        self.held: dict[int, Mark] = {}
        self._settled: list[Mark] = []
        self._syncing: dict[int, list[Mark]] = {}
        self._tag = 0
        self.settlements: dict[int, str | None] = {}
        """The tags of the deliveries that it settled, with the queue for dead letters if it rejected them."""
        self.synced: dict[int, list[Mark]] = {}
        """What each of its own delivery tags says to be on disk."""
        super().__init__(port, name, channel)
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)
        if prefetch:
            self.call(wire.BasicQos(0, prefetch, False), wire.BasicQosOk)
        self.call(wire.BasicConsume(0, queue, "", False, False, False, False, {}), wire.BasicConsumeOk)

    def handle(self, event: ClientEvent) -> None:
        if isinstance(event, Delivery):
            mark = self._ledger.deliver(self.queue, self.name, event.body, is_redelivered=event.redelivered)
            self.held[event.tag] = mark
        elif isinstance(event, Settlement):
            for tag in [tag for tag in self._syncing if tag <= event.tag]:
                for mark in self._syncing.pop(tag):
                    self._ledger.sync(self.queue, mark)

    def acknowledge(self, tags: Sequence[int], *, is_multiple: bool = False) -> None:
        """Acknowledge messages, either each or all up to the last."""
        if is_multiple:
            tags = [tag for tag in self.held if tag <= tags[-1]]
            self.send(wire.BasicAck(tags[-1], True))
        for tag in tags:
            mark = self.held.pop(tag)
            self.settlements[tag] = None
            self._ledger.settle(self.queue, mark)
            self._settled.append(mark)
            if not is_multiple:
                self.send(wire.BasicAck(tag, False))

    def reject(self, tag: int, dead_letters: str) -> None:
        mark = self.held.pop(tag)
        self.settlements[tag] = dead_letters
        self._ledger.settle(self.queue, mark, dead_letters)
        self._settled.append(mark)
        self.send(wire.BasicReject(tag, False))

    def requeue(self, tag: int) -> None:
        del self.held[tag]
        self.send(wire.BasicNack(tag, False, True))

    def sync(self) -> None:
        """Publish a message whose confirm tells that all acknowledgements so far are on disk."""
        if self._settled:
            self._tag += 1
            self._syncing[self._tag] = self.synced[self._tag] = self._settled
            self._settled = []
            self.publish("", SYNC_QUEUE, Mark(0, self._tag))

    @property
    def is_idle(self) -> bool:
        return self.is_lost or not self._syncing


class Auditor(Client):
    """Reads whole queues. Nobody else may be connected."""

    def __init__(self, port: int) -> None:
        self._found: list[Found] = []
        self._has_read = False
        super().__init__(port, "auditor")

    def read(self, queues: Iterable[str]) -> dict[str, list[Found]]:
        return {queue: self._read(queue) for queue in queues}

    def read_streams(self, streams: Iterable[str]) -> dict[str, list[Found]]:
        """Read whole streams. Read queues before, without this prefetch."""
        self.call(wire.BasicQos(0, MOST_UNACKNOWLEDGED, False), wire.BasicQosOk)
        return {stream: self._read(stream, {"x-stream-offset": "first"}) for stream in streams}

    def _read(self, queue: str, arguments: Mapping[str, FieldValue] = EMPTY_TABLE) -> list[Found]:
        self._found = []
        counted = self._count(queue)
        self.call(wire.BasicConsume(0, queue, queue, False, False, False, False, arguments), wire.BasicConsumeOk)
        deadline = time.monotonic() + PATIENCE_S
        while len(self._found) < counted:
            if time.monotonic() > deadline or self.is_lost:
                raise ViolationError(f"{queue} counts {counted} messages, but delivered {len(self._found)}")
            self.wait()
            self.exchange()
        self.call(wire.BasicCancel(queue), wire.BasicCancelOk)
        return self._found

    def _count(self, queue: str) -> int:
        """Return the number of messages in a queue, once the connections that were cut are forgotten."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            declared = self.call(wire.QueueDeclare(0, queue, True, False, False, False, False, {}), wire.QueueDeclareOk)
            assert isinstance(declared, wire.QueueDeclareOk)
            if declared.consumer_count == 0:
                return declared.message_count
            if time.monotonic() > deadline:
                raise ViolationError(f"{queue} still has {declared.consumer_count} consumers, whose connections were cut")

    def handle(self, event: ClientEvent) -> None:
        if isinstance(event, Delivery):
            self._has_read = True
            self._found.append(Found(event.body, event.redelivered))

    def take_all(self) -> None:
        """Acknowledge everything that was read, and wait until that is on disk."""
        if self._has_read:
            self.send(wire.BasicAck(0, True))
        self.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)
        self.publish("", SYNC_QUEUE, Mark(0, 0))
        deadline = time.monotonic() + PATIENCE_S
        while not any(isinstance(event, Settlement) for event in self.exchange()):
            if time.monotonic() > deadline or self.is_lost:
                raise ViolationError("the auditor's confirm does not come")
            self.wait()
