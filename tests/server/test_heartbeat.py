"""Heartbeats cost nothing in the long run."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from holtmq.server.heartbeat import Heartbeat


class Stub:
    """A client that is read from all the time, and its transport."""

    has_output = False
    is_reading = True
    is_sending = False
    name = "a client"

    def __init__(self) -> None:
        self.connection = self
        self.writes = 0
        self.sent = 0

    @property
    def reads(self) -> int:
        return self.sent

    def write(self, data: bytes) -> None:
        self.sent += 1


def test_a_timer_that_fired_is_not_kept() -> None:
    async def run() -> int:
        stub = cast("Any", Stub())
        heartbeat = Heartbeat(stub, stub, 0.001)
        while stub.sent < 100:
            await asyncio.sleep(0.001)
        waiting = cast("Any", asyncio.get_running_loop())._scheduled  # noqa: SLF001
        timers = [timer for timer in waiting if not timer.cancelled()]
        heartbeat.stop()
        return len(timers)

    assert asyncio.run(run()) <= 2
