"""Back-pressure: who must wait while memory is short, the disk fails or lags behind, or consumers lag behind.

Publishers are blocked for a reason, and are told so with connection.blocked. They are not read until the last reason is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from holtmq.broker.broker import Broker
from holtmq.broker.memory import CALM
from holtmq.errors import ResourceError
from holtmq.server.pause import Pause
from holtmq.store.sql.batch_journal import BatchJournal

if TYPE_CHECKING:
    from holtmq.server.client import Client

log = logging.getLogger(__name__)

SLOW_DISK = "the disk is slower than the publishers"
JOURNAL_BYTES = 32 * 1024 * 1024
"""Publishers are blocked above this many unwritten bytes and unblocked at half of it."""
THROTTLE_S = 0.02
"""Longest pause of throttled publishers before they may send more."""
LEAST_EXPELLED = 64 * 1024
"""A client that holds less than this is not closed, because that would free next to nothing."""
STALL_S = 5.0
"""Time in which a client must go on with an unfinished message or transaction while others wait for its memory."""
PRECEDENCE = ("disk", "memory", "journal")


class BackPressure:
    """Decides which clients are blocked, throttled or closed."""

    def __init__(self, broker: Broker, journal: BatchJournal, clients: Collection[Client]) -> None:
        self._reasons: dict[str, str] = {}
        """Why publishers are blocked, in a few words for clients and operators, by resource."""
        self._broker = broker
        self._memory = broker.memory
        self._journal = journal
        self._clients = clients
        self._loop = asyncio.get_running_loop()
        self._throttled: list[Client] = []
        self._throttle_timer: asyncio.TimerHandle | None = None
        self._favoured: Client | None = None
        """The only client that may publish during a memory alarm that unfinished messages and transactions have caused: the one
        with the largest, because finishing it frees memory."""
        self._favoured_since = 0.0
        self._favoured_bytes = 0
        self._slowest: Client | None = None
        """The client with the most unread output during a memory alarm."""
        self._slowest_since = 0.0
        self._slowest_unread = 0

    @property
    def blocked_for(self) -> str | None:
        """What publishers are blocked for: `disk`, `memory`, `journal`, or None if they are not."""
        return next((resource for resource in PRECEDENCE if resource in self._reasons), None)

    @property
    def reason(self) -> str:
        """Why publishers are blocked, in a few words."""
        return self._reasons.get(self.blocked_for or "", "")

    def count(self, client: Client) -> None:
        """Count what a client holds against the memory budget."""
        memory = client.memory
        self._memory.connections += memory - client.counted_memory
        client.counted_memory = memory

    def forget(self, client: Client) -> None:
        """Drop a client that is disconnected."""
        self._memory.connections -= client.counted_memory
        client.counted_memory = 0
        if client is self._favoured:
            self._favoured = None
        if client is self._slowest:
            self._slowest = None

    def update(self) -> None:
        """Block, throttle, resume or close clients, depending on memory, on the unwritten bytes and on the queues."""
        memory, size = self._memory, self._journal.size
        if size > JOURNAL_BYTES:
            self.block("journal", SLOW_DISK)
        elif size < JOURNAL_BYTES // 2 and "journal" in self._reasons:
            self.unblock("journal")
        if memory.is_alarmed:
            self._relieve_memory()
        elif "memory" in self._reasons:
            log.info("memory alarm ended: %s", memory.describe())
            self.unblock("memory")
            self._favoured = None
        if self._broker.is_crowded:
            self._throttle()
        elif self._throttled:
            self._end_throttle()

    def block(self, resource: str, reason: str) -> None:
        """Block all publishers."""
        is_new = resource not in self._reasons
        self._reasons[resource] = reason
        if is_new:
            for client in self._clients:
                self.admit_publisher(client)

    def unblock(self, resource: str) -> None:
        """Unblock all publishers, unless there is another reason to block them."""
        was_blocked = self._reasons.pop(resource, None) is not None
        if was_blocked and not self._reasons:
            for client in self._clients:
                client.resume_reading(Pause.BLOCKED)
                client.connection.unblock()

    def admit_publisher(self, client: Client) -> None:
        """Block a client if it publishes while publishers are blocked."""
        if self._reasons and client.handler.is_publisher and client is not self._favoured:
            client.connection.block(self.reason)
            client.pause_reading(Pause.BLOCKED)

    def _relieve_memory(self) -> None:
        memory = self._memory
        if "memory" not in self._reasons:
            log.warning("memory alarm: publishers are blocked; the limit is %d bytes: %s", memory.limit, memory.describe())
            self.block("memory", "low on memory")
        if memory.is_relieved_by_disk:
            self._favour(None)
            return
        unfinished = {client: size for client in self._clients if (size := client.unfinished)}
        if memory.total - sum(unfinished.values()) > CALM * memory.limit:
            # The alarm would not end without them, and one who sends large messages is always in the middle of one.
            unfinished.clear()
        favoured = self._favoured
        if favoured is None or favoured not in unfinished:
            self._favour(max(unfinished, key=unfinished.__getitem__, default=None))
        elif favoured.bytes_received != self._favoured_bytes:
            self._favoured_bytes, self._favoured_since = favoured.bytes_received, self._loop.time()
        elif self._loop.time() > self._favoured_since + STALL_S:
            self._expel(favoured, "of an unfinished message or transaction, and does not go on with it")
        if memory.is_exhausted:
            largest = max(self._clients, key=lambda client: client.counted_memory, default=None)
            if largest is not None and largest.counted_memory >= LEAST_EXPELLED:
                self._expel(largest, "more than any other client")

    def check_readers(self) -> None:
        """Close the client with the most unread output if it reads nothing while others wait for the memory."""
        slowest = max(self._clients, key=lambda client: client.unread, default=None)
        if not self._memory.is_alarmed or slowest is None or slowest.unread < LEAST_EXPELLED:
            self._slowest = None
        elif slowest is not self._slowest or slowest.unread < self._slowest_unread:
            self._slowest, self._slowest_unread, self._slowest_since = slowest, slowest.unread, self._loop.time()
        elif self._loop.time() > self._slowest_since + STALL_S:
            self._slowest = None
            self._expel(slowest, "that it does not read")

    def _favour(self, client: Client | None) -> None:
        """Let one client go on, and block the one that could go on before."""
        last, self._favoured = self._favoured, client
        if last is not None and last is not self._favoured:
            self.admit_publisher(last)
        if self._favoured is not None and self._reasons.keys() == {"memory"}:
            self._favoured_bytes, self._favoured_since = self._favoured.bytes_received, self._loop.time()
            self._favoured.resume_reading(Pause.BLOCKED)

    def _expel(self, client: Client, what: str) -> None:
        memory = self._memory
        log.warning("closing %s: memory is short, and the client holds %d bytes %s", client.name, client.memory, what)
        error = ResourceError(
            f"memory is short ({memory.total} of {memory.limit} bytes), and this connection holds {client.memory} bytes {what}"
        )
        client.expel(error)
        self.count(client)
        if client is self._favoured:
            self._favoured = None

    def _throttle(self) -> None:
        """Pause clients that only publish for a moment, so that consumers catch up.

        Consumers limit the throughput here, so this costs nothing, and messages spend less time in the queue.
        """
        if not self._throttled and not self._reasons:
            self._throttled = [client for client in self._clients if client.handler.only_publishes]
            for client in self._throttled:
                client.pause_reading(Pause.THROTTLED)
            self._throttle_timer = self._loop.call_later(THROTTLE_S, self._end_throttle)

    def _end_throttle(self) -> None:
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        clients, self._throttled = self._throttled, []
        for client in clients:
            client.resume_reading(Pause.THROTTLED)
