"""A progress bar for Spark jobs: tasks, rows, rate and, for streams, their metrics. It is shown on a terminal only."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from holtmq.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

    from holtmq.spark.amqp.stream_metrics import StreamMetrics

PERIOD_S = 0.2


@dataclass(frozen=True, slots=True)
class JobState:
    """How far a job of Spark is."""

    completed: int
    tasks: int
    rows: int
    """Rows that its largest stage has read from files, tables or a broker."""
    has_ended: bool

    def plus(self, other: JobState) -> JobState:
        """Return what two jobs have done together. Jobs that read the same rows again have not read more of them."""
        rows = max(self.rows, other.rows)
        return JobState(self.completed + other.completed, self.tasks + other.tasks, rows, self.has_ended)


class SparkProgress:
    """Reads Spark's counters in a background thread while the job runs in the calling one."""

    def __init__(self, spark: SparkSession, what: str) -> None:
        self._jobs = None if is_connect(spark) else _Jobs(spark)  # a client of Spark Connect has no counters
        self._spark = spark
        self._reading = threading.Lock()
        self._shown = 0
        self._rows: int | None = None
        self._counted: Accumulator[int] | None = None
        self._metrics: StreamMetrics | None = None
        self._started = time.monotonic()
        self._done = threading.Event()
        self._bar = _Bar(
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
            # route_job counts itself, and plans its tasks with spark.range, whose numbers are rows of no bytes
            jobs = self._jobs.read(counts_bytes=self._counted is not None) if self._jobs is not None else []
            self._metrics = self._read_metrics() or self._metrics
        rows = self._rows if self._rows is not None else max((job.rows for job in jobs), default=0)
        if self._counted is not None and self._counted.value:
            rows = self._counted.value
        self._shown = rows
        self._bar.update(
            self._task,
            completed=sum(job.completed for job in jobs),
            total=sum(job.tasks for job in jobs) or None,
            rows=describe_rows(rows, time.monotonic() - self._started),
        )
        self._bar.below = describe_metrics(self._metrics) if self._metrics is not None else ""

    def lag(self) -> int | None:
        """Return how many messages wait for the streams of the session, or None if that is not known."""
        metrics = self._read_metrics()
        return None if metrics is None else metrics.lag

    def _read_metrics(self) -> StreamMetrics | None:
        """Return the metrics of the streams of the session together, or None if there are no streams."""
        if is_connect(self._spark):
            return None
        from holtmq.spark.amqp.stream_metrics import stream_metrics

        found = [stream_metrics(query) for query in self._spark.streams.active]
        known = [metrics for metrics in found if metrics is not None]
        return sum(known[1:], known[0]) if known else None

    @property
    def text(self) -> str:
        """What the bar says about rows, and the line below it."""
        return "\n".join(filter(None, [str(self._bar.tasks[0].fields["rows"]), self._bar.below]))


def describe_rows(rows: int, seconds: float) -> str:
    """Return the number of rows and the average rate."""
    return f"{rows:,} rows, {rows / seconds:,.0f}/s" if rows and seconds > 0 else ""


def describe_metrics(metrics: StreamMetrics) -> str:
    """Return the metrics of a stream in a line. What is not known is left out."""
    facts = [f"lag {metrics.lag:,}"] if metrics.lag is not None else []
    facts += [f"{getattr(metrics, name):,} {name}" for name in ("received", "acknowledged", "redelivered")]
    if metrics.oldest_age_ms is not None:
        facts.append(f"oldest {metrics.oldest_age_ms / 1000:,.1f} s")
    return ", ".join(facts)


class _Bar(Progress):
    """A bar with a line below it, which is cut off at the width of the terminal."""

    below = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield what is shown. Rich calls this for each refresh."""
        yield from super().get_renderables()
        if self.below:
            yield Text(f"  {self.below}", style="dim", no_wrap=True, overflow="ellipsis")


class _Jobs:
    """All jobs that were started since this was made. Spark's store of them works without its web pages."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._store = context._jsc.sc().statusStore()
        before = self._store.jobsList(None)
        self._next = 0 if before.isEmpty() else max(before.head().jobId(), before.last().jobId()) + 1  # in either order
        self._running: dict[int, JobState] = {}
        self._ended = JobState(0, 0, 0, has_ended=True)

    def read(self, *, counts_bytes: bool) -> list[JobState]:
        """Return the jobs that run, and those that have ended as one. With `counts_bytes`, rows without bytes do not count."""
        while (found := self._read(self._next, counts_bytes=counts_bytes)) is not None:
            self._running[self._next] = found
            self._next += 1
        for number, job in list(self._running.items()):
            self._running[number] = now = self._read(number, counts_bytes=counts_bytes) or job
            if now.has_ended:
                self._ended = self._ended.plus(self._running.pop(number))
        return [self._ended, *self._running.values()]

    def _read(self, number: int, *, counts_bytes: bool) -> JobState | None:
        from py4j.protocol import Py4JError

        try:
            job = self._store.job(number)
            stages = [self._store.lastStageAttempt(job.stageIds().apply(n)) for n in range(job.stageIds().size())]
        except Py4JError:  # the store has not heard of the job or of its stages yet, or has forgotten them
            return None
        rows = max((stage.inputRecords() for stage in stages if stage.inputBytes() or not counts_bytes), default=0)
        tasks = job.numTasks() - job.numSkippedTasks()
        return JobState(job.numCompletedTasks(), tasks, rows, str(job.status()) != "RUNNING")
