"""Housekeeping: once a second, count memory exactly, clear caches while memory is short, and give freed memory back.

It also begins a turn, so that whatever an internal error left undone is done within a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from holtmq.allocator import give_back_freed_memory
from holtmq.broker.broker import Broker
from holtmq.server.back_pressure import BackPressure
from holtmq.server.turns import Turns

if TYPE_CHECKING:
    from holtmq.server.client import Client

INTERVAL_S = 1.0
GIVE_BACK_BYTES = 16 * 1024 * 1024
"""Freed memory is given back to the system when at least this much was freed since it was last given back."""
GIVE_BACK_INTERVALS = 10
"""The number of intervals without a new maximum after which memory is given back: not in the middle of a burst."""


class Housekeeping:
    """The timer, and the memory that was in use since freed memory was last given back."""

    def __init__(self, broker: Broker, turns: Turns, pressure: BackPressure, clients: Collection[Client]) -> None:
        self._broker = broker
        self._turns = turns
        self._pressure = pressure
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._most = 0
        self._calm_intervals = 0
        self._timer = self._loop.call_later(INTERVAL_S, self._keep_house)

    def stop(self) -> None:
        self._timer.cancel()

    def _keep_house(self) -> None:
        self._timer = self._loop.call_later(INTERVAL_S, self._keep_house)
        self._turns.begin()
        self._broker.chores.retry()
        memory = self._broker.memory
        for client in self._clients:
            if memory.is_short:
                client.connection.forget_targets()
            self._pressure.count(client)
        self._pressure.check_readers()
        if memory.is_short:
            self._broker.forget_routes()
        self._give_back()

    def _give_back(self) -> None:
        memory = self._broker.memory
        if memory.most > self._most:
            self._most, self._calm_intervals = memory.most, 0
        self._calm_intervals += 1
        memory.most = 0
        if self._calm_intervals > GIVE_BACK_INTERVALS:
            if self._most - memory.total >= GIVE_BACK_BYTES:
                self._loop.run_in_executor(None, give_back_freed_memory)
            self._most, self._calm_intervals = memory.total, 0
