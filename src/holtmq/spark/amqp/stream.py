"""The stream reader, as Spark calls it: micro-batches of the segments of a spool.

The guarantees of each option (docs/pipeline.md, tested by tests/spark/test_guarantees.py):

- `ack=commit`: a message is acknowledged when its micro-batch is committed. After a crash the spool is discarded, and the
  broker redelivers all other messages. At least once.
- `ack=spool`: a message is acknowledged when a micro-batch includes it and it is on disk in the spool, which must survive the
  process. After a crash the same segments form the same batches. Exactly once for a sink that writes a batch once, such as
  files.

Spark commits a batch to a source only when it plans the next one. After the last message, the reader therefore returns one
more offset without messages, which triggers that commit. `read` runs on the executors. Everything else runs on the driver, in
one long-lived process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holtmq.client.run_announcer import RunAnnouncer
from holtmq.spark.amqp.amqp_options import BrokerOptions, StreamOptions
from holtmq.spark.amqp.columns import with_all_columns
from holtmq.spark.amqp.reading import QUEUES
from holtmq.spark.amqp.spool import Spool, SpoolError
from holtmq.spark.amqp.stream_intake import PAUSE_S, Intake
from holtmq.spark.amqp.subscription import Subscription
from holtmq.spark.amqp.task_output import without_traceback
from holtmq.spark.job_announcement import announced_stream, end_stream


class SegmentPartition(InputPartition):
    """The files of a segment and their spool. Tasks have another instance of the reader."""

    def __init__(self, spool: str, number: int, names: list[str]) -> None:
        super().__init__(number)
        self.spool = spool
        self.names = names


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues as a stream. Spark calls `read` on the executors, and all other methods on the driver.

    The constructor checks nothing: Spark hides the error of a stream reader that cannot be created. `load()` has checked all
    options but whether they are for streams, and the first use checks that.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._given = options
        self._intake: Intake | None = None
        self._run: RunAnnouncer | None = None
        self._start = self._end = self.initialOffset()

    @cached_property
    def _options(self) -> StreamOptions:
        return QUEUES.parse_stream(self._given)

    # Spark calls these on the driver, always from one thread. The first call to latestOffset starts the receivers.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first segment: its number, the number of messages, and of offsets without any."""
        return {"segment": 0, "messages": 0, "tick": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a micro-batch."""
        return ReadMaxRows(self._options.batch_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how many messages are in the queues now. The stream ends when they are read."""
        self._running().end_when_empty()  # after a previous user of the spool has ended and requeued its messages

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Plan the next micro-batch, and return its end. Wait for messages if the stream has an end."""
        intake = self._running()
        intake.start(start["segment"])
        self._end = self._next_offset(intake, start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._start = start
        return self._end

    def _next_offset(self, intake: Intake, start: dict[str, Any], most: int | None) -> dict[str, Any]:
        while True:
            taken = intake.ledger.taken
            end = intake.plan(start["segment"], most)
            if end is not None:
                messages = start.get("messages", 0) + intake.ledger.taken - taken  # old checkpoints have no such number
                return {**start, "segment": end, "messages": messages}
            if intake.ledger.has_planned:  # Spark commits them when the offset changes
                return {**start, "tick": start["tick"] + 1}
            if not intake.expects_more():
                if intake.is_complete and self._run is not None:  # Spark kills this process next, without a call of stop()
                    self._run.end("finished")
                return start
            time.sleep(PAUSE_S)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the last offset with the metrics of the stream, for the progress of the query."""
        if self._intake is None:
            return None
        return {**self._end, **self._intake.metrics(self._start["segment"]).to_dict()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition per segment. Raise SpoolError if segments are missing that cannot be received again."""
        intake = self._running()
        numbers = range(start["segment"] + 1, end["segment"] + 1)
        found = intake.spool.segments() if numbers else {}
        keeps_spool = self._options.keeps_spool
        missing = [number for number in numbers if number not in found and (keeps_spool or intake.ledger.is_planned(number))]
        if missing:
            what = "their messages are acknowledged and lost" if keeps_spool else "they are not committed yet"
            raise SpoolError(
                f"segments {missing} of the spool {intake.spool.uri} are missing, and {what}: was the folder deleted?"
            )
        # segments that a crash has lost are not acknowledged: the broker redelivers their messages
        return [SegmentPartition(intake.spool.uri, number, found[number]) for number in numbers if number in found]

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the segments of committed batches and, with ack=commit, acknowledge their messages."""
        self._running().ledger.commit(end["segment"])

    def stop(self) -> None:
        """Stop the receivers."""
        if self._run is not None:
            end_stream(self._run)
        if self._intake is not None:
            self._intake.stop()

    # Spark calls this on the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a segment."""
        assert isinstance(partition, SegmentPartition)
        return without_traceback(map(with_all_columns, Spool(partition.spool).read(partition.names)))

    def _running(self) -> Intake:
        if self._intake is None:
            broker = BrokerOptions.parse(self._given)
            self._intake = intake = Intake(Subscription(broker, self._options), self._options)
            # without a lag from here, the broker shows that of the queue
            self._run = announced_stream(broker, self._options, lambda: intake.ledger.taken, lambda: None).start()
        return self._intake
