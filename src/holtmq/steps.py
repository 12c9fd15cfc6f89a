"""Long computations as generators: each yields after a small step, so that its caller can do something else in between.

The server and the HTTP API run them in slices (`management.slices`); everybody else runs them in one go with `complete`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Steps: TypeAlias = Generator[None, None, R]
"""A computation in steps, and what it returns in the end."""
RUN = 500
"""Number of items that are sorted in one step."""


def complete(steps: Steps[R]) -> R:
    """Run all steps and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: R = end.value
            return result


def nothing() -> Steps[None]:
    """Do nothing, in no step."""
    yield from ()


def one_by_one(items: Iterable[T]) -> Iterator[T]:
    """Yield the items of this moment, and hold none that was yielded before.

    If many of them are deleted meanwhile, each is freed in its step. A list would free all of them at once when it ends.
    """
    left = list(items)
    left.reverse()
    while left:
        yield left.pop()


def sort(items: Sequence[T], key: Callable[[T], Any], *, is_reversed: bool = False, most: int | None = None) -> Steps[list[T]]:
    """Return the first `most` items in order, or all of them. Like `sorted`, keep the order of items with equal keys."""
    runs = []
    for start in range(0, len(items), RUN):
        runs.append(sorted(((key(item), item) for item in items[start : start + RUN]), key=_first, reverse=is_reversed))
        yield
    found: list[T] = []
    for _, item in heapq.merge(*runs, key=_first, reverse=is_reversed):
        if len(found) == most:
            break
        found.append(item)
        yield
    return found


def _first(pair: tuple[Any, object]) -> Any:
    return pair[0]
