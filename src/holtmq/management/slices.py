"""The slicing loop: work that may take long is done in slices, and the broker serves its clients between two of them.

All slices of a process take turns: however many requests are under way, the event loop is free after one slice. Values that
nothing else can change are better computed by a thread (`beside_the_loop`): Python passes on its interpreter lock every few
milliseconds. A single call into C keeps it, so a thread does not help with encoding or sorting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from time import perf_counter
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from holtmq.steps import Steps

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
SLICE_S = 0.005
"""Time after which a slice ends. Measured in benchmarks/stalls.py."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
"""For each event loop: the lock that lets one slice run at a time, in the order of their requests."""


async def in_slices(work: Iterable[T], before: Callable[[], None] | None = None) -> AsyncIterator[list[T]]:
    """Take what an iterator produces, slice by slice. Call `before` at the start of each, for example to begin a turn."""
    items = iter(work)
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    is_over = False
    while not is_over:
        async with turn:
            if before is not None:
                before()
            found, is_over = _take(items)
            await asyncio.sleep(0)  # the next slice, of whatever request, is for the next iteration of the loop
        yield found


def _take(items: Iterator[T]) -> tuple[list[T], bool]:
    """Return the items of one slice, and whether they were the last."""
    found: list[T] = []
    deadline = perf_counter() + SLICE_S
    for item in items:
        found.append(item)
        if perf_counter() > deadline:
            return found, False
    return found, True


async def collect(work: Iterable[T]) -> list[T]:
    """Return all that an iterator produces."""
    found: list[T] = []
    async for some in in_slices(work):
        found += some
    return found


async def finish(steps: Steps[R], before: Callable[[], None] | None = None) -> R:
    """Run a computation in steps to its end and return its result."""
    results: list[R] = []

    def work() -> Iterator[None]:
        results.append((yield from steps))

    async for _ in in_slices(work(), before):
        pass
    return results[0]


async def beside_the_loop(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in a thread. It must not touch the state of the broker."""
    return await asyncio.to_thread(function, *args, **kwargs)
