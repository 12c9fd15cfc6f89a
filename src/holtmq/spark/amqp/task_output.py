"""The output of a task that Spark reads only in part, as `limit` and `show` do."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext


def without_traceback(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches. If Spark closes its end earlier, close stderr, to which the worker would write a traceback.

    The worker process can only end then: its output is a broken pipe. An error of ours reaches Spark another way.
    """
    try:
        yield from batches
    except GeneratorExit:
        if TaskContext.get() is not None:  # a worker process
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 2)
            os.close(nowhere)
        raise
