"""The pulse of a broker on a remote database: it shows a standby that the broker is alive, and the broker that it is the owner.

It has a thread and a connection of its own: a transaction may take long. The event loop starts each beat, so a broker whose
event loop hangs has no pulse.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from holtmq.clock import elapsed_s
from holtmq.errors import StoreError, StoreFencedError
from holtmq.server.commits import LEASE_S, Commits
from holtmq.store.sql.batch_journal import BatchJournal

log = logging.getLogger(__name__)

PAUSE_S = 1.0
SILENCE_S = 10.0
"""Time without an answer after which a broker gives up. A standby may have taken over by then."""


class Pulse:
    """`gives_up` says that another broker may be reachable for the clients, so that they are better sent away."""

    def __init__(
        self, journal: BatchJournal, commits: Commits, *, gives_up: bool, on_loss: Callable[[StoreError], None]
    ) -> None:
        self._journal = journal
        self._commits = commits
        self._gives_up = gives_up
        self._on_loss = on_loss
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "holtmq-pulse")
        self._stopped = threading.Event()
        self._heard_at = self._cut_at = elapsed_s()
        self._job: asyncio.Future[bool] | None = None
        self._timer = self._loop.call_later(0, self._beat)
        threading.Thread(target=self._watch, name="holtmq-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop, and wait for no answer any more. Nobody else may use the database."""
        self._stopped.set()
        self._timer.cancel()
        self._thread.shutdown(wait=False)
        if self._job is not None:
            self._journal.cut()

    def _beat(self) -> None:
        now = elapsed_s()
        self._timer = self._loop.call_later(PAUSE_S, self._beat)
        if self._gives_up and now - self._heard_at > SILENCE_S:
            self._on_loss(StoreFencedError(f"the database has not answered for {SILENCE_S:g} s"))
            return
        if self._job is None:
            self._job = self._loop.run_in_executor(self._thread, self._pulse)
            self._job.add_done_callback(lambda job: self._done(job, now))

    def _pulse(self) -> bool:
        started = elapsed_s()
        is_owner = self._journal.pulse()
        self._heard_at = started
        return is_owner

    def _watch(self) -> None:
        """Cut the connections of a database that does not answer, for all threads that wait for it and the event loop."""
        while not self._stopped.wait(PAUSE_S / 2):
            now = elapsed_s()
            if now - max(self._heard_at, self._cut_at) > LEASE_S:
                self._cut_at = now
                self._journal.cut()

    def _done(self, job: asyncio.Future[bool], started: float) -> None:
        self._job = None
        try:
            is_owner = job.result()
        except StoreError as error:
            log.debug("no pulse: %s", error)
            return
        if is_owner and not self._stopped.is_set():
            self._commits.verified(started)
