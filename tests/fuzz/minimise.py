"""A small set of inputs that reaches the same code of HoltMQ as a large one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import holtmq

Jump: TypeAlias = tuple[CodeType, int, int]
"""A step from one line of a function to another."""
SOURCE = str(Path(holtmq.__file__).parent)


def minimise(target: Callable[[bytes], None], inputs: Iterable[bytes]) -> list[bytes]:
    """Return inputs that together make every jump that the given ones make. Short ones are preferred."""
    chosen, known = [], set[Jump]()
    for data in sorted(set(inputs), key=lambda each: (len(each), each)):
        with _recorded() as jumps:
            target(data)
        if not jumps <= known:
            known |= jumps
            chosen.append(data)
    return chosen


@contextmanager
def _recorded() -> Iterator[set[Jump]]:
    """Record the jumps that the block makes within HoltMQ."""
    jumps: set[Jump] = set()

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        last = 0

        def on_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            jumps.add((frame.f_code, last, frame.f_lineno))
            last = frame.f_lineno
            return on_line

        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield jumps
    finally:
        sys.settrace(before)
