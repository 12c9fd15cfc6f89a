"""The output of a task that Spark reads only in part, as `limit` and `show` do. Runs on the executors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark import TaskContext


def without_traceback(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the batches. If Spark needs no more of them and closes its end, the worker process ends without a word.

    PySpark prints a traceback then, although nothing is wrong: its worker cannot write to Spark any more.
    """
    if TaskContext.get() is not None and not isinstance(sys.stderr, WorkerErrors):
        sys.stderr = WorkerErrors(sys.stderr)
    return batches


class WorkerErrors:
    """The stderr of a worker process. It ignores what PySpark writes while it handles a connection that Spark has closed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        error = sys.exc_info()[1]
        is_closed = isinstance(error, BrokenPipeError | ConnectionResetError) and _is_raised_by_pyspark(error.__traceback__)
        return len(text) if is_closed else int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_raised_by_pyspark(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] in ("pyspark", "__main__")
