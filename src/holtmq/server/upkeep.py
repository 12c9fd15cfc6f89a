"""Upkeep of the data file: looks at it once a second, and gives unused space back in small steps, between two commits.

An idle broker notices in this way that its file is gone, before a publisher does. All unused space is given back on request.
"""

from __future__ import annotations

import asyncio

from holtmq.errors import StoreClosedError, StoreError
from holtmq.server.back_pressure import BackPressure
from holtmq.server.commits import Commits
from holtmq.steps import Steps
from holtmq.store.sql.batch_journal import BatchJournal

PAUSE_S = 1.0
TIDYING_PAUSE_S = 0.05
"""Pause between two looks at the file, and between two steps of tidying it up."""
VACUUM_PAUSE_S = 0.002
"""Pause between two steps of a vacuum, in which a batch can be committed."""
DONE = object()


class Upkeep:
    def __init__(self, journal: BatchJournal, commits: Commits, pressure: BackPressure) -> None:
        self._journal = journal
        self._commits = commits
        self._pressure = pressure
        self._loop = asyncio.get_running_loop()
        self._is_stopped = self._has_failed = False
        self._vacuumed: asyncio.Future[None] | None = None
        """The outcome of the vacuum that is under way."""
        self._timer = self._loop.call_later(PAUSE_S, self._begin)

    def stop(self) -> None:
        self._is_stopped = True
        self._timer.cancel()
        if self._vacuumed is not None and not self._vacuumed.done():
            self._vacuumed.set_exception(StoreClosedError("the broker was stopped before all space was given back"))

    def vacuum(self) -> asyncio.Future[None]:
        """Begin to give all unused space back. A call joins a run that is under way."""
        if self._vacuumed is None or self._vacuumed.done():
            self._vacuumed = self._loop.create_future()
            self._vacuumed.add_done_callback(asyncio.Future.exception)  # retrieved, even if nobody waits any more
            self._vacuum_some(self._journal.vacuum())
        return self._vacuumed

    def _vacuum_some(self, steps: Steps[None]) -> None:
        def work() -> bool | StoreError:
            try:
                return next(steps, DONE) is DONE
            except StoreError as error:
                return error

        def done(outcome: bool | StoreError) -> None:  # noqa: FBT001
            assert self._vacuumed is not None
            if self._vacuumed.done():
                return
            if isinstance(outcome, StoreError):
                self._vacuumed.set_exception(outcome)
            elif outcome:
                self._vacuumed.set_result(None)
            else:
                self._loop.call_later(VACUUM_PAUSE_S, self._vacuum_some, steps)

        if not self._is_stopped:
            self._commits.between_commits(work, done)

    def _begin(self) -> None:
        self._commits.between_commits(self._work, self._done)

    def _work(self) -> bool | StoreError:
        try:
            return self._journal.tend()
        except StoreError as error:
            return error

    def _done(self, result: bool | StoreError) -> None:  # noqa: FBT001
        if isinstance(result, StoreError):
            self._has_failed = True
            self._commits.failed(result)
        elif self._has_failed and not self._journal.is_writing:  # a batch that failed will tell by itself when the disk is well
            self._has_failed = False
            self._pressure.unblock("disk")
        if not self._is_stopped:
            self._timer = self._loop.call_later(TIDYING_PAUSE_S if result is True else PAUSE_S, self._begin)
