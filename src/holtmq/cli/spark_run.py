"""A Spark job that a command runs: its session, its progress bar, and what the user is told if it does not succeed."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holtmq.client.run_announcer import Announcement, RunAnnouncer
from holtmq.errors import HoltmqError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holtmq.cli.spark_progress import SparkProgress

NO_FILES = "UNABLE_TO_INFER_SCHEMA"


class PipelineError(HoltmqError):
    """A Spark job failed."""


class InterruptedRunError(click.ClickException):
    """The user interrupted a job."""

    exit_code = 130  # as of a process that SIGINT has ended


@dataclass(frozen=True, slots=True)
class SparkRun:
    """Where a job runs, which broker is told of it, and what its interruption means."""

    what: str
    master: str | None
    conf: tuple[str, ...]
    about: Announcement
    interrupted: str = "nothing was written"
    """What the user has to know if the job is interrupted."""

    @contextmanager
    def started(self) -> Iterator[tuple[SparkSession, SparkProgress]]:
        """Start a session, or use the active one, and show a progress bar.

        Raise PipelineError if the job fails, and InterruptedRunError if the user interrupts it.
        """
        try:
            from holtmq.cli.spark_progress import SparkProgress
            from holtmq.spark import session
            from holtmq.spark.new_thread import in_new_thread
        except ImportError as error:
            raise PipelineError(f"the pipeline needs Spark: pip install 'holtmq[spark]' ({error})") from error
        from py4j.protocol import Py4JError
        from pyarrow import ArrowException
        from pyspark.errors import PySparkException

        spark, is_ours, interrupts = None, not _has_session(), _Interrupts()
        try:
            with interrupts.deferred():
                spark = session(self.master, app_name=f"holtmq {self.what}", config=dict(pairs(self.conf)))
            with (
                interrupts,
                SparkProgress(spark, self.what) as progress,
                RunAnnouncer(self.what, self.about, progress.read_rows, interrupts.explain, progress.lag),
            ):
                yield spark, progress
        except (KeyboardInterrupt, Py4JError, PySparkException, ArrowException) as error:
            reason = interrupts.explain(error)
            if reason is None:
                if spark is not None and not is_ours:
                    in_new_thread(spark.sparkContext.cancelAllJobs)
                raise InterruptedRunError(f"interrupted: {self.interrupted}") from None
            raise PipelineError(reason) from error
        finally:
            if is_ours and spark is not None:
                in_new_thread(spark.stop)


def _has_session() -> bool:
    """Return whether this process has a session: an active one, or one that another thread of Java has made.

    After an interrupt, calls come from a new thread of Java, in which no session is active.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        SparkSession.active()
    except PySparkException:
        return False
    return True


class _Interrupts:
    """Lets SIGINT raise KeyboardInterrupt, and remembers that it did.

    PySpark's own handler calls Java through the connection that the interrupted call is using, which fails. Py4J closes that
    connection and logs a traceback. The next call to Java then raises another error, which hides the interrupt.
    """

    def __init__(self) -> None:
        self.happened = False
        self._is_deferred = False
        self._before: Any = None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the first SIGINT raise KeyboardInterrupt at the end, and another one at once.

        If the start of Java is interrupted, Java prints a stack trace and stays. A cluster may let it wait for long.
        """
        with self:
            self._is_deferred = True
            try:
                yield
            finally:
                self._is_deferred = False
        if self.happened:
            raise KeyboardInterrupt

    def __enter__(self) -> _Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        logging.getLogger().addFilter(_is_not_py4j)  # also for PySpark's own handler, which it sets when its context starts
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeFilter(_is_not_py4j)
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def explain(self, error: BaseException) -> str | None:
        """Return the cause of an error, or None if it is, or follows, an interrupt."""
        if self.happened or isinstance(error, KeyboardInterrupt):
            return None
        return summarise_spark_error(str(getattr(error, "java_exception", error)))  # Py4J's own text is a stack trace

    def _interrupt(self, *_: object) -> None:
        is_first, self.happened = not self.happened, True
        if self._is_deferred and is_first:
            return
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        raise KeyboardInterrupt


def _is_not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def pairs(texts: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of options such as NAME=VALUE."""
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
        yield name, value


def summarise_spark_error(text: str) -> str:
    """Return the line of an error that names the cause: our own if there is one, otherwise Spark's first line."""
    if text.lstrip().startswith(f"[{NO_FILES}]"):
        return "SOURCE contains no files with messages: expected at least one file in the format that --format names"
    ours = re.findall(r"^(?:\w+\.)*(?:\w+Error): (.+)$", text, re.MULTILINE)
    first = next((line for line in text.splitlines() if line.strip()), text)
    return str(ours[-1]) if ours else re.sub(r"^(?:\w+\.)+\w+(?:Exception|Error): ", "", first)
