"""The embedded library for asyncio: the same calls, made in a thread each, so that the event loop never waits for a disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from holtmq.body import Content
from holtmq.embedded.embedded_broker import EmbeddedBroker
from holtmq.embedded.message import Message, StateName
from holtmq.embedded.queue_handle import LEASE_S, Key, Patterns, QueueHandle
from holtmq.table import FieldValue

T = TypeVar("T")
WAIT_S = 1.0


class AsyncEmbeddedBroker:
    """`async with aio.open("shop.db") as mq`; what is not here is on `mq.embedded`, to be called in a thread."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        self._path, self._options = path, options
        self.embedded: EmbeddedBroker

    async def __aenter__(self) -> AsyncEmbeddedBroker:
        self.embedded = await asyncio.to_thread(EmbeddedBroker, self._path, **self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.embedded.close)

    async def declare_exchange(self, name: str, type: str = "direct", **options: Any) -> None:  # noqa: A002
        await asyncio.to_thread(self.embedded.declare_exchange, name, type, **options)

    async def declare_queue(self, name: str, **options: Any) -> AsyncQueueHandle:
        return AsyncQueueHandle(await asyncio.to_thread(self.embedded.declare_queue, name, **options))

    async def bind(self, queue: str, exchange: str, routing_key: Key = "", **options: Any) -> None:
        await asyncio.to_thread(self.embedded.bind, queue, exchange, routing_key, **options)

    async def unbind(self, queue: str, exchange: str, routing_key: Key = "", **options: Any) -> None:
        await asyncio.to_thread(self.embedded.unbind, queue, exchange, routing_key, **options)

    async def publish(
        self,
        content: Content,
        routing_key: Key = "",
        *,
        exchange: str = "",
        headers: Mapping[str, FieldValue] | None = None,
        **options: Any,
    ) -> int | None:
        return await asyncio.to_thread(
            self.embedded.publish, content, routing_key, exchange=exchange, headers=headers, **options
        )

    async def queue(self, name: str) -> AsyncQueueHandle:
        return AsyncQueueHandle(await asyncio.to_thread(self.embedded.queue, name))


class AsyncQueueHandle:
    def __init__(self, queue: QueueHandle) -> None:
        self.queue = queue

    async def put(self, content: Content, routing_key: Key = "", **options: Any) -> int:
        return await asyncio.to_thread(self.queue.put, content, routing_key, **options)

    async def put_many(self, messages: Iterable[tuple[Content, Key]]) -> range:
        return await asyncio.to_thread(self.queue.put_many, messages)

    async def pop(self, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> Message | None:
        """As `Queue.pop`. If this is cancelled while it waits, a message that it gets after all goes back at once."""
        return await _cancellable(
            lambda: self.queue.pop(pattern, lease_s=lease_s, wait_s=wait_s), lambda late: late.retry() if late else None
        )

    async def pop_many(self, most: int, pattern: Patterns = None, *, lease_s: float = LEASE_S) -> list[Message]:
        return await asyncio.to_thread(self.queue.pop_many, most, pattern, lease_s=lease_s)

    async def messages(self, pattern: Patterns = None, *, lease_s: float = LEASE_S) -> AsyncIterator[Message]:
        """Messages as they come, without end; each is yours to settle."""
        while True:
            message = await self.pop(pattern, lease_s=lease_s, wait_s=WAIT_S)
            if message is not None:
                yield message

    async def ack(self, message: Message) -> None:
        await asyncio.to_thread(message.ack)

    async def fail(self, message: Message) -> None:
        await asyncio.to_thread(message.fail)

    async def retry(self, message: Message, delay_s: float = 0) -> None:
        await asyncio.to_thread(message.retry, delay_s)

    async def size(self, state: StateName = "ready") -> int:
        return await asyncio.to_thread(self.queue.size, state)


def open(path: str | Path, **options: Any) -> AsyncEmbeddedBroker:  # noqa: A001  # as holtmq.open
    """As `holtmq.open`, for `async with`."""
    return AsyncEmbeddedBroker(path, **options)


async def _cancellable(work: Callable[[], T], undo: Callable[[T], None]) -> T:
    """Run work in a thread; if the caller is cancelled meanwhile, undo what comes of it."""
    loop = asyncio.get_running_loop()
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  # it is raised where the result is awaited
            done.set_exception(error)

    thread = loop.run_in_executor(None, run)
    try:
        await asyncio.shield(thread)
    except asyncio.CancelledError:
        done.add_done_callback(lambda finished: undo(finished.result()) if finished.exception() is None else None)
        raise
    return done.result()
