"""A client for load: publishes are encoded in large pieces, and deliveries are counted by their length.

The handshake and all calls go through `protocol.ClientConnection`. While a load runs, the client reads raw bytes instead:
decoding every delivery would cost the generator as much as the broker, and the generator would then be what is measured. All
messages of a run have the same length on the wire, so that counting needs no parsing; routing keys are padded for this.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, TypeVar, cast

from holtmq.client.address import Address
from holtmq.errors import AmqpError, HoltmqError
from holtmq.protocol.client_connection import CAPABILITIES, ClientConnection, ClientOptions, ReceivedMethod
from holtmq.table import EMPTY_TABLE, FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content, on_channel
from holtmq.wire.frames import BASIC, FRAME_END, FRAME_START, METHOD, OVERHEAD, method_frame
from holtmq.wire.methods import Method

M = TypeVar("M", bound=Method)
UNDERSTOOD = {name: value for name, value in CAPABILITIES.items() if name != "connection.blocked"}
"""Without connection.blocked, whose methods would arrive between the confirms."""
CHANNEL = 1
REPLY_TIMEOUT_S = 60.0
PIECE_BYTES = 32 * 1024
PIECES_KEPT = 1000
SETTLE = Struct(">BHIHHQBB")
SETTLE_SIZE = 13
MOMENT = Struct(">Q")
"""A message starts with the time at which it was sent, in nanoseconds."""
PUBLISH_KEY_AT = len(method_frame(CHANNEL, wire.BasicPublish(0, "", ""))) - 2
"""Where the routing key of a basic.publish starts, if the exchange has no name: before the octets of flags and frame end."""
METHOD_AT = FRAME_START.size
DELIVER = Struct(">HH").pack(BASIC, 60)
ACK, NACK = 80, 120
REQUEUE = 2
"""The flag of a basic.nack that returns the message to its queue. With 1, the flag `multiple`, it is the whole octet."""
KEY_HEADER = "key"
"""The header that contains the routing key, for headers exchanges."""
UNIQUE = "00000000"
"""The last word of a routing key, where each message has one of its own."""


class LoadError(HoltmqError):
    """The broker did not do what a load needs."""


class LoadClient(asyncio.Protocol):
    """An asyncio connection with one channel. After the calls that prepare a load, `read_raw` takes over its input."""

    def __init__(self, options: ClientOptions) -> None:
        self._protocol = ClientConnection(options)
        self._transport: asyncio.Transport
        self._opened = asyncio.Event()
        self._replies: asyncio.Queue[Method | None] = asyncio.Queue()
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._waiting_for: asyncio.Event | None = None
        self._raw: Callable[[bytes], None] | None = None
        self._failure: Exception | None = None

    @classmethod
    async def connect(cls, address: Address) -> LoadClient:
        """Connect to a broker, log in and open a channel."""
        if address.tls is not None:
            raise LoadError(f"expected an address without TLS, got {address}")
        options = ClientOptions(address.user, address.password, address.vhost, properties={"capabilities": UNDERSTOOD})
        loop = asyncio.get_running_loop()
        try:
            _, client = await loop.create_connection(lambda: cls(options), address.host, address.port)
        except OSError as error:
            raise LoadError(f"no broker at {address.host}:{address.port}: {error}") from error
        await client.call(wire.ChannelOpen(), wire.ChannelOpenOk)
        return client

    @property
    def frame_max(self) -> int:
        return self._protocol.frame_max

    async def call(self, method: Method, reply: type[M]) -> M:
        """Send a method and wait for its reply."""
        try:
            await asyncio.wait_for(self._opened.wait(), REPLY_TIMEOUT_S)
            if self._failure is None:
                self._transport.write(method_frame(CHANNEL, method))
            answer = await asyncio.wait_for(self._replies.get(), REPLY_TIMEOUT_S)
        except TimeoutError:
            raise LoadError(f"expected {reply.label()} from the broker, got nothing for {REPLY_TIMEOUT_S:g} s") from None
        if answer is None:
            raise LoadError(f"expected {reply.label()} from the broker, but {self._failure}")
        if not isinstance(answer, reply):
            raise LoadError(f"expected {reply.label()} from the broker, got {answer}")
        return answer

    def read_raw(self, read: Callable[[bytes], None]) -> None:
        """Pass all further input to `read`, undecoded."""
        self._raw = read
        read(self._protocol.take_rest())

    async def write(self, data: bytes) -> None:
        """Send encoded frames when the socket has room for them."""
        await self._can_write.wait()
        self._raise_failure()
        self._transport.write(data)

    def write_soon(self, data: bytes) -> None:
        """Send encoded frames without waiting."""
        self._transport.write(data)

    async def wait_for(self, event: asyncio.Event) -> None:
        """Wait for an event that input sets, unless the connection fails."""
        self._waiting_for = event
        await event.wait()
        self._raise_failure()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise LoadError(str(self._failure))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._protocol.take_output())

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(LoadError(f"the broker closed the connection: {error}" if error else "the broker closed the connection"))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        if self._raw is not None:
            self._raw(data)
            return
        try:
            self._protocol.receive(data)
        except AmqpError as error:
            self._fail(error)
            self._transport.abort()
            return
        self._transport.write(self._protocol.take_output())
        for event in self._protocol.take_events():
            if isinstance(event, ReceivedMethod) and isinstance(event.method, wire.ConnectionClose):
                self._fail(LoadError(f"the broker closed the connection: {event.method.reply_text}"))
            elif isinstance(event, ReceivedMethod):
                self._replies.put_nowait(event.method)
        if self._protocol.is_open:
            self._opened.set()

    def _fail(self, error: Exception) -> None:
        """Remember the first error and wake up all waiters."""
        self._failure = self._failure or error
        self._replies.put_nowait(None)
        self._can_write.set()
        self._opened.set()
        if self._waiting_for is not None:
            self._waiting_for.set()


class LoadProducer:
    """Publishes as fast as the broker accepts, or at a given rate, with a limited number of unconfirmed messages."""

    def __init__(
        self,
        client: LoadClient,
        exchange: str,
        keys: list[str],
        properties: Sequence[Mapping[str, Any]],
        size: int,
        *,
        has_unique_keys: bool = False,
        has_key_header: bool = False,
    ) -> None:
        self._client = client
        self._size = size
        self._messages = []
        self._unique_at = 0
        """Where a routing key's own word is, or 0 if keys repeat."""
        body = bytes(size)
        for number in range(math.lcm(len(keys), len(properties))):
            key, some = keys[number % len(keys)], properties[number % len(properties)]
            if has_unique_keys:
                key = f"{key}.{UNIQUE}"
                self._unique_at = PUBLISH_KEY_AT + len(exchange) + len(key) - len(UNIQUE)
            raw_properties = encode_properties({**some, "headers": {KEY_HEADER: key}} if has_key_header else some)
            content = on_channel(make_content(raw_properties, body, CHANNEL), CHANNEL, client.frame_max)
            self._messages.append(method_frame(CHANNEL, wire.BasicPublish(0, exchange, key)) + content)
        self._body_at = len(self._messages[0]) - size - 1
        self._batch = max(1, PIECE_BYTES // len(self._messages[0]))
        self._pieces: dict[int, bytes] = {}
        self.sent = 0
        self.confirmed = 0
        self.refused = 0
        self.latencies_ns: list[int] = []
        """Time from a write to the confirm of its last message."""
        self._unconfirmed: deque[tuple[int, int]] = deque()
        """The last message of each write that is not confirmed, and when it was written."""
        self._rest = b""
        self._news = asyncio.Event()

    async def confirm(self) -> None:
        """Switch on publisher confirms."""
        await self._client.call(wire.ConfirmSelect(), wire.ConfirmSelectOk)
        self._client.read_raw(self._receive_confirms)

    def close(self) -> None:
        self._client.close()

    def _receive_confirms(self, data: bytes) -> None:
        data = self._rest + data
        length = SETTLE.size
        end = len(data) // length * length
        for at in range(0, end, length):
            kind, _, size, class_id, method_id, tag, _, _ = SETTLE.unpack_from(data, at)
            if (kind, size, class_id) != (METHOD, SETTLE_SIZE, BASIC):
                raise LoadError(f"expected a confirm from the broker, got {data[at : at + length]!r}")
            if method_id == NACK:
                self.refused += 1
            self.confirmed = max(self.confirmed, tag)
        self._rest = data[end:]
        now, unconfirmed = time.perf_counter_ns(), self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= self.confirmed:
            self.latencies_ns.append(now - unconfirmed.popleft()[1])
        self._news.set()

    async def run(self, *, until: float, limit: int, rate: float, ahead: int) -> None:
        """Publish until a time or a number of messages. At most `ahead` messages are unconfirmed; 0 means unlimited.

        Return when all messages are confirmed.
        """
        start = time.perf_counter()
        while time.perf_counter() < until and self.sent < limit:
            count = min(self._batch, limit - self.sent)
            if ahead:
                await self._wait_for_confirm(self.sent - ahead + 1)
                count = min(count, ahead - (self.sent - self.confirmed))
            if rate:
                due = int((time.perf_counter() - start) * rate) - self.sent
                if due <= 0:
                    await asyncio.sleep(0.0005)
                    continue
                count = min(count, due)
            await self._client.write(self._timed(count) if rate else self._untimed(count))
            self.sent += count
            if ahead:
                self._unconfirmed.append((self.sent, time.perf_counter_ns()))
            await asyncio.sleep(0)
        if ahead:
            await self._wait_for_confirm(self.sent)

    async def _wait_for_confirm(self, number: int) -> None:
        while self.confirmed < number:
            self._news.clear()
            await self._client.wait_for(self._news)

    def _timed(self, count: int) -> bytes:
        """Encode the next messages, each with the time in its body if the body is long enough."""
        messages = self._next(self.sent, count)
        if self._size < MOMENT.size:
            return b"".join(messages)
        moment, at = MOMENT.pack(time.time_ns()), self._body_at
        return b"".join([part for message in messages for part in (message[:at], moment, message[at + MOMENT.size :])])

    def _untimed(self, count: int) -> bytes:
        """Return the next messages from a cache of encoded pieces: at full speed this must cost next to nothing."""
        if count != self._batch or self._unique_at:
            return b"".join(self._next(self.sent, count))
        start = self.sent % len(self._messages)
        piece = self._pieces.get(start)
        if piece is None:
            piece = b"".join(self._next(start, count))
            if len(self._pieces) < PIECES_KEPT:
                self._pieces[start] = piece
        return piece

    def _next(self, start: int, count: int) -> list[bytes]:
        messages, number, at = self._messages, len(self._messages), self._unique_at
        found = [messages[n % number] for n in range(start, start + count)]
        if not at:
            return found
        after = at + len(UNIQUE)
        return [b"%b%08d%b" % (some[:at], n, some[after:]) for n, some in enumerate(found, start)]


class LoadConsumer:
    """Counts deliveries, acknowledges them, and measures their latency."""

    def __init__(
        self, client: LoadClient, size: int, *, is_auto_ack: bool, ack_every: int, requeue_every: int, is_timed: bool
    ) -> None:
        self._client = client
        self._size = size
        self._is_auto_ack = is_auto_ack
        self._ack_every = ack_every
        self._requeue_every = requeue_every
        self._is_timed = is_timed and size >= MOMENT.size
        self._queues: list[str] = []
        self._arguments: Mapping[str, FieldValue] = {}
        self._length = 0
        self._rest = b""
        self._pending = 0
        """Number of bytes of an incomplete delivery."""
        self._delivered = 0
        self.received = 0
        """Number of messages received, without those that were returned to their queue."""
        self._acked = 0
        self._started = 0.0
        self._paused_at = 0.0
        self._paused_s = 0.0
        self.reading_s = 0.0
        """Time from the start to the last message, without pauses."""
        self.latencies_ns: list[int] = []

    async def prepare(self, queues: list[str], prefetch: int, arguments: Mapping[str, FieldValue] = EMPTY_TABLE) -> None:
        """Set the prefetch count. `start` then begins to consume these queues, with these arguments."""
        self._queues, self._arguments = queues, arguments
        if prefetch:
            await self._client.call(wire.BasicQos(0, prefetch, False), wire.BasicQosOk)

    def start(self) -> None:
        """Consume the queues, without waiting for replies, which deliveries would follow at once."""
        self._client.read_raw(self._receive)
        self._started = time.perf_counter()
        methods = (
            wire.BasicConsume(0, queue, f"c{number:06}", no_ack=self._is_auto_ack, no_wait=True, arguments=self._arguments)
            for number, queue in enumerate(self._queues)
        )
        self._client.write_soon(b"".join([method_frame(CHANNEL, method) for method in methods]))

    def pause(self) -> None:
        """Stop reading."""
        self._paused_at = time.perf_counter()
        self._client.pause_reading()

    def resume(self) -> None:
        self._paused_s += time.perf_counter() - self._paused_at
        self._client.resume_reading()

    def close(self) -> None:
        self._client.close()

    def _receive(self, data: bytes) -> None:
        if not self._length or self._is_timed:
            data = self._rest + data
            if not self._length and not self._measure(data):
                self._rest = data
                return
            size = len(data)
        else:
            size = self._pending + len(data)
        count, self._pending = divmod(size, self._length)
        if self._is_timed:
            self._rest = data[len(data) - self._pending :] if self._pending else b""
            self._read_times(data, count)
        if count:
            self._delivered += count
            self.received = self._delivered - (self._delivered // self._requeue_every if self._requeue_every else 0)
            self.reading_s = time.perf_counter() - self._started - self._paused_s
            if not self._is_auto_ack:
                self._ack()

    def _read_times(self, data: bytes, count: int) -> None:
        now, first = time.time_ns(), self._length - self._size - 1
        sent_at = (MOMENT.unpack_from(data, first + n * self._length)[0] for n in range(count))
        self.latencies_ns += [now - moment for moment in sent_at]

    def _ack(self) -> None:
        every, requeue_every, pack = self._ack_every, self._requeue_every, SETTLE.pack
        tags = range(self._acked + every, self._delivered + 1, every)
        if not tags:
            return
        multiple = every > 1
        acks = [
            pack(METHOD, CHANNEL, SETTLE_SIZE, BASIC, NACK, tag, REQUEUE | multiple, FRAME_END)
            if requeue_every and tag % requeue_every == 0
            else pack(METHOD, CHANNEL, SETTLE_SIZE, BASIC, ACK, tag, multiple, FRAME_END)
            for tag in tags
        ]
        self._client.write_soon(b"".join(acks))
        self._acked = tags[-1]

    def _measure(self, data: bytes) -> bool:
        """Find the length of a delivery, which is that of its method, header and body frames together."""
        if len(data) < METHOD_AT + len(DELIVER):
            return False
        if data[METHOD_AT : METHOD_AT + len(DELIVER)] != DELIVER:
            raise LoadError(f"expected a delivery from the broker, got {data[:200]!r}")
        at, frames, body = 0, 0, 0
        while frames < 2 or body < self._size:
            if len(data) - at < FRAME_START.size:
                return False
            _, _, size = FRAME_START.unpack_from(data, at)
            at += size + OVERHEAD
            frames += 1
            body += size if frames > 2 else 0
        if body != self._size:
            raise LoadError(f"expected a delivery with a body of {self._size} bytes, got {body}")
        self._length = at
        return True
