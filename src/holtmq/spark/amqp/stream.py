"""Reading a queue for ever, or as far as it is filled now: micro-batches of the spool's segments.

What each option promises (docs/pipeline.md, shown by tests/spark/test_guarantees.py):

- `ack=commit`: a message is acknowledged when its micro-batch is committed. After a crash the broker delivers again what
  was not; the spool is thrown away. At least once.
- `ack=spool`: a message is acknowledged when a micro-batch takes it and it is on disk in the spool, which must outlive the
  process. After a crash the same segments make up the same batches: exactly once for a sink that takes a batch once, such as
  files.

Spark commits a batch to a source only when it plans the next one. So after the last message there is one more offset, with
no messages behind it, for the sake of that commit. All but `read` runs on the driver, in one long-lived process.
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
from holtmq.spark.amqp.batch import MOST_PREFETCH, ready_messages
from holtmq.spark.amqp.options import STREAMING, Options
from holtmq.spark.amqp.receiver import Receiver, Segment
from holtmq.spark.amqp.spool import Spool, SpoolError

PREFETCH = 50_000
RECEIVERS = 2
SEGMENT_ROWS = 10_000
QUIET_S = 0.15
"""A queue whose receivers all got nothing for this long may be empty: then the broker is asked."""
PAUSE_S = 0.01


class StreamError(HoltmqError):
    """The stream can't go on."""


class SegmentPartition(InputPartition):
    """A segment, and where to find it: tasks have another instance of the reader."""

    def __init__(self, spool: str, number: int) -> None:
        super().__init__(number)
        self.spool = spool
        self.number = number


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        chosen = Options(options, STREAMING)
        self._broker = chosen.broker()
        self._queue = chosen.text("queue")
        self._receiver_count = chosen.number("receivers", RECEIVERS, least=1)
        self._prefetch = chosen.number("prefetch", PREFETCH, least=1, most=MOST_PREFETCH)
        window = self._prefetch * self._receiver_count
        self._most_rows = chosen.number("maxMessagesPerTrigger", max(1, window // 2), least=1)
        self._segment_rows = min(chosen.number("segmentRows", SEGMENT_ROWS, least=1), self._most_rows)
        self._keeps_spool = chosen.one_of("ack", "commit", "spool") == "spool"
        self._spool_uri = chosen.text("spool") if self._keeps_spool else chosen.optional("spool")
        self._running: _Running | None = None

    # Spark asks for these on the driver, always from one thread. The receivers start with the first question.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"segment": 0, "tick": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        state = self._state()  # first: who had the spool before gives back what it holds
        with self._broker.connect("holtmq.spark") as connection:
            state.target = ready_messages(connection, self._queue)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        state = self._state()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        state.start(start["segment"])
        while True:
            taken = state.take(most)
            if taken:
                for number, segment in enumerate(taken, start["segment"] + 1):
                    state.number(segment, number)
                return {"segment": start["segment"] + len(taken), "tick": start["tick"]}
            if state.numbered:  # Spark has planned them, and will commit them if there is something new
                return {"segment": start["segment"], "tick": start["tick"] + 1}
            if not state.expects_more():
                return start
            time.sleep(PAUSE_S)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        state = self._state()
        numbers = range(start["segment"] + 1, end["segment"] + 1)
        there = [number for number in numbers if state.spool.has(number)]
        missing = [number for number in sorted({*numbers} - {*there}) if self._keeps_spool or number in state.numbered]
        if missing:
            what = "and were acknowledged" if self._keeps_spool else "and are still needed"
            raise SpoolError(f"segments {missing} of the spool {state.spool.uri} are gone, {what}")
        return [SegmentPartition(state.spool.uri, number) for number in there]  # others were lost in a crash, and come again

    def commit(self, end: dict[str, Any]) -> None:
        self._state().commit(end["segment"])

    def stop(self) -> None:
        if self._running is not None:
            self._running.stop()

    # And for this on the executors.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentPartition)
        return Spool(partition.spool).read(partition.number)

    def _state(self) -> _Running:
        self._running = self._running or _Running(self)
        return self._running


class _Running:
    """Receivers at work, and what they have received."""

    def __init__(self, reader: QueueStreamReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._fresh: deque[Segment] = deque()
        self.numbered: dict[int, Segment] = {}
        """Segments that a batch has taken and that are not committed."""
        self.target: int | None = None
        """How many messages there are to read in all; None for no end."""
        self._taken = 0
        self._receivers: list[Receiver] = []
        uri = reader._spool_uri
        self.spool = Spool(uri) if uri is not None and reader._keeps_spool else Spool.passing(uri)
        self.spool.hold()
        self._is_started = False

    def start(self, last: int) -> None:
        """Start to receive; `last` is the segment up to which there are batches."""
        if self._is_started:
            return
        self._is_started = True
        reader = self._reader
        if reader._keeps_spool:
            self._adopt(last)
        counter = itertools.count(time.time_ns() // 1000)
        for _ in range(reader._receiver_count):
            receiver = Receiver(
                lambda: reader._broker.connect("holtmq.spark"),
                reader._queue,
                self.spool,
                prefetch=reader._prefetch,
                segment_rows=reader._segment_rows,
                order=lambda: next(counter),
                publish=self._add,
            )
            receiver.start()
            self._receivers.append(receiver)

    def _adopt(self, last: int) -> None:
        """Take on segments that were acknowledged before this process started, and that no batch has."""
        self.spool.remove_fresh()
        self._fresh.extend(Segment(name, rows, None, 0, 0) for name, rows in self.spool.take_back(last))
        if self.target is not None:
            self.target += sum(segment.rows for segment in self._fresh)

    def _add(self, segment: Segment) -> None:
        with self._lock:
            self._fresh.append(segment)

    def take(self, most: int | None) -> list[Segment]:
        """The oldest segments, as many as the limit allows; at least one if there is one."""
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
        """Segments that were received on a connection which is lost were not acknowledged, and come again."""
        lost = [segment for segment in self._fresh if segment.receiver is not None and not segment.receiver.has(segment)]
        for segment in lost:
            self._fresh.remove(segment)
            self.spool.forget(segment.name)

    def number(self, segment: Segment, number: int) -> None:
        """A batch has the segment from now on."""
        self.spool.number(segment.name, number)
        self.numbered[number] = segment
        if self._reader._keeps_spool and segment.receiver is not None:
            segment.receiver.acknowledge(segment)

    def expects_more(self) -> bool:
        """Whether to wait: on a stream that ends, until its end; on one that does not, Spark asks again by itself."""
        for receiver in self._receivers:
            if receiver.error is not None:
                raise StreamError(str(receiver.error)) from receiver.error
        if self.target is None or self._taken >= self.target:
            return False
        now = time.monotonic()
        if any(receiver.idle_since is None or now - receiver.idle_since < QUIET_S for receiver in self._receivers):
            return True
        with self._reader._broker.connect("holtmq.spark") as connection:
            is_empty = not ready_messages(connection, self._reader._queue)
        return not (is_empty and not self._fresh)

    def commit(self, last: int) -> None:
        for number in [number for number in self.numbered if number <= last]:
            segment = self.numbered.pop(number)
            if segment.receiver is not None and not self._reader._keeps_spool:
                segment.receiver.acknowledge(segment)
        self.spool.remove_up_to(last)

    def stop(self) -> None:
        for receiver in self._receivers:
            receiver.stop()
        for receiver in self._receivers:
            receiver.join()
        if self._reader._keeps_spool:
            self.spool.remove_fresh()
            self.spool.release()
        else:
            self.spool.remove()
