"""Heartbeats (AMQP 0-9-1 §4.2.7): show an idle client that the server is alive, and detect a client that is not."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from holtmq.wire.frames import HEARTBEAT_FRAME

if TYPE_CHECKING:
    from holtmq.server.client import Client

log = logging.getLogger(__name__)

MISSED_HEARTBEATS = 2
"""A client is disconnected when nothing arrived for more than this many intervals."""


class Heartbeat:
    """Checks twice per heartbeat interval whether anything was sent and received."""

    def __init__(self, client: Client, transport: asyncio.Transport, interval_s: float) -> None:
        self._client = client
        self._transport = transport
        self._period_s = interval_s / 2
        self._reads, self._writes = client.reads, client.writes
        self._idle_periods = 0
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._period_s, self._check)

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        client = self._client
        if client.writes == self._writes and not (client.connection.has_output or client.is_sending):
            self._transport.write(HEARTBEAT_FRAME)
        # While the server does not read from a client, it cannot tell whether the client is alive.
        is_idle = client.reads == self._reads and client.is_reading
        self._idle_periods = self._idle_periods + 1 if is_idle else 0
        if self._idle_periods > MISSED_HEARTBEATS * 2:
            idle_s = self._period_s * self._idle_periods
            log.warning("closing %s: missed heartbeats, nothing received for %g s", client.name, idle_s)
            self._transport.abort()
            return
        self._reads, self._writes = client.reads, client.writes
        self._timer = self._loop.call_later(self._period_s, self._check)
