"""A progress bar for Spark jobs: completed and planned tasks. It is shown on a terminal only."""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PERIOD_S = 0.2


class SparkProgress:
    """Reads Spark's counters in a background thread while the job runs in the calling one."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._what = what
        self._done = threading.Event()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(what, total=None)
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
        self._seen: dict[int, tuple[int, int]] = {}

    def describe(self, text: str) -> None:
        """Show a text beside the bar."""
        self._bar.update(self._task, description=f"{self._what}: {text}")

    def __enter__(self) -> SparkProgress:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        self._bar.stop()

    def _watch(self) -> None:
        while not self._done.wait(PERIOD_S):
            for number in self._tracker.getActiveStageIds():
                stage = self._tracker.getStageInfo(number)
                if stage is not None:
                    self._seen[number] = (stage.numCompletedTasks, stage.numTasks)
            active = set(self._tracker.getActiveStageIds())
            done = sum(total if number not in active else some for number, (some, total) in self._seen.items())
            self._bar.update(self._task, completed=done, total=sum(total for _, total in self._seen.values()) or None)
