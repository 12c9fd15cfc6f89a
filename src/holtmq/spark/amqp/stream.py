"""The stream reader: micro-batches of the segments of a spool.

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

import itertools
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holtmq.errors import HoltmqError
from holtmq.spark.amqp.amqp_options import BrokerOptions, StreamOptions, require_known
from holtmq.spark.amqp.batch import ready_messages
from holtmq.spark.amqp.receiver import Receiver, Segment
from holtmq.spark.amqp.spool import Spool, SpoolError

QUIET_S = 0.15
"""When no receiver gets a message for this long, the queue may be empty, and the broker is asked."""
PAUSE_S = 0.01


class StreamError(HoltmqError):
    """A receiver failed, and the stream cannot continue."""


class SegmentPartition(InputPartition):
    """A segment and its spool. Tasks have another instance of the reader."""

    def __init__(self, spool: str, number: int) -> None:
        super().__init__(number)
        self.spool = spool
        self.number = number


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue as a stream. Spark calls `read` on the executors, and all other methods on the driver."""

    def __init__(self, options: dict[str, str]) -> None:
        require_known(options, BrokerOptions, StreamOptions)
        self._broker = BrokerOptions.parse(options)
        self._options = StreamOptions.parse(options)
        prefetched = self._options.prefetch * self._options.receivers
        self._max_rows = self._options.max_messages_per_trigger or max(1, prefetched // 2)
        self._segment_rows = min(self._options.segment_rows, self._max_rows)
        self._keeps_spool = self._options.ack == "spool"
        self._running: _Running | None = None

    # Spark calls these on the driver, always from one thread. The first call to latestOffset starts the receivers.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first segment."""
        return {"segment": 0, "tick": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a micro-batch."""
        return ReadMaxRows(self._max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how many messages are in the queue now. The stream ends when they are read."""
        state = self._state()  # first: this waits until a previous user of the spool has ended and requeued its messages
        with self._broker.connect("holtmq.spark") as connection:
            state.target = ready_messages(connection, self._options.queue)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Number the segments for the next micro-batch, and return its end. Wait for messages if the stream has an end."""
        state = self._state()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        state.start(start["segment"])
        while True:
            taken = state.take(most)
            if taken:
                for number, segment in enumerate(taken, start["segment"] + 1):
                    state.number(segment, number)
                return {"segment": start["segment"] + len(taken), "tick": start["tick"]}
            if state.numbered:  # planned by Spark, which commits them when the offset changes
                return {"segment": start["segment"], "tick": start["tick"] + 1}
            if not state.expects_more():
                return start
            time.sleep(PAUSE_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one partition per segment. Raise SpoolError if segments are missing that cannot be received again."""
        state = self._state()
        numbers = range(start["segment"] + 1, end["segment"] + 1)
        there = [number for number in numbers if state.spool.has(number)]
        missing = [number for number in sorted({*numbers} - {*there}) if self._keeps_spool or number in state.numbered]
        if missing:
            what = "their messages are acknowledged and lost" if self._keeps_spool else "they are not committed yet"
            raise SpoolError(
                f"segments {missing} of the spool {state.spool.uri} are missing, and {what}: was the folder deleted?"
            )
        # segments that a crash has lost are not acknowledged: the broker redelivers their messages
        return [SegmentPartition(state.spool.uri, number) for number in there]

    def commit(self, end: dict[str, Any]) -> None:
        """Delete the segments of committed batches and, with ack=commit, acknowledge their messages."""
        self._state().commit(end["segment"])

    def stop(self) -> None:
        """Stop the receivers."""
        if self._running is not None:
            self._running.stop()

    # Spark calls this on the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a segment."""
        assert isinstance(partition, SegmentPartition)
        return Spool(partition.spool).read(partition.number)

    def _state(self) -> _Running:
        self._running = self._running or _Running(self)
        return self._running


class _Running:
    """The running half of a reader: the receivers and their segments. Runs on the driver."""

    def __init__(self, reader: QueueStreamReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._fresh: deque[Segment] = deque()
        self.numbered: dict[int, Segment] = {}
        """Segments that belong to a batch and are not committed."""
        self.target: int | None = None
        """Total number of messages to read, or None for a stream without end."""
        self._taken = 0
        self._receivers: list[Receiver] = []
        uri = reader._options.spool
        self.spool = Spool(uri) if uri is not None and reader._keeps_spool else Spool.temporary(uri)
        self.spool.acquire()
        self._is_started = False

    def start(self, last: int) -> None:
        """Start the receivers once. `last` is the last segment that Spark has recorded in a batch."""
        if self._is_started:
            return
        self._is_started = True
        reader = self._reader
        if reader._keeps_spool:
            self._recover(last)
        counter = itertools.count(time.time_ns() // 1000)
        for _ in range(reader._options.receivers):
            receiver = Receiver(
                lambda: reader._broker.connect("holtmq.spark"),
                reader._options.queue,
                self.spool,
                prefetch=reader._options.prefetch,
                segment_rows=reader._segment_rows,
                order=lambda: next(counter),
                publish=self._add,
            )
            receiver.start()
            self._receivers.append(receiver)

    def _recover(self, last: int) -> None:
        """Add the segments that an earlier process has acknowledged and that no batch includes."""
        self.spool.remove_fresh()
        self._fresh.extend(Segment(name, rows, None, 0, 0) for name, rows in self.spool.recover(last))
        if self.target is not None:
            self.target += sum(segment.rows for segment in self._fresh)

    def _add(self, segment: Segment) -> None:
        with self._lock:
            self._fresh.append(segment)

    def take(self, most: int | None) -> list[Segment]:
        """Remove and return the oldest segments with at most `most` rows, but at least one segment if there is any."""
        taken: list[Segment] = []
        rows = 0
        with self._lock:
            self._drop_lost()
            while self._fresh and (not taken or most is None or rows + self._fresh[0].rows <= most):
                if self.target is not None and self._taken >= self.target:
                    break
                segment = self._fresh.popleft()
                taken.append(segment)
                rows += segment.rows
                self._taken += segment.rows
        return taken

    def _drop_lost(self) -> None:
        """Discard segments of lost connections. Their messages are unacknowledged and will be redelivered."""
        lost = [segment for segment in self._fresh if segment.receiver is not None and not segment.receiver.has(segment)]
        for segment in lost:
            self._fresh.remove(segment)
            self.spool.discard(segment.name)

    def number(self, segment: Segment, number: int) -> None:
        """Record that a batch includes the segment."""
        self.spool.number(segment.name, number)
        self.numbered[number] = segment
        if self._reader._keeps_spool and segment.receiver is not None:
            segment.receiver.acknowledge(segment)

    def expects_more(self) -> bool:
        """Return whether latestOffset should wait for messages: only if the stream has an end that is not reached yet."""
        for receiver in self._receivers:
            if receiver.error is not None:
                raise StreamError(str(receiver.error)) from receiver.error
        if self.target is None or self._taken >= self.target:
            return False
        now = time.monotonic()
        if any(receiver.idle_since is None or now - receiver.idle_since < QUIET_S for receiver in self._receivers):
            return True
        with self._reader._broker.connect("holtmq.spark") as connection:
            is_empty = not ready_messages(connection, self._reader._options.queue)
        return not (is_empty and not self._fresh)

    def commit(self, last: int) -> None:
        """Delete the segments up to `last`. With ack=commit, acknowledge their messages."""
        for number in [number for number in self.numbered if number <= last]:
            segment = self.numbered.pop(number)
            if segment.receiver is not None and not self._reader._keeps_spool:
                segment.receiver.acknowledge(segment)
        self.spool.remove_up_to(last)

    def stop(self) -> None:
        """Stop the receivers. Unlock the spool if it is kept, otherwise delete it."""
        for receiver in self._receivers:
            receiver.stop()
        for receiver in self._receivers:
            receiver.join()
        if self._reader._keeps_spool:
            self.spool.remove_fresh()
            self.spool.release()
        else:
            self.spool.remove()
