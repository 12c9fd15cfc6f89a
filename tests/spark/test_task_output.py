"""What a worker process prints when Spark closes its connection."""

from __future__ import annotations

import io
import sys
import traceback
from typing import Any

import pytest
from pyspark import TaskContext

from holtmq.spark.amqp import task_output

WRITE = "def write(error):\n    raise error"


@pytest.mark.parametrize(
    ("module", "error", "printed"),
    [
        ("pyspark.daemon", BrokenPipeError(), ""),
        ("pyspark.worker", ConnectionResetError(), ""),
        ("pyspark.daemon", ValueError(), "ValueError"),
        ("someone.elses", BrokenPipeError(), "BrokenPipeError"),
    ],
)
def test_only_a_connection_that_spark_closed_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, module: str, error: Exception, printed: str
) -> None:
    space: dict[str, Any] = {"__name__": module}
    exec(WRITE, space)  # a function of that module
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(TaskContext, "get", lambda: object())
    assert list(task_output.without_traceback(iter(()))) == []
    try:
        space["write"](error)
    except Exception:  # noqa: BLE001  # as PySpark does
        traceback.print_exc()
    assert stderr.getvalue().splitlines()[-1:] == ([printed] if printed else [])


def test_the_stderr_of_the_driver_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    task_output.without_traceback(iter(()))
    assert sys.stderr is stderr
