"""Turns: the broker works in turns on the event loop.

Everything that sockets receive in one iteration of the loop belongs to one turn. At the end of a turn, messages are sent to
consumers and confirms to publishers, and `after_turn` takes care of the clients that have output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from holtmq.broker.broker import Broker
from holtmq.clock import SteadyClock

if TYPE_CHECKING:
    from holtmq.server.client import Client

TURN_BYTES = 256 * 1024
"""A turn that has received this many bytes ends at once."""
TIMER_SLACK_S = 0.001
"""Added to timers: a loop that wakes up a little early would find nothing due."""


class Turns:
    """Begins and ends turns, and begins one when a message expires or becomes available."""

    def __init__(self, broker: Broker, clock: SteadyClock, after_turn: Callable[[list[Client]], None]) -> None:
        self.is_open = False
        self._broker = broker
        self._clock = clock
        self._after_turn = after_turn
        self._loop = asyncio.get_running_loop()
        self._bytes = 0
        self._to_flush: list[Client] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._beginning = broker.internal_errors.contain("beginning a turn", "all queues")
        self._ending = broker.internal_errors.contain("ending a turn", "all queues")

    def begin(self) -> None:
        """Begin a turn, unless one is open. It ends when the loop has handled all pending events."""
        if self.is_open:
            return
        self.is_open = True
        self._bytes = 0
        self._loop.call_soon(self.end)
        with self._beginning:
            self._broker.begin(self._clock.now_ms())

    def received(self, size: int) -> None:
        """Count received bytes, and end a turn that has received too many: libuv may read a socket many times in a row."""
        self._bytes += size
        if self._bytes >= TURN_BYTES:
            self.end()

    def flush_later(self, client: Client) -> None:
        """Send the output of a client when the turn ends."""
        self._to_flush.append(client)
        self.begin()

    def forget(self, client: Client) -> None:
        """Drop a client that is disconnected."""
        if client in self._to_flush:
            self._to_flush.remove(client)

    def end(self) -> None:
        """End the turn, if one is open: send messages to consumers, and send what clients are to receive."""
        if not self.is_open:
            return
        self.is_open = False
        with self._ending:
            self._broker.end()
        to_flush, self._to_flush = self._to_flush, []
        try:
            self._after_turn(to_flush)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._broker.internal_errors.report("sending output", "all clients")
            self._to_flush += to_flush
        self._set_timer()
        if self._broker.awake:
            self._loop.call_soon(self.begin)

    def _set_timer(self) -> None:
        """Schedule a turn for the next time at which the broker has something to do."""
        due = self._broker.next_timer
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0, due - self._clock.now_ms()) / 1000 + TIMER_SLACK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.begin()
