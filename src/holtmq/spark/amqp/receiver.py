"""A thread that consumes a queue into the spool and acknowledges messages on request. Runs on the driver.

Only this thread uses the connection. Other threads add segments to a list, and the receiver acknowledges them. When the
connection is lost, the receiver opens a new one. The broker then redelivers all unacknowledged messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection, ConnectionLostError
from holtmq.spark.amqp.columns import RowEncoder
from holtmq.spark.amqp.spool import Spool
from holtmq.wire import methods as wire

POLL_S = 0.02
LONGEST_GATHERING_S = 0.25
"""A segment is closed when it is full, when no message arrives for POLL_S, and at the latest after this time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
RECONNECT_TIMEOUT_S = 60.0
"""The query fails if the broker is unreachable for longer than this."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of the spool, and the delivery tag that acknowledges it. Tags are valid for one connection only."""

    name: str
    rows: int
    receiver: Receiver | None
    connection_number: int
    last_tag: int


class Receiver(threading.Thread):
    """Consumes one queue on one connection. `publish` is called with each segment that is on disk."""

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
        self._encoder = RowEncoder(queue)
        self._stopping = threading.Event()
        self._may_ack: list[Segment] = []
        self._connection_number = 0
        self.error: Exception | None = None
        self.idle_since: float | None = None
        """Time of the last message, or None while messages arrive."""

    def acknowledge(self, segment: Segment) -> None:
        """Request the acknowledgement of a segment. Other threads call this."""
        self._may_ack.append(segment)

    def has(self, segment: Segment) -> bool:
        """Return whether the connection that received the segment is still open."""
        return segment.connection_number == self._connection_number

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def run(self) -> None:
        """Consume until stopped, and reconnect when the connection is lost."""
        pause_s, lost_at = FIRST_PAUSE_S, None
        while not self._stopping.is_set():
            try:
                with self._connect() as connection:
                    pause_s, lost_at = FIRST_PAUSE_S, None
                    self._consume(connection)
            except ConnectionLostError as error:
                lost_at = lost_at or time.monotonic()
                if time.monotonic() - lost_at > RECONNECT_TIMEOUT_S:
                    self.error = error
                    return
                self._stopping.wait(pause_s)
                pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
            except Exception as error:  # noqa: BLE001  # reported by the query, in its own thread
                self.error = error
                return
            finally:
                self._connection_number += 1

    def _consume(self, connection: BlockingConnection) -> None:
        connection.call(wire.BasicQos(0, self._prefetch, False), wire.BasicQosOk)
        connection.call(wire.BasicConsume(0, self._queue, "holtmq"), wire.BasicConsumeOk)
        gathering_since = 0.0
        while not self._stopping.is_set():
            has_received = connection.receive(POLL_S)
            self._acknowledge(connection)
            if connection.is_cancelled:
                raise ConnectionLostError(f"the broker cancelled the consumer of queue {self._queue!r}: was the queue deleted?")
            waiting = len(connection.deliveries)
            if not waiting:
                self.idle_since = self.idle_since or time.monotonic()
                gathering_since = time.monotonic()
                continue
            self.idle_since = None
            is_late = time.monotonic() - gathering_since > LONGEST_GATHERING_S
            if waiting >= self._segment_rows or not has_received or is_late:
                self._close_segments(connection)
                gathering_since = time.monotonic()
        self._acknowledge(connection)

    def _close_segments(self, connection: BlockingConnection) -> None:
        deliveries, connection.deliveries = connection.deliveries, []
        for start in range(0, len(deliveries), self._segment_rows):
            piece = deliveries[start : start + self._segment_rows]
            name = self._spool.write(self._encoder.encode(piece), self._order())
            segment = Segment(name, len(piece), self, self._connection_number, piece[-1].tag)
            self._publish(segment)

    def _acknowledge(self, connection: BlockingConnection) -> None:
        ready, self._may_ack = self._may_ack, []
        tags = [segment.last_tag for segment in ready if segment.connection_number == self._connection_number]
        if tags:
            connection.send(CHANNEL, wire.BasicAck(max(tags), True))
