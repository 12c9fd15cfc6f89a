"""Commits: a thread writes the journal to disk while the event loop continues.

Changes that arrive during a commit are collected for the next one. Output that depends on a change waits until the change is
on disk. If a commit fails, publishers are blocked and the commit is retried until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from holtmq.broker.broker import Broker
from holtmq.errors import StoreError
from holtmq.server.back_pressure import BackPressure
from holtmq.server.turns import Turns
from holtmq.store.sqlite.batch_journal import SqliteJournal

if TYPE_CHECKING:
    from holtmq.server.client import Client

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S = 1.0


class Commits:
    """The thread that commits, and the clients and callers that wait for it."""

    def __init__(self, broker: Broker, journal: SqliteJournal, turns: Turns, pressure: BackPressure) -> None:
        self._broker = broker
        self._errors = broker.internal_errors
        self._journal = journal
        self._turns = turns
        self._pressure = pressure
        self._loop = asyncio.get_running_loop()
        self._disk = ThreadPoolExecutor(1, "holtmq-disk")
        self._commit: asyncio.Future[int] | None = None
        self._clients: list[Client] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._is_at_other_work = False
        self._other_work: list[Callable[[], None]] = []

    def flush(self, clients: Iterable[Client]) -> None:
        """Send the output of clients. Output that depends on a batch which is not on disk waits for its commit."""
        for client in clients:
            try:
                self._flush(client)
            except Exception:  # noqa: BLE001  # contained: it is reported
                self._errors.report("sending output", client.name)
                client.abort()

    def _flush(self, client: Client) -> None:
        if self._broker.is_committed(client.handler.needs_batch):
            client.flush()
        else:
            client.connection.awaits_commit = True
            self._clients.append(client)

    def forget(self, client: Client) -> None:
        """Drop a client that is disconnected."""
        if client in self._clients:
            self._clients.remove(client)

    def start(self) -> None:
        """Commit what the journal has collected, unless the thread is busy."""
        journal = self._journal
        if self._commit is None and not self._is_at_other_work and self._other_work:
            self._other_work.pop()()
        if self._commit is not None or self._is_at_other_work or not (journal.has_changes or journal.is_writing):
            return
        try:
            if not journal.is_writing:
                self._broker.sealed()
            journal.write()
        except StoreError as error:
            self.failed(error)
            return
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._errors.report("writing to disk", "all clients")
            self._loop.call_later(RETRY_S, self.start)
            return
        self._commit = self._loop.run_in_executor(self._disk, journal.commit)
        self._commit.add_done_callback(self._committed)

    async def written(self) -> None:
        """Wait until all changes made so far are on disk."""
        batch = self._journal.batch if self._journal.has_changes else self._journal.batch - 1
        if self._broker.committed_batch < batch:
            future = self._loop.create_future()
            self._waiters.append((batch, future))
            await future

    def between_commits(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Let the thread do some short work as soon as no commit is running, and continue on the event loop."""

        def done(job: asyncio.Future[T]) -> None:
            self._is_at_other_work = False
            then(job.result())
            self.start()

        def begin() -> None:
            self._is_at_other_work = True
            self._loop.run_in_executor(self._disk, work).add_done_callback(done)

        self._other_work.append(begin)
        self.start()

    async def finish(self) -> None:
        """Commit all remaining changes and stop the thread."""
        while self._commit is not None or self._is_at_other_work:
            await asyncio.sleep(0.001)
        while self._journal.has_changes or self._journal.is_writing:  # twice if the last batch had failed
            self._journal.write()
            self._journal.commit()
        self._disk.shutdown()

    def _committed(self, commit: asyncio.Future[int]) -> None:
        self._commit = None
        try:
            batch = commit.result()
        except StoreError as error:
            self.failed(error)
            return
        self._broker.committed_batch = batch
        self._turns.begin()
        with self._errors.contain("unblocking publishers", "all clients"):
            self._pressure.unblock("disk")
        with self._errors.contain("confirming messages", "all clients"):
            self._broker.committed(batch)
        for awaited, future in self._waiters:
            if awaited <= batch and not future.done():
                future.set_result(None)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]
        clients, self._clients = self._clients, []
        for client in clients:
            client.connection.awaits_commit = False
            with self._errors.contain("resuming a client", client.name):
                self._turns.flush_later(client)
                client.resume()
        if self._other_work:
            self.start()

    def failed(self, error: StoreError) -> None:
        """Keep the changes, block publishers, and retry."""
        if self._pressure.blocked_for != "disk":
            log.error("cannot write to disk; publishers are blocked until a retry succeeds: %s", error)
        self._pressure.block("disk")
        self._loop.call_later(RETRY_S, self.start)
