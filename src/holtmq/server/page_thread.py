"""Reading pages of backlogs in a thread, so that the event loop waits neither for a disk nor for a database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from holtmq.broker.containment import InternalErrors
from holtmq.broker.page_reads import PageReads
from holtmq.errors import StoreDefectError, StoreError
from holtmq.server.turns import Turns
from holtmq.store.chunk import Page, PageRequest
from holtmq.store.sql.batch_journal import BatchJournal


class PageReadsInThread(PageReads):
    """Reads one page at a time, in the order in which the queues ask."""

    def __init__(self, journal: BatchJournal, errors: InternalErrors, turns: Turns) -> None:
        super().__init__(journal)
        self._beside = journal
        self._errors = errors
        self._turns = turns
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "holtmq-reader")
        self._is_stopped = False

    def ask(self, request: PageRequest, then: Callable[[Page | StoreError], None]) -> None:
        """Read a page, and pass it on in a later turn, or the error that prevents it."""
        if not self._is_stopped:
            self._beside.hold()
            job = self._loop.run_in_executor(self._thread, self._beside.fetch_beside, request)
            job.add_done_callback(partial(self._answer, then))

    def _answer(self, then: Callable[[Page | StoreError], None], job: asyncio.Future[Page]) -> None:
        answer: Page | StoreError
        try:
            answer = job.result()
        except StoreError as error:
            answer = error
        except Exception as error:  # noqa: BLE001  # the queue reports it and tries again
            answer = StoreDefectError(f"cannot read {error!r}")
        if self._is_stopped:
            return
        self._turns.begin()
        with self._errors.contain("reading a backlog", "a queue"):
            then(answer)
        self._beside.release()

    def stop(self) -> None:
        """Read nothing more. Return when the thread has ended."""
        self._is_stopped = True
        self._thread.shutdown(cancel_futures=True)
