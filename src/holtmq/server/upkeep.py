"""Upkeep of the data file: looks at it once a second, and gives unused space back in small steps, between two commits.

An idle broker notices in this way that its file is gone, before a publisher does.
"""

from __future__ import annotations

import asyncio

from holtmq.errors import StoreError
from holtmq.server.back_pressure import BackPressure
from holtmq.server.commits import Commits
from holtmq.store.sqlite.batch_journal import SqliteJournal

PAUSE_S = 1.0
TIDYING_PAUSE_S = 0.05
"""Pause between two looks at the file, and between two steps of tidying it up."""


class Upkeep:
    def __init__(self, journal: SqliteJournal, commits: Commits, pressure: BackPressure) -> None:
        self._journal = journal
        self._commits = commits
        self._pressure = pressure
        self._loop = asyncio.get_running_loop()
        self._is_stopped = self._has_failed = False
        self._timer = self._loop.call_later(PAUSE_S, self._begin)

    def stop(self) -> None:
        self._is_stopped = True
        self._timer.cancel()

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
