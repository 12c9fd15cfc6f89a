"""Reading a range of offsets from the broker. Runs on the executors."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from holtmq.client.blocking_connection import REPLY_TIMEOUT_S, ConnectionLostError, RefusedError
from holtmq.client.offset_consumer import OffsetConsumer
from holtmq.errors import HoltmqError, NotFoundError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.offset_column import OffsetRowEncoder
from holtmq.spark.amqp.offset_range import OffsetRange
from holtmq.spark.amqp.receiver import FIRST_PAUSE_S, LONGEST_PAUSE_S, RECONNECT_TIMEOUT_S
from holtmq.spark.amqp.remote_stream import RemoteStream

PREFETCH = 8_000
BATCH_ROWS = 5_000
BATCH_BYTES = 16 * 1024 * 1024
SKIP = "set failOnDataLoss to false to skip them (--allow-data-loss)"
logger = logging.getLogger(__name__)


class DataLossError(HoltmqError):
    """Messages were removed from a stream before they were read, or are damaged."""


class RangeReader:
    """Reads a range. When the connection is lost, it connects again and goes on where it was."""

    def __init__(self, broker: BrokerOptions, part: OffsetRange, *, fail_on_data_loss: bool) -> None:
        self._broker = broker
        self._range = part
        self._fail_on_data_loss = fail_on_data_loss
        self._encoder = OffsetRowEncoder(part.queue, part.planned_at)
        self._next = part.start

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range in the order of their offsets."""
        pause_s, lost_at = FIRST_PAUSE_S, None
        while self._next < self._range.end:
            before = self._next
            try:
                yield from self._consume()
            except ConnectionLostError:
                now = time.monotonic()
                lost_at = now if lost_at is None or self._next > before else lost_at
                if now - lost_at > RECONNECT_TIMEOUT_S:
                    raise
                time.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            except RefusedError as error:
                if error.reply_code != NotFoundError.reply_code:
                    raise
                report_deletion(self._range.queue, self._next, self._range.end, fails=self._fail_on_data_loss)
                return

    def _consume(self) -> Iterator[pa.RecordBatch]:
        with self._broker.connect("holtmq.spark") as connection:
            prefetch = min(PREFETCH, self._range.end - self._next)
            consumer = OffsetConsumer(connection, self._range.queue, self._next, prefetch=prefetch)
            while self._next < self._range.end:
                rows, damaged, after = self._encoder.encode(self._gather(consumer), self._next, self._range.end)
                if damaged:
                    report_damage(self._range.queue, damaged, fails=self._fail_on_data_loss)
                if rows.num_rows + len(damaged) < min(after, self._range.end) - self._next:
                    self._check_first()
                self._next = after
                if rows.num_rows:
                    yield rows

    def _gather(self, consumer: OffsetConsumer) -> list[Delivery]:
        """Wait for deliveries, and take as many as arrive without a pause, up to the size of a batch."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        wanted = min(BATCH_ROWS, self._range.end - self._next)
        size = counted = 0
        while len(consumer.waiting) < wanted and size < BATCH_BYTES:
            if consumer.receive(REPLY_TIMEOUT_S if not consumer.waiting else 0.02):
                size += sum(len(delivery.body) for delivery in consumer.waiting[counted:])
                counted = len(consumer.waiting)
            elif consumer.waiting:
                break
            elif time.monotonic() > deadline:
                raise HoltmqError(
                    f"expected offset {self._next:,} of the stream {self._range.queue!r}, and the broker delivered nothing for "
                    f"{REPLY_TIMEOUT_S:g} s: was the stream deleted and declared again?"
                )
        return consumer.take()

    def _check_first(self) -> None:
        """Raise DataLossError, or log it, if the next offsets were removed. Other gaps in the offsets contain no messages."""
        first = RemoteStream(self._broker, self._range.queue).first()
        if first is None or first <= self._next:
            return
        report_loss(self._range.queue, self._next, first, fails=self._fail_on_data_loss)


def report_loss(queue: str, start: int, first: int, *, fails: bool) -> None:
    """Raise DataLossError if a loss of messages is an error, or else log it."""
    lost = f"the messages from offset {start:,} on were removed from the stream {queue!r}, which starts at {first:,} now"
    _report(lost, f"{SKIP}, or start at another offset", fails=fails)


def report_deletion(queue: str, start: int, end: int, *, fails: bool) -> None:
    """Raise DataLossError if a loss of messages is an error, or else log it."""
    lost = f"the stream {queue!r} was deleted before its messages from offset {start:,} to {end - 1:,} were read"
    _report(lost, SKIP, fails=fails)


def report_replacement(queue: str, offset: int, first: int, *, fails: bool) -> None:
    """Raise DataLossError if a loss of messages is an error, or else log it."""
    lost = (
        f"the stream {queue!r} was deleted and declared again. The query was at offset {offset:,} of the earlier one, whose "
        "messages from there on are lost"
    )
    advice = f"set failOnDataLoss to false to read the new one from offset {first:,} on (--allow-data-loss)"
    _report(lost, advice, fails=fails)


def report_damage(queue: str, offsets: list[int], *, fails: bool) -> None:
    """Raise DataLossError if a loss of messages is an error, or else log it."""
    which = f"the message at offset {offsets[0]:,} of the stream {queue!r} is damaged"
    if len(offsets) > 1:
        which = f"{len(offsets):,} messages of the stream {queue!r} are damaged, from offset {offsets[0]:,} to {offsets[-1]:,}"
    _report(f"{which} in the broker's file", f"the broker's log says how. S{SKIP[1:]}", fails=fails)


def _report(lost: str, advice: str, *, fails: bool) -> None:
    if fails:
        raise DataLossError(f"{lost}: {advice}")
    logger.warning("%s. They are skipped", lost)
