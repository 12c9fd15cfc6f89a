"""A progress bar for Spark jobs: tasks, rows, rate and, for streams, the lag. It is shown on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holtmq.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class JobState:
    """How far a job of Spark is."""

    completed: int
    tasks: int
    rows: int
    """Rows that it has read from files or tables."""
    has_ended: bool

    def plus(self, other: JobState) -> JobState:
        """Return the sum of two jobs."""
        return JobState(self.completed + other.completed, self.tasks + other.tasks, self.rows + other.rows, self.has_ended)


class SparkProgress:
    """Reads Spark's counters in a background thread while the job runs in the calling one."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._jobs = None if is_connect(spark) else _Jobs(spark)  # a client of Spark Connect has no counters
        self._spark = spark
        self._reading = threading.Lock()
        self._shown = 0
        self._rows: int | None = None
        self._counted: Accumulator[int] | None = None
        self._started = time.monotonic()
        self._done = threading.Event()
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tasks"),
            TextColumn("{task.fields[rows]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(what, total=None, rows="")
        self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)

    def count(self, messages: int) -> None:
        """Show this number of messages, which the job has counted itself, instead of the rows that Spark has read."""
        self._rows = messages

    def accumulator(self) -> Accumulator[int] | None:
        """Return an accumulator for jobs whose tasks count messages themselves, or None if the session has none."""
        self._counted = None if is_connect(self._spark) else self._spark.sparkContext.accumulator(0)
        return self._counted

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
            self.refresh()

    def read_rows(self) -> int:
        """Return the number of rows so far."""
        self.refresh()
        return self._shown

    def refresh(self) -> None:
        """Update the bar."""
        with self._reading:
            jobs = self._jobs.read() if self._jobs is not None else []
        rows = self._rows if self._rows is not None else sum(job.rows for job in jobs)
        if self._counted is not None and self._counted.value:
            rows = self._counted.value
        self._shown = rows
        self._bar.update(
            self._task,
            completed=sum(job.completed for job in jobs),
            total=sum(job.tasks for job in jobs) or None,
            rows=describe_rows(rows, time.monotonic() - self._started, self.lag()),
        )

    def lag(self) -> int | None:
        """Return how many messages wait for the streams of the session, or None if there are no streams."""
        if is_connect(self._spark):
            return None
        from holtmq.spark.amqp.stream_metrics import stream_metrics

        found = [stream_metrics(query) for query in self._spark.streams.active]
        lags = [metrics.lag for metrics in found if metrics is not None and metrics.lag is not None]
        return sum(lags) if lags else None

    @property
    def text(self) -> str:
        """What the bar says about rows."""
        return str(self._bar.tasks[0].fields["rows"])


def describe_rows(rows: int, seconds: float, lag: int | None = None) -> str:
    """Return the number of rows, the average rate, and how many messages wait."""
    facts = [f"{rows:,} rows, {rows / seconds:,.0f}/s"] if rows and seconds > 0 else []
    return ", ".join(facts if lag is None else [*facts, f"{lag:,} waiting"])


class _Jobs:
    """All jobs that were started since this was made. Spark's store of them works without its web pages."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._store = context._jsc.sc().statusStore()
        before = self._store.jobsList(None)
        self._next = 0 if before.isEmpty() else max(before.head().jobId(), before.last().jobId()) + 1  # in either order
        self._running: dict[int, JobState] = {}
        self._ended = JobState(0, 0, 0, has_ended=True)

    def read(self) -> list[JobState]:
        """Return the jobs that run, and the sum of those that have ended."""
        while (found := self._read(self._next)) is not None:
            self._running[self._next] = found
            self._next += 1
        for number, job in list(self._running.items()):
            self._running[number] = now = self._read(number) or job
            if now.has_ended:
                self._ended = self._ended.plus(self._running.pop(number))
        return [self._ended, *self._running.values()]

    def _read(self, number: int) -> JobState | None:
        from py4j.protocol import Py4JError

        try:
            job = self._store.job(number)
            stages = [self._store.lastStageAttempt(job.stageIds().apply(n)) for n in range(job.stageIds().size())]
        except Py4JError:  # the store has not heard of the job or of its stages yet, or has forgotten them
            return None
        # spark.range counts its numbers as records, too, but no bytes
        rows = sum(stage.inputRecords() for stage in stages if stage.inputBytes())
        tasks = job.numTasks() - job.numSkippedTasks()
        return JobState(job.numCompletedTasks(), tasks, rows, str(job.status()) != "RUNNING")
