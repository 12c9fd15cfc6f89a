"""Decisions read from the bytes of an input, so that a fuzzer that mutates bytes changes one decision at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """The bytes of an input, read from the start. After their end, every decision is the first of its options."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._data)

    def number(self, below: int = 256) -> int:
        """Return a number below a limit of at most 256."""
        if self.is_over:
            return 0
        self._at += 1
        return self._data[self._at - 1] % below

    def flag(self) -> bool:
        return self.number() % 2 == 1

    def pick(self, options: Sequence[T]) -> T:
        return options[self.number(len(options))]

    def take(self, size: int) -> bytes:
        """Return the next bytes, or fewer at the end."""
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.take(max(0, len(self._data) - self._at))


def slices(data: bytes, size: int) -> list[bytes]:
    """Cut data into slices of a size; 0 stands for a single slice."""
    return [data[at : at + size] for at in range(0, len(data), size)] if size else [data]
