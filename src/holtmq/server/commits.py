"""Commits: a thread writes the journal to disk while the event loop continues.

Before that, the changes are put into a transaction on the event loop, in slices: a batch of many changes does not keep clients
waiting. A batch of many bytes is put there by the thread: SQLite copies large messages while the event loop continues. So is a
batch that reads chunks of messages, to compact them.
Changes that arrive during a commit are collected for the next one. A batch whose messages will probably be acknowledged in a
moment waits for that, and is then not written at all. Output that depends on a change waits until the change is on disk. If a
commit fails, publishers are blocked and the commit is retried until it succeeds. What needs no disk goes on.

The event loop never waits for the disk, nor for another process that has locked the file: the thread does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from holtmq.broker.broker import Broker
from holtmq.clock import elapsed_s
from holtmq.errors import (
    StoreBusyError,
    StoreDefectError,
    StoreError,
    StoreFencedError,
    StoreFullError,
    StoreLostError,
    StoreReadOnlyError,
    StoreReplacedError,
    StoreUnknownError,
)
from holtmq.server.back_pressure import BackPressure
from holtmq.server.disk_space import DiskSpace
from holtmq.server.turns import Turns
from holtmq.server.worker_thread import WorkerThread
from holtmq.steps import Steps, complete
from holtmq.store.sql.batch_journal import BatchJournal

if TYPE_CHECKING:
    from holtmq.server.client import Client

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_S = 1.0
SLICE_S = 0.005
"""Time for which a batch is written before the event loop serves clients again."""
LARGE_BATCH = 1024 * 1024
"""Bytes of messages from which on the thread writes a batch. For smaller messages, the event loop is quicker."""
LINGER_S = 0.003
"""A large batch waits for this long before it is written: what is acknowledged meanwhile need not be written. Without it,
publisher, disk and consumer may fall into step, so that every message is written before its acknowledgement arrives."""
SHORT_LINGER_S = 0.001
"""A small batch waits for this long. If all its messages are acknowledged meanwhile, nothing is written, and they are confirmed
without a wait for the disk."""
MOST_UNTRIED = 255
"""After a small batch has waited in vain, the next one does not wait. After another one it is the next three, and so on, up to
this number: consumers that are slow, or not there, delay next to no confirms."""
SHORT_RETRY_S = 0.01
"""Pause before a retry for which the thread or the event loop was not ready."""
LEASE_S = 5.0
"""A broker that has not heard from its database for this long delivers nothing more, because a standby may have taken over. The
standby waits longer (store/postgres/ownership_watch.py)."""
LOCK_WAIT_S = 1.0
"""Publishers are blocked when another process has held the lock on the file for this long."""
FINISH_S = 10.0
"""Time that a stopping broker has for its last commit."""


class Commits:
    """The thread that commits, and the clients and callers that wait for it."""

    def __init__(
        self,
        broker: Broker,
        journal: BatchJournal,
        turns: Turns,
        pressure: BackPressure,
        space: DiskSpace,
        on_loss: Callable[[StoreFencedError], None],
    ) -> None:
        self._broker = broker
        self._errors = broker.internal_errors
        self._sealing = self._errors.contain("ending a batch", "all clients")
        self._unblocking = self._errors.contain("unblocking publishers", "all clients")
        self._confirming = self._errors.contain("confirming messages", "all clients")
        self._journal = journal
        self._turns = turns
        self._pressure = pressure
        self._space = space
        self._on_loss = on_loss
        self._is_lost = False
        self._sure_until = elapsed_s() + LEASE_S
        """Until when nobody else can have taken the database over."""
        self._loop = asyncio.get_running_loop()
        self._disk = WorkerThread("holtmq-disk")
        self._is_busy = False
        """Whether the thread is at work."""
        self._steps: Steps[None] | None = None
        """What is left to write of a batch before the thread commits it."""
        self._retry: asyncio.TimerHandle | None = None
        """Set while commits fail."""
        self._unverified: int | None = None
        """A batch that was committed to a file which was not there any more."""
        self._can_relieve = True
        self._linger: asyncio.TimerHandle | None = None
        """Set while a batch waits before it is written."""
        self._has_lingered = self._has_lingered_shortly = False
        self._untried = self._left_untried = 0
        """Number of batches that do not wait after one has waited in vain, and how many of them are left."""
        self._is_finishing = False
        self._clients: list[Client] = []
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
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
        if self._is_waiting(client):
            client.connection.awaits_commit = True
            self._clients.append(client)
        else:
            client.flush()

    def _is_waiting(self, client: Client) -> bool:
        broker, handler = self._broker, client.handler
        if self._journal.is_remote and elapsed_s() > self._sure_until:
            return True
        return handler.needs_marks > broker.marked_batch or not broker.is_committed(handler.needs_batch)

    def forget(self, client: Client) -> None:
        """Drop a client that is disconnected."""
        if client in self._clients:
            self._clients.remove(client)

    def start(self) -> None:
        """Commit what the journal has collected, unless the thread is busy. While commits fail, write only what helps."""
        if self._is_busy or self._steps is not None or self._is_finishing or self._is_lost or self._broker.committing:
            return
        if self._retry is not None and not self._journal.is_begun:
            if self._can_relieve and self._journal.has_relief and not self._must_verify:
                self._relieve()
        elif self._must_verify:
            self._in_thread(self._commit, self._committed)
        elif self._other_work and not self._journal.is_begun:
            self._other_work.pop()()
        elif self._journal.is_begun:
            self._write()
        elif not self._has_work:
            if self._linger is not None:
                self._untried //= 2
            self._stop_lingering()
        elif not self._is_lingering():
            self._begin()

    def _begin(self) -> None:
        """Begin a transaction. If another process has locked the file, let the thread wait for it."""
        try:
            self._space.require(self._journal.size)
            is_begun = self._journal.begin()
        except StoreError as error:
            self.failed(error)
            return
        if is_begun:
            self._write()
        else:
            self._in_thread(self._wait_for_lock, self._locked)

    @property
    def _must_verify(self) -> bool:
        """Whether the last commit may have been lost, with its file or with the connection to the database."""
        return self._unverified is not None or self._journal.is_in_doubt

    @property
    def _has_work(self) -> bool:
        journal = self._journal
        return journal.has_changes or journal.is_writing or journal.is_begun

    def _wait_for_lock(self) -> None:
        if not self._journal.begin(LOCK_WAIT_S):
            raise StoreBusyError(f"another process has locked the file for more than {LOCK_WAIT_S:g} s")

    def _locked(self, _: None) -> None:
        if not self._turns.is_open:  # a turn is written as a whole, when it ends
            self.start()

    def _write(self) -> None:
        """Write a batch, and let the thread wait for the disk."""
        self._stop_lingering()
        with self._sealing:
            self._broker.sealed()
        self._journal.gather()
        if self._journal.is_slow or self._journal.writing_size >= LARGE_BATCH:
            self._in_thread(self._write_large, self._committed)
        else:
            self._write_some(self._journal.write())

    def _is_lingering(self) -> bool:
        """Return whether the batch had better wait for acknowledgements."""
        if self._journal.size >= LARGE_BATCH:
            if not self._has_lingered:
                self._stop_lingering()
                self._has_lingered = True
                self._linger = self._loop.call_later(LINGER_S, self._end_linger)
            return self._linger is not None
        if not self._has_lingered_shortly:
            self._has_lingered_shortly = True
            if self._left_untried:
                self._left_untried -= 1
            elif self._journal.awaits_acks:
                self._linger = self._loop.call_later(SHORT_LINGER_S, self._end_linger)
        is_awaited = self._clients or self._waiters  # by somebody who waits for more than a confirm
        return self._linger is not None and not is_awaited

    def _stop_lingering(self) -> None:
        self._has_lingered = self._has_lingered_shortly = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _end_linger(self) -> None:
        self._linger = None
        if self._journal.size < LARGE_BATCH:
            self._untried = self._left_untried = min(2 * self._untried + 1, MOST_UNTRIED)
        if not self._turns.is_open:
            self.start()

    def _write_large(self) -> int:
        complete(self._journal.write())
        return self._commit()

    def _commit(self) -> int:
        """Commit the batch and return its number. A file that is lost meanwhile has the batch, but nothing is confirmed."""
        if self._unverified is None:
            self._unverified = self._journal.commit()
        self._journal.require_file()
        batch, self._unverified = self._unverified, None
        return batch

    def _write_some(self, steps: Steps[None]) -> None:
        """Write the batch for the length of a slice. Commit it when all of it is written."""
        deadline = perf_counter() + SLICE_S
        try:
            for _ in steps:
                if perf_counter() > deadline:
                    self._steps = steps
                    self._loop.call_soon(self._continue)
                    return
        except StoreError as error:
            self.failed(error)
            return
        self._in_thread(self._commit, self._committed)

    def _continue(self) -> None:
        steps, self._steps = self._steps, None
        assert steps is not None
        self._write_some(steps)

    def _in_thread(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Let the thread do some work, and continue on the event loop."""

        def done(result: T) -> None:
            self._is_busy = False
            then(result)

        def failed(error: Exception) -> None:
            self._is_busy = False
            if isinstance(error, StoreError):
                self.failed(error)
            else:  # reported, and the batch is written again
                self.failed(StoreDefectError(f"cannot write {error!r}"))

        self._disk.do(work, done, failed)
        self._is_busy = True

    def verified(self, at: float) -> None:
        """Note that the database was still ours at this time."""
        if not self._is_lost:
            was_sure, self._sure_until = elapsed_s() <= self._sure_until, at + LEASE_S
            if not was_sure:
                self._turns.begin()
                self._resume_clients()

    async def written(self) -> None:
        """Wait until all changes made so far are on disk."""
        batch = self._journal.batch if self._journal.has_changes else self._journal.batch - 1
        if self._broker.committed_batch < batch:
            future = self._loop.create_future()
            self._waiters.append((batch, future))
            await future

    def between_commits(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Let the thread do some short work as soon as no commit is running, and continue on the event loop."""

        def done(result: T) -> None:
            then(result)
            self.start()

        self._other_work.append(lambda: self._in_thread(work, done))
        self.start()

    async def finish(self) -> None:
        """Commit all remaining changes and stop the thread. Raise StoreError if they cannot be written.

        What is lost then was never confirmed.
        """
        self._is_finishing = True
        if self._is_lost:
            self._disk.stop()
            raise StoreError("the database belongs to another broker")
        if self._retry is not None:
            self._retry.cancel()
        while self._is_busy or self._steps is not None:
            await self._disk.done(lambda: None)  # after what it does now
            await asyncio.sleep(0)
        try:
            if self._has_work:
                self._broker.sealed()
                self._journal.gather()
                await self._disk.done(self._write_last)
        except StoreError as error:
            raise StoreError(f"{error}. The broker stopped without writing {self._journal.unwritten}") from error
        finally:
            self._disk.stop()

    def _write_last(self) -> None:
        try:
            self._write_at_once()
        except StoreBusyError:
            raise
        except StoreError:
            self._journal.relieve(FINISH_S)
            self._write_at_once()

    def _write_at_once(self) -> None:
        if not (self._journal.is_begun or self._journal.begin(FINISH_S)):
            raise StoreBusyError(f"another process has locked the file for more than {FINISH_S:g} s")
        complete(self._journal.write())
        self._journal.commit()

    def _committed(self, batch: int) -> None:
        self._broker.committed_batch = self._broker.marked_batch = batch
        self._turns.begin()
        with self._unblocking:
            self._pressure.unblock("disk")
        with self._confirming:
            self._broker.committed(batch)
        for awaited, future in self._waiters:
            if awaited <= batch and not future.done():
                future.set_result(None)
        self._waiters = [waiter for waiter in self._waiters if not waiter[1].done()]
        self._resume_clients()
        self._turns.end()  # at once: a publisher that waits for its confirm would wait for another iteration of the loop

    def _resume_clients(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            if self._is_waiting(client):
                self._clients.append(client)
                continue
            client.connection.awaits_commit = False
            with self._errors.contain("resuming a client", client.name):
                self._turns.flush_later(client)
                client.resume()
        if self._other_work:
            self.start()

    def failed(self, error: StoreError) -> None:
        """Keep the changes, block publishers, and retry."""
        if self._is_lost:
            return
        if isinstance(error, StoreFencedError):
            self._is_lost, self._sure_until = True, 0.0
            if self._retry is not None:
                self._retry.cancel()
            self._on_loss(error)
            return
        reason = blocked_reason(error)
        if isinstance(error, StoreDefectError):
            self._errors.report("writing a batch", "all publishers")
        if self._pressure.reason != reason:
            log.error("publishers are blocked until a retry succeeds: %s: %s", reason, error)
        self._pressure.block("disk", reason)
        if isinstance(error, StoreBusyError):
            self.start()  # and wait again, in the thread
        elif self._retry is None and not self._is_finishing:
            self._retry = self._loop.call_later(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        """Commit, after writing what may make room for it."""
        self._can_relieve = True
        if self._is_busy or self._steps is not None or self._turns.is_open:
            self._retry = self._loop.call_later(SHORT_RETRY_S, self._try_again)
            return
        self._retry = None
        if self._journal.has_relief and not self._must_verify:
            self._relieve(self.start)
        else:
            self.start()

    def _relieve(self, then: Callable[[], None] = lambda: None) -> None:
        """Write removals before anything else, because they may be what makes room."""
        self._broker.sealed()
        self._journal.gather()
        batch = self._journal.batch - 1

        def relieved(has_written: bool) -> None:  # noqa: FBT001
            self._can_relieve = has_written
            if has_written:
                self._turns.begin()
                self._broker.marked(batch)
                self._resume_clients()
            then()

        self._can_relieve = False
        self._in_thread(lambda: self._journal.relieve(LOCK_WAIT_S), relieved)


def blocked_reason(error: StoreError) -> str:
    """Return why publishers are blocked, in a few words for clients."""
    match error:
        case StoreFullError():
            return "low on disk space"
        case StoreBusyError():
            return "another process has locked the data file"
        case StoreReadOnlyError():
            return "the data file is read-only"
        case StoreLostError() | StoreUnknownError():
            return "the database cannot be reached"
        case StoreReplacedError():
            return "the data file was moved, deleted or replaced"
        case StoreDefectError():
            return "an internal error of the broker"
        case _:
            return "the broker cannot write to its disk"
