"""The sink: rows are published with confirms. A task ends when the broker has confirmed all of its messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holtmq.client.publisher import PublishError, ReceivedConfirms
from holtmq.client.stepwise_run import StepwiseRun
from holtmq.spark.amqp.amqp_options import BrokerOptions, PublishOptions
from holtmq.spark.amqp.row_publisher import RowPublisher
from holtmq.spark.job_announcement import require_announce, sink_run


@dataclass
class Receipt(WriterCommitMessage):
    """The result of a task, sent to the driver."""

    published: ReceivedConfirms


def _published(receipts: list[WriterCommitMessage | None]) -> list[ReceivedConfirms]:
    return [receipt.published for receipt in receipts if isinstance(receipt, Receipt)]


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch job. Spark calls `write` on the executors, once per task, and `commit` or `abort` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType, application: str) -> None:
        self._publisher = RowPublisher.parse(options, schema)
        self._run = partial(_run, application, "write", options)

    def announce_start(self) -> None:
        """Tell the broker that the job starts. Runs on the driver."""
        self._run().announce("running")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._publisher.conclude(_published(messages))
        self._run().announce("finished", _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark calls this after a task, or `commit`, has failed."""
        self._run().announce("failed", _rows(messages), _reason(self._publisher, messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a stream. Spark calls `write` on the executors, and `commit` or `abort` on the driver."""

    def __init__(self, options: dict[str, str], schema: StructType, application: str) -> None:
        self._publisher = RowPublisher.parse(options, schema)
        self._run = partial(_run, application, "stream", options)
        require_announce(BrokerOptions.parse(options))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Receipt:
        return Receipt(self._publisher.send(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._publisher.conclude(_published(messages))
        self._run().announce("running", _rows(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Spark calls this after a task, or `commit`, has failed."""
        self._run().announce("failed", _rows(messages), _reason(self._publisher, messages))


def _run(application: str, job: str, options: dict[str, str]) -> StepwiseRun:
    return sink_run(application, job, BrokerOptions.parse(options), PublishOptions.parse(options).exchange)


def _rows(messages: list[WriterCommitMessage | None]) -> int:
    return sum(task.confirmed for task in _published(messages))


def _reason(publisher: RowPublisher, messages: list[WriterCommitMessage | None]) -> str:
    """Return why a write failed, as far as Spark tells."""
    try:
        publisher.conclude(_published(messages))
    except PublishError as error:
        return str(error)
    return "a task failed: the error of the job says why"
