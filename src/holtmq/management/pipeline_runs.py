"""The runs of pipeline jobs that the jobs themselves have announced. They are kept in memory, and in a bounded number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from holtmq.errors import NotAllowedError

RunKey: TypeAlias = tuple[str, str]
"""Vhost and id."""
MAX_RUNS = 200
LOST_S = 60.0
"""A job that runs announces itself more often than this, unless it announces its steps only."""
MAX_ROWS = 2**53
"""The largest number that all readers of JSON represent exactly."""
PLANNED = "planned"
"""The state of a run of which nobody learns when it runs, such as a batch read on Spark: all that is known is its size."""
STATES = (PLANNED, "running", "finished", "failed", "interrupted")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a job, as it described itself."""

    id: str
    vhost: str
    user: str
    job: str
    input: str
    output: str
    queue: str | None
    """The queue that the job reads, if it does."""
    rows: int
    state: str
    error: str | None
    started_at: float
    updated_at: float
    lag: int | None = None
    """Messages that the job has not processed yet, if it knows their number."""
    is_stepwise: bool = False
    """Whether the job announces only its steps, each with its own rows, and no sign of life in between."""

    def duration_ms_at(self, now: float) -> int | None:
        """Return how long a run has lasted, or None if it was only planned."""
        if self.state == PLANNED:
            return None
        end = now if self.state_at(now) == "running" else self.updated_at
        return int(1000 * (end - self.started_at))

    def state_at(self, now: float) -> str:
        """Return the state. A running job that has announced nothing for a minute is "lost", or "silent" if it is stepwise."""
        if self.state != "running" or now - self.updated_at <= LOST_S:
            return self.state
        return "silent" if self.is_stepwise else "lost"


class Runs:
    """The announced runs. If there are too many, those that do not run are forgotten first, then the oldest."""

    def __init__(self) -> None:
        self._runs: dict[RunKey, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs.values())

    def put(self, run: Run) -> bool:
        """Add or update a run and return whether it is new. Raise NotAllowedError if it is another user's."""
        key = (run.vhost, run.id)
        known = self._runs.get(key)
        if known is not None:
            if known.user != run.user:
                raise NotAllowedError(f"the run {run.id!r} belongs to user {known.user!r}, got {run.user!r}")
            rows = min(known.rows + run.rows, MAX_ROWS) if run.is_stepwise else run.rows
            run = replace(run, started_at=known.started_at, rows=rows)
        elif len(self._runs) >= MAX_RUNS:
            self._forget_one()
        self._runs[key] = run
        return known is None

    def _forget_one(self) -> None:
        def age(key: RunKey) -> tuple[bool, float]:
            return self._runs[key].state == "running", self._runs[key].updated_at

        del self._runs[min(self._runs, key=age)]
