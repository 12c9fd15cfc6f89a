"""A thread that consumes a queue into the spool, and acknowledges when it is told that it may.

It has the connection to itself: what others want acknowledged they leave in a list. When the connection breaks it makes a
new one; what was not acknowledged on the old one comes again, marked as redelivered. Runs on the driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection, ConnectionLostError
from holtmq.spark.amqp.columns import Rows
from holtmq.spark.amqp.spool import Spool
from holtmq.wire import methods as wire

POLL_S = 0.02
LONGEST_GATHERING_S = 0.25
"""A segment is closed when it is full, when nothing more comes, or at the latest after this."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
PATIENCE_S = 60.0
"""A broker that is away for longer fails the query."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the spool, and what there is to acknowledge for it: tags count within one connection."""

    name: str
    rows: int
    receiver: Receiver | None
    connection_number: int
    last_tag: int


class Receiver(threading.Thread):
    def __init__(
        self,
        connect: Callable[[], BlockingConnection],
        queue: str,
        spool: Spool,
        *,
        prefetch: int,
        segment_rows: int,
        order: Callable[[], int],
        publish: Callable[[Segment], None],
    ) -> None:
        super().__init__(name=f"receiver of {queue}", daemon=True)
        self._connect = connect
        self._queue = queue
        self._spool = spool
        self._prefetch = prefetch
        self._segment_rows = segment_rows
        self._order = order
        self._publish = publish
        self._rows = Rows(queue)
        self._stopping = threading.Event()
        self._may_ack: list[Segment] = []
        self._connection_number = 0
        self.error: Exception | None = None
        self.idle_since: float | None = None
        """Since when nothing has come, None while something does."""

    def acknowledge(self, segment: Segment) -> None:
        self._may_ack.append(segment)

    def has(self, segment: Segment) -> bool:
        """Whether the connection on which it came is still there."""
        return segment.connection_number == self._connection_number

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause_s, lost_at = FIRST_PAUSE_S, None
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    pause_s, lost_at = FIRST_PAUSE_S, None
                    self._consume(connection)
            except ConnectionLostError as error:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > PATIENCE_S:
                    self.error = error
                    return
                self._stopping.wait(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            except Exception as error:  # noqa: BLE001  # whatever it is, the query must hear of it
                self.error = error
                return
            finally:
                self._connection_number += 1

    def _consume(self, connection: BlockingConnection) -> None:
        connection.call(wire.BasicQos(0, self._prefetch, False), wire.BasicQosOk)
        connection.call(wire.BasicConsume(0, self._queue, "holtmq"), wire.BasicConsumeOk)
        gathering_since = 0.0
        while not self._stopping.is_set():
            has_come = connection.receive(POLL_S)
            self._acknowledge(connection)
            if connection.is_cancelled:
                raise ConnectionLostError(f"queue {self._queue!r} is gone")
            waiting = len(connection.deliveries)
            if not waiting:
                self.idle_since = self.idle_since or time.monotonic()
                gathering_since = time.monotonic()
                continue
            self.idle_since = None
            is_late = time.monotonic() - gathering_since > LONGEST_GATHERING_S
            if waiting >= self._segment_rows or not has_come or is_late:
                self._close_segments(connection)
                gathering_since = time.monotonic()
        self._acknowledge(connection)

    def _close_segments(self, connection: BlockingConnection) -> None:
        deliveries, connection.deliveries = connection.deliveries, []
        for start in range(0, len(deliveries), self._segment_rows):
            piece = deliveries[start : start + self._segment_rows]
            name = self._spool.write(self._rows.of(piece), self._order())
            segment = Segment(name, len(piece), self, self._connection_number, piece[-1].tag)
            self._publish(segment)

    def _acknowledge(self, connection: BlockingConnection) -> None:
        ready, self._may_ack = self._may_ack, []
        tags = [segment.last_tag for segment in ready if segment.connection_number == self._connection_number]
        if tags:
            connection.send(CHANNEL, wire.BasicAck(max(tags), True))
