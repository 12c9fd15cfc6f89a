"""Waiting in a request for what the broker reads from its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from holtmq.broker.channel import Channel
from holtmq.errors import StoreError

T = TypeVar("T")
LONGEST_WAIT_S = 10.0


async def answer_of(ask: Callable[[Callable[[T | StoreError], None]], None]) -> T:
    """Ask the broker for something that it may have to read, and return the answer."""
    future: asyncio.Future[T | StoreError] = asyncio.get_running_loop().create_future()

    def answer(found: T | StoreError) -> None:
        if not future.done():
            future.set_result(found)

    ask(answer)
    try:
        found = await asyncio.wait_for(future, LONGEST_WAIT_S)
    except TimeoutError:
        raise StoreError(f"the store has not answered for {LONGEST_WAIT_S:g} s") from None
    if isinstance(found, StoreError):
        raise found
    return found


async def when_read(channel: Channel, queue: str) -> None:
    """Wait until another attempt may get the next message of a queue."""

    def ask(then: Callable[[bool | StoreError], None]) -> None:
        channel.when_read(queue, lambda: then(True))  # the answer says nothing else

    if channel.is_reading(queue):  # it may have been read since the last attempt, which was in an earlier turn
        await answer_of(ask)
