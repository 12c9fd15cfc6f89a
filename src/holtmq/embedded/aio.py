"""The embedded library for asyncio. Each call runs in a thread, so that the event loop never waits for the disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import overload

from holtmq.body import Content
from holtmq.embedded.embedded_broker import EmbeddedBroker
from holtmq.embedded.follower import Follower
from holtmq.embedded.message import Message, StateName
from holtmq.embedded.queue_handle import LEASE_S, Key, Patterns, QueueHandle
from holtmq.embedded.stream_handle import Start, StreamHandle
from holtmq.embedded.stream_record import StreamRecord
from holtmq.store.opening import TIMEOUT_S
from holtmq.store.records import Durability
from holtmq.store.stream_port import StreamExtent
from holtmq.table import FieldValue
from holtmq.topology import DEFAULT_EXCHANGE, DestinationType

WAIT_S = 1.0
READ_AT_ONCE = 1000
"""Messages of a stream that are read in one thread."""


class AsyncEmbeddedBroker:
    """An open HoltMQ file for asyncio: `async with holtmq.aio.open("shop.db") as mq`.

    Methods are those of `EmbeddedBroker`. The rest of its methods are available on `embedded`, to be called in a thread.
    """

    def __init__(
        self, path: str | Path, *, durability: Durability, timeout_s: float, clock: Callable[[], float] | None
    ) -> None:
        self._path = path
        self._durability = durability
        self._timeout_s = timeout_s
        self._clock = clock
        self.embedded: EmbeddedBroker

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        self.embedded = await asyncio.to_thread(
            EmbeddedBroker, self._path, durability=self._durability, timeout_s=self._timeout_s, clock=self._clock
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.embedded.close)

    async def declare_exchange(
        self,
        name: str,
        type: str = "direct",  # noqa: A002  # AMQP's word
        *,
        internal: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Create an exchange, as `EmbeddedBroker.declare_exchange`."""
        await asyncio.to_thread(
            self.embedded.declare_exchange, name, type, internal=internal, auto_delete=auto_delete, arguments=arguments
        )

    async def declare_queue(
        self,
        name: str,
        *,
        max_length: int | None = None,
        max_length_bytes: int | None = None,
        max_attempts: int | None = None,
        max_priority: int | None = None,
        ttl_ms: int | None = None,
        dead_letter_queue: str | None = None,
        retention_s: float = 0,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> AsyncQueueHandle:
        """Create a queue, as `EmbeddedBroker.declare_queue`."""
        queue = await asyncio.to_thread(
            self.embedded.declare_queue, name, max_length=max_length, max_length_bytes=max_length_bytes,
            max_attempts=max_attempts, max_priority=max_priority, ttl_ms=ttl_ms, dead_letter_queue=dead_letter_queue,
            retention_s=retention_s, arguments=arguments,
        )  # fmt: skip
        return AsyncQueueHandle(queue)

    async def declare_stream(
        self,
        name: str,
        *,
        max_age_s: int | None = None,
        max_bytes: int | None = None,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> AsyncStreamHandle:
        """Create a stream, as `EmbeddedBroker.declare_stream`."""
        stream = await asyncio.to_thread(
            self.embedded.declare_stream, name, max_age_s=max_age_s, max_bytes=max_bytes, arguments=arguments
        )
        return AsyncStreamHandle(stream)

    async def bind(
        self,
        queue: str,
        exchange: str,
        routing_key: Key = "",
        *,
        arguments: Mapping[str, FieldValue] | None = None,
        metadata: Mapping[str, FieldValue] | None = None,
        destination_type: DestinationType = "queue",
    ) -> None:
        """Bind a queue or an exchange to an exchange, as `EmbeddedBroker.bind`."""
        await asyncio.to_thread(
            self.embedded.bind, queue, exchange, routing_key,
            arguments=arguments, metadata=metadata, destination_type=destination_type,
        )  # fmt: skip

    async def unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: Key = "",
        *,
        arguments: Mapping[str, FieldValue] | None = None,
        destination_type: DestinationType = "queue",
    ) -> None:
        """Remove a binding, as `EmbeddedBroker.unbind`."""
        await asyncio.to_thread(
            self.embedded.unbind, queue, exchange, routing_key, arguments=arguments, destination_type=destination_type
        )

    async def publish(
        self,
        content: Content,
        routing_key: Key = "",
        *,
        exchange: str = DEFAULT_EXCHANGE,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        delay_s: float = 0,
    ) -> int | None:
        """Publish a message to an exchange, as `EmbeddedBroker.publish`."""
        return await asyncio.to_thread(
            self.embedded.publish, content, routing_key,
            exchange=exchange, headers=headers, priority=priority, ttl_ms=ttl_ms, delay_s=delay_s,
        )  # fmt: skip

    async def queue(self, name: str) -> AsyncQueueHandle:
        """Return a handle to a queue, which is created if it does not exist."""
        return AsyncQueueHandle(await asyncio.to_thread(self.embedded.queue, name))

    async def stream(self, name: str) -> AsyncStreamHandle:
        """Return a handle to a stream, which is created without limits if it does not exist."""
        return AsyncStreamHandle(await asyncio.to_thread(self.embedded.stream, name))


class AsyncQueueHandle:
    """A queue of an open file for asyncio. The synchronous handle is `queue`."""

    def __init__(self, queue: QueueHandle) -> None:
        self.queue = queue

    async def put(
        self,
        content: Content,
        routing_key: Key = "",
        *,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        delay_s: float = 0,
    ) -> int:
        """Add a message and return its id, as `QueueHandle.put`."""
        return await asyncio.to_thread(
            self.queue.put, content, routing_key, headers=headers, priority=priority, ttl_ms=ttl_ms, delay_s=delay_s
        )

    async def put_many(self, messages: Iterable[tuple[Content, Key]]) -> Sequence[int]:
        """Add messages, all or none of them, as `QueueHandle.put_many`."""
        return await asyncio.to_thread(self.queue.put_many, messages)

    async def pop(self, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> Message | None:
        """Lock and return a message, as `QueueHandle.pop`.

        A cancellation ends the wait. A message that was claimed too late is given back.
        """
        popped = await self.pop_many(1, pattern, lease_s=lease_s, wait_s=wait_s)
        return popped[0] if popped else None

    async def pop_many(
        self, most: int, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0
    ) -> list[Message]:
        """Lock and return up to `most` messages, as `QueueHandle.pop_many`. A cancellation is as with `pop`."""
        given_up, popped = threading.Event(), Future[list[Message]]()

        def pop() -> None:
            try:
                popped.set_result(self.queue.pop_until(given_up, most, pattern, lease_s=lease_s, wait_s=wait_s))
            except BaseException as error:  # noqa: BLE001  # raised where the result is awaited
                popped.set_exception(error)

        def give_back(_: object) -> None:
            if popped.exception() is None and popped.result():
                self.queue.give_back(popped.result())

        try:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, pop))
        except asyncio.CancelledError:
            given_up.set()
            self.queue.wake()
            popped.add_done_callback(give_back)
            raise
        return popped.result()

    async def messages(self, pattern: Patterns = None, *, lease_s: float = LEASE_S) -> AsyncIterator[Message]:
        """Yield messages as they arrive, without end. The caller settles each of them."""
        while True:
            message = await self.pop(pattern, lease_s=lease_s, wait_s=WAIT_S)
            if message is not None:
                yield message

    async def ack(self, message: Message) -> None:
        """Acknowledge a message."""
        await asyncio.to_thread(message.ack)

    async def ack_many(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages in one transaction, as `QueueHandle.ack_many`."""
        await asyncio.to_thread(self.queue.ack_many, messages)

    async def give_back(self, messages: Iterable[Message]) -> None:
        """Return messages as if they had not been popped, as `QueueHandle.give_back`."""
        await asyncio.to_thread(self.queue.give_back, messages)

    async def fail(self, message: Message) -> None:
        """Mark a message as failed."""
        await asyncio.to_thread(message.fail)

    async def reject(self, message: Message) -> None:
        """Reject a message: it is dead-lettered, or dropped."""
        await asyncio.to_thread(message.reject)

    async def retry(self, message: Message, delay_s: float = 0) -> None:
        """Return a message to the queue, available after `delay_s`."""
        await asyncio.to_thread(message.retry, delay_s)

    async def size(self, state: StateName = "ready") -> int:
        """Return the number of messages in a state."""
        return await asyncio.to_thread(self.queue.size, state)


class AsyncStreamHandle:
    """A stream of an open file for asyncio. The synchronous handle is `stream`."""

    def __init__(self, stream: StreamHandle) -> None:
        self.stream = stream

    @overload
    async def append(self, content: Content, routing_key: Key = "", *, headers: None = None) -> int: ...
    @overload
    async def append(
        self, content: Content, routing_key: Key = "", *, headers: Mapping[str, FieldValue] | None
    ) -> int | None: ...
    async def append(
        self, content: Content, routing_key: Key = "", *, headers: Mapping[str, FieldValue] | None = None
    ) -> int | None:
        """Append a message and return its offset, as `StreamHandle.append`."""
        return await asyncio.to_thread(self.stream.append, content, routing_key, headers=headers)

    async def append_many(self, messages: Iterable[tuple[Content, Key]]) -> range:
        """Append messages, all or none of them, as `StreamHandle.append_many`."""
        return await asyncio.to_thread(self.stream.append_many, messages)

    async def read(
        self, start: Start = "first", pattern: Patterns = None, *, limit: int | None = None
    ) -> AsyncIterator[StreamRecord]:
        """Yield the messages from a place in the stream up to its present end, as `StreamHandle.read`."""
        reading = await asyncio.to_thread(self.stream.read, start, pattern, limit=limit)
        while some := await asyncio.to_thread(lambda: list(islice(reading, READ_AT_ONCE))):
            for record in some:
                yield record

    def follow(
        self,
        name: str | None = None,
        pattern: Patterns = None,
        *,
        start: Start = "first",
        wait_s: float | None = None,
        auto_commit: bool = True,
    ) -> AsyncFollower:
        """Return an asynchronous iterator, as `StreamHandle.follow`. It looks for its place when it is first asked."""
        begin = partial(self.stream.follow, name, pattern, start=start, wait_s=wait_s, auto_commit=auto_commit)
        return AsyncFollower(begin, self.stream.wake)

    async def commit(self, name: str, message: StreamRecord | int) -> None:
        """Move a position past a message, as `StreamHandle.commit`."""
        await asyncio.to_thread(self.stream.commit, name, message)

    async def seek(self, name: str, start: Start) -> int:
        """Move a position to any place of the stream, as `StreamHandle.seek`."""
        return await asyncio.to_thread(self.stream.seek, name, start)

    async def forget(self, name: str) -> None:
        """Remove a position, as `StreamHandle.forget`."""
        await asyncio.to_thread(self.stream.forget, name)

    async def position(self, name: str) -> int | None:
        """Return the offset of the next message for a name, or None if the name is new."""
        return await asyncio.to_thread(self.stream.position, name)

    async def positions(self) -> dict[str, int]:
        """Return the offset of the next message for each name."""
        return await asyncio.to_thread(self.stream.positions)

    async def extent(self) -> StreamExtent:
        """Return what the stream holds, as `StreamHandle.extent`."""
        return await asyncio.to_thread(self.stream.extent)

    async def size(self) -> int:
        """Return the number of messages."""
        return await asyncio.to_thread(self.stream.size)

    async def last_publishing_id(self, publisher: str) -> int | None:
        """Return the highest `x-publishing-id` of a publisher so far, or None if it has none."""
        return await asyncio.to_thread(self.stream.last_publishing_id, publisher)


class AsyncFollower(AsyncIterator[StreamRecord]):
    """An asynchronous iterator over the messages of a stream, as returned by `AsyncStreamHandle.follow`.

    A cancellation ends the wait for a message, and loses none. Each follower waits in a thread of its own: the threads that
    asyncio shares are few, and other calls need them.
    """

    def __init__(self, begin: Callable[[], Follower], wake: Callable[[], None]) -> None:
        self._begin = begin
        self._wake = wake
        self._follower: Follower | None = None
        self._thread = ThreadPoolExecutor(1, "holtmq-follower")

    async def __anext__(self) -> StreamRecord:
        given_up = threading.Event()
        looking = asyncio.get_running_loop().run_in_executor(self._thread, self._look, given_up)
        try:
            record = await asyncio.shield(looking)
        except asyncio.CancelledError:
            given_up.set()
            self._wake()
            looking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody else asks for it
            raise
        if record is None:
            raise StopAsyncIteration
        assert self._follower is not None
        self._follower.take()
        return record

    def _look(self, given_up: threading.Event) -> StreamRecord | None:
        self._follower = self._follower or self._begin()
        return self._follower.look(given_up)


def open(  # noqa: A001  # as holtmq.open
    path: str | Path,
    *,
    durability: Durability = "full",
    timeout_s: float = TIMEOUT_S,
    clock: Callable[[], float] | None = None,
) -> AsyncEmbeddedBroker:
    """Open a HoltMQ file, as `holtmq.open`, for `async with`."""
    return AsyncEmbeddedBroker(path, durability=durability, timeout_s=timeout_s, clock=clock)
