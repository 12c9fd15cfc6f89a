"""Calls of Java after an interrupt, which need a connection of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from py4j.protocol import Py4JNetworkError

ATTEMPTS = 3


def in_new_thread(action: Callable[[], object]) -> None:
    """Call Java from another thread: this one's connection may still wait for the answer to an interrupted call.

    An interrupt may break further connections, so a call that gets no answer is repeated. It must be one that may be.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(action).result()
        except Py4JNetworkError:
            if attempt == ATTEMPTS:
                raise
        else:
            return
