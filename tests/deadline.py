"""The only place where a test waits for something that it is not told about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Long enough for a machine that is busy with other work. Only a test that fails waits this long."""
POLL_S = 0.01


def eventually(condition: Callable[[], T], what: str, *, patience_s: float = PATIENCE_S) -> T:
    """Return the first true value of a condition. Fail if it is not true before the deadline."""
    deadline = time.monotonic() + patience_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {patience_s:g} s for {what}; last seen: {value!r}"
        time.sleep(POLL_S)
    return value


def last_seen(look: Callable[[], T], expected: T) -> T:
    """Return what is seen as soon as it is what is expected, or else at the deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while (seen := look()) != expected and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return seen
