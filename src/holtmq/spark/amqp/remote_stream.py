"""A stream queue, as a client sees it: its first offset, its end, and the offset of a time.

AMQP 0-9-1 has no request for these. Each is read off the deliveries of a consumer that starts there.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from holtmq.client.blocking_connection import BlockingConnection, ConnectionLostError
from holtmq.client.delivered_offset import NotAStreamError
from holtmq.client.offset_consumer import ConsumeFrom, OffsetConsumer, offset_of
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.amqp_options import BrokerOptions
from holtmq.spark.amqp.offset_position import Position, since
from holtmq.spark.amqp.stream_mark import StreamMark

ATTEMPTS = 10
"""Two consumers see different messages if the retention of the stream removes the first ones in between: they look again."""
MISSES = 3
"""Number of times that the second consumer must be left without a message in a queue that is not a stream."""
TAIL_PREFETCH = 500
"""A tail that has received this many messages since it was asked last is far behind."""
LONGEST_CHASE_S = 5.0
"""A tail may not catch up with fast publishers. What they publish in this time need not be included."""


class RemoteStream:
    """A stream queue. It keeps a consumer at the end, because a query asks for the end once per micro-batch."""

    def __init__(self, broker: BrokerOptions, queue: str) -> None:
        self.queue = queue
        self.mark: StreamMark | None = None
        """The last message that `end` has seen."""
        self.attachments = 0
        """How often `end` has opened a connection. From one to the next, the stream may have become another one."""
        self._broker = broker
        self._connection: BlockingConnection | None = None
        self._tail: OffsetConsumer | None = None
        self._end: int | None = None
        self._is_checked = False

    def find(self, position: Position) -> int | None:
        """Return the offset of a position, or None if the stream is empty. A time in the future is the end."""
        match position:
            case "earliest":
                return self.first()
            case "latest":
                return self.end()
            case int():
                return position
            case timedelta():
                return self._find_time(since(position, datetime.now(UTC)))
            case _:
                return self._find_time(position)

    def first(self) -> int | None:
        """Return the offset of the first message, or None if the stream is empty.

        Raise NotAStreamError if the queue is not a stream, in which an acknowledgement would remove a message. Only a stream
        delivers a message to two consumers at a time. A broker that is busy, or has just removed the first messages, may
        leave the second one without a delivery for a while.
        """
        misses = 0
        for _ in range(ATTEMPTS):
            with self._broker.connect("holtmq.spark") as connection:
                first = self._first_from(connection, "first", may_be_missing=False)
                if first is None:
                    return None
                with self._broker.connect("holtmq.spark") as another:
                    second = self._first_from(another, "first", may_be_missing=True)
            if second is None:
                misses += 1
                if misses == MISSES:
                    break
            elif second == first:
                self._is_checked = True
                return first
        raise NotAStreamError(self.queue)

    def end(self) -> int | None:
        """Return the offset after the last message, or None if the stream is empty.

        The first call includes all messages that the broker has confirmed before, and so does one after `close`. Later calls
        include what has reached the consumer at the end. A lost connection is opened again once.
        """
        if not self._is_checked and self.first() is None:
            return None
        if self._tail is not None:
            try:
                return self._follow(self._tail)
            except ConnectionLostError:
                self.close()
        self.attachments += 1
        return self._follow(self._attach())

    def is_another(self, mark: StreamMark) -> bool:
        """Return whether the stream lacks a message that it had, or has another one at that offset.

        Return False if retention has removed that message, or if it is damaged now: it is not known then.
        """
        with self._broker.connect("holtmq.spark") as connection:
            found = self._delivery_from(connection, mark.offset, may_be_missing=True)
        if found is None:
            end = self.end()
            return end is None or end <= mark.offset
        if found.redelivered or offset_of(found, self.queue) != mark.offset:
            return False
        return StreamMark.of(found, self.queue) != mark

    def close(self) -> None:
        """Close the connection of the tail."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._tail = None

    def _find_time(self, moment: datetime) -> int | None:
        with self._broker.connect("holtmq.spark") as connection:
            found = self._first_from(connection, moment, may_be_missing=True)
        return self.end() if found is None else found

    def _first_from(self, connection: BlockingConnection, start: ConsumeFrom, *, may_be_missing: bool) -> int | None:
        """Return the offset of the first delivery, or None if there is none."""
        found = self._delivery_from(connection, start, may_be_missing=may_be_missing)
        return None if found is None else offset_of(found, self.queue)

    def _delivery_from(self, connection: BlockingConnection, start: ConsumeFrom, *, may_be_missing: bool) -> Delivery | None:
        """Return the first delivery, or None if there is none. Nothing is acknowledged."""
        consumer = OffsetConsumer(connection, self.queue, start, prefetch=1)
        return consumer.waiting[0] if consumer.has_first(may_be_missing=may_be_missing) else None

    def _attach(self) -> OffsetConsumer:
        self._connection = self._broker.connect("holtmq.spark")
        self._tail = OffsetConsumer(self._connection, self.queue, "last", prefetch=TAIL_PREFETCH)
        self._end = None
        self._tail.has_first()
        return self._tail

    def _follow(self, tail: OffsetConsumer) -> int | None:
        """Read to the end. A tail that is far behind starts again at the last messages, because that is quicker."""
        if self._end is not None:
            while len(tail.waiting) < TAIL_PREFETCH and tail.receive(0):
                pass
            if len(tail.waiting) >= TAIL_PREFETCH:
                self.close()
                tail = self._attach()
        deadline = time.monotonic() + LONGEST_CHASE_S
        while True:
            if deliveries := tail.take():
                self._end = offset_of(deliveries[-1], self.queue) + 1
                self._note(deliveries)
            tail.settle()
            if not tail.waiting or time.monotonic() > deadline:
                return self._end

    def _note(self, deliveries: list[Delivery]) -> None:
        """Note the last message. The report of a damaged one does not say what it was."""
        for delivery in reversed(deliveries):
            if not delivery.redelivered:
                self.mark = StreamMark.of(delivery, self.queue)
                return
