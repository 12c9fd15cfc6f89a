"""Back-pressure: publishers are blocked while the disk fails or lags behind, and throttled while consumers lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from holtmq.broker.broker import Broker
from holtmq.store.sqlite.batch_journal import SqliteJournal

if TYPE_CHECKING:
    from holtmq.server.client import Client

JOURNAL_BYTES = 32 * 1024 * 1024
"""Publishers are blocked above this many unwritten bytes and unblocked at half of it."""
THROTTLE_S = 0.02
"""Longest pause of throttled publishers before they may send more."""


class BackPressure:
    """Decides which publishers are blocked or throttled. Neither is read from until the reason is gone."""

    def __init__(self, broker: Broker, journal: SqliteJournal, clients: Collection[Client]) -> None:
        self.blocked_for: str | None = None
        """Why publishers are blocked: `disk`, `journal`, or None if they are not."""
        self._broker = broker
        self._journal = journal
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._throttled: list[Client] = []
        self._throttle_timer: asyncio.TimerHandle | None = None

    def update(self) -> None:
        """Block, throttle or resume publishers, depending on the unwritten bytes and on the queues."""
        size = self._journal.size
        if size > JOURNAL_BYTES:
            self.block("journal")
        elif size < JOURNAL_BYTES // 2:
            self.unblock("journal")
        if self._broker.is_crowded:
            self._throttle()
        elif self._throttled:
            self._end_throttle()

    def block(self, reason: str) -> None:
        """Block all publishers. A failing disk takes precedence over any other reason."""
        if self.blocked_for is None:
            self.blocked_for = reason
            for client in self._clients:
                self.admit_publisher(client)
        elif reason == "disk":
            self.blocked_for = reason

    def unblock(self, reason: str) -> None:
        """Unblock all publishers if `reason` is why they are blocked."""
        if self.blocked_for == reason:
            self.blocked_for = None
            for client in self._clients:
                client.resume_reading()
                client.connection.unblock()

    def admit_publisher(self, client: Client) -> None:
        """Block a client if it publishes while publishers are blocked."""
        if self.blocked_for is not None and client.handler.is_publisher:
            client.connection.block(f"low on {self.blocked_for}")
            client.pause_reading()

    def _throttle(self) -> None:
        """Pause clients that only publish for a moment, so that consumers catch up.

        Consumers limit the throughput here, so this costs nothing. Without it the queue would outgrow its window in memory,
        and its messages would have to be written to disk and read back.
        """
        if not self._throttled and self.blocked_for is None:
            self._throttled = [client for client in self._clients if client.handler.only_publishes]
            for client in self._throttled:
                client.pause_reading()
            self._throttle_timer = self._loop.call_later(THROTTLE_S, self._end_throttle)

    def _end_throttle(self) -> None:
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        clients, self._throttled = self._throttled, []
        if self.blocked_for is None:
            for client in clients:
                client.resume_reading()
