"""Kill a process at a chosen point of its work, instead of after some time."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_calls(work: Callable[[], Any]) -> int:
    """Do the work. Return the number of calls and returns in it, of Python functions and of built-in ones."""
    calls = itertools.count()

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        next(calls)

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return next(calls)


def die_at_call(number: int, work: Callable[[], Any]) -> None:
    """Do the work, and kill this process with SIGKILL at the given call or return in it."""
    calls = itertools.count(1)

    def on_event(frame: FrameType, event: str, argument: Any) -> None:
        if next(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)


def moments(calls: int, count: int) -> list[int]:
    """Return numbers of calls that are spread evenly over the work, and one that never comes.

    The number of calls differs a little from one process to the next, so that the last call may not be the last.
    """
    return [*sorted({max(1, calls * step // count) for step in range(1, count + 1)}), 2 * calls]
