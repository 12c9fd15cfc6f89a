"""Reads of the store: whoever needs something from it asks, and gets it later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holtmq.errors import StoreError

T = TypeVar("T")


class StoreReads:
    """Reads for the queues of a broker. There is always time here: each is done at once."""

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        """Read, and pass on the result, or the error that prevents it. `read` may run in another thread."""
        answer: T | StoreError
        try:
            answer = read()
        except StoreError as error:
            answer = error
        then(answer)
