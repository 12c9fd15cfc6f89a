"""A broker that notes its longest turn: python -m benchmarks.ticking FILE serve …

A task wakes up every millisecond and asks how much processor time the event loop's thread has used since. The longest span
is what a client had to wait at least. Unlike a round trip, it does not depend on what else the machine is doing. It is kept in
FILE as a number of seconds, which whoever measures sets back to 0.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

from holtmq.cli.main import main
from holtmq.config import Config
from holtmq.server import run
from holtmq.server.server import Server

NUMBER = struct.Struct("d")
TICK_S = 0.001


class Longest:
    """The number in the file."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(NUMBER.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), NUMBER.size)

    @property
    def seconds(self) -> float:
        (seconds,) = NUMBER.unpack(self._memory[:])
        return float(seconds)

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._memory[:] = NUMBER.pack(value)


async def tick(longest: Longest) -> None:
    """Note the longest span of processor time between two ticks."""
    before = time.thread_time()
    while True:
        await asyncio.sleep(TICK_S)
        now = time.thread_time()
        if now - before > longest.seconds:
            longest.seconds = now - before
        before = now


def serve_ticking(path: Path, arguments: list[str]) -> int:
    """Run the holtmq command with a ticking event loop."""
    serve = run._serve

    async def ticking(config: Config, on_ready: Callable[[Server], None], on_waiting: Callable[[str], None]) -> None:
        ticks = asyncio.create_task(tick(Longest(path)))
        await serve(config, on_ready, on_waiting)
        ticks.cancel()

    run._serve = ticking
    return main(arguments)


if __name__ == "__main__":
    sys.exit(serve_ticking(Path(sys.argv[1]), sys.argv[2:]))
