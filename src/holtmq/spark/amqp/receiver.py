"""A thread that consumes queues into the spool and acknowledges messages on request. Runs on the driver.

Only this thread uses the connection. Other threads add pieces to a list, and the receiver acknowledges them. When the
connection is lost, the receiver opens a new one. The broker then redelivers all unacknowledged messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from holtmq.client.blocking_connection import CHANNEL, BlockingConnection, ConnectionLostError
from holtmq.protocol.client_connection import Delivery
from holtmq.spark.amqp.columns import RowEncoder
from holtmq.spark.amqp.segment import Piece
from holtmq.spark.amqp.spool import Spool
from holtmq.spark.amqp.subscription import Subscription
from holtmq.wire import methods as wire

POLL_S = 0.02
LONGEST_GATHERING_S = 0.25
PIECE_ROWS = 10_000
PIECE_BYTES = 64 * 1024 * 1024
"""A piece is closed when it is full, when no message arrives for POLL_S, and at the latest after LONGEST_GATHERING_S."""
LOOK_S = 30.0
"""How often a receiver looks for new queues whose names match the pattern."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0
RECONNECT_TIMEOUT_S = 60.0
"""The query fails if the broker is unreachable for longer than this."""


class Receiver(threading.Thread):
    """Consumes the queues on one connection. `add` is called with each piece that is on disk."""

    def __init__(
        self,
        subscription: Subscription,
        spool: Spool,
        *,
        prefetch: int,
        piece_rows: int,
        order: Callable[[], int],
        add: Callable[[Piece], None],
    ) -> None:
        super().__init__(name=f"receiver of {subscription}", daemon=True)
        self._subscription = subscription
        self._spool = spool
        self._prefetch = prefetch
        self._piece_rows = min(PIECE_ROWS, piece_rows)
        self._order = order
        self._add = add
        self._consumed: set[str] = set()
        self._encoders: dict[str, RowEncoder] = {}
        self._stopping = threading.Event()
        self._may_ack: deque[Piece] = deque()
        self._connection_number = 0
        self.error: Exception | None = None
        self.idle_since: float | None = None
        """Time of the last message, or None while messages arrive."""
        self.received = 0
        """Messages that have arrived, without those that a lost connection left in no piece."""
        self._in_pieces = 0

    def acknowledge(self, piece: Piece) -> None:
        """Request the acknowledgement of a piece. Other threads call this."""
        self._may_ack.append(piece)

    def has(self, piece: Piece) -> bool:
        """Return whether the connection that received the piece is still open."""
        return piece.connection_number == self._connection_number

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()

    def run(self) -> None:
        """Consume until stopped, and reconnect when the connection is lost."""
        pause_s, lost_at = FIRST_PAUSE_S, None
        while not self._stopping.is_set():
            try:
                with self._subscription.connect() as connection:
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
        self._consumed.clear()
        self.received = self._in_pieces
        self._look_for_queues(connection)
        gathering_since = looked_at = time.monotonic()
        size = counted = 0
        while not self._stopping.is_set():
            has_received = connection.receive(POLL_S)
            self._acknowledge(connection)
            if connection.is_cancelled:
                raise ConnectionLostError(f"the broker cancelled a consumer of {self._subscription}: was the queue deleted?")
            now = time.monotonic()
            if self._subscription.is_pattern and now - looked_at > LOOK_S:
                self._look_for_queues(connection)
                looked_at = now
            waiting = len(connection.deliveries)
            self.received = self._in_pieces + waiting
            if not waiting:
                self.idle_since = self.idle_since or now
                gathering_since = now
                continue
            self.idle_since = None
            size += sum(len(delivery.body) for delivery in connection.deliveries[counted:])
            counted = waiting
            is_full = waiting >= self._piece_rows or size >= PIECE_BYTES
            if is_full or not has_received or now - gathering_since > LONGEST_GATHERING_S:
                self._close_pieces(connection)
                gathering_since, size, counted = time.monotonic(), 0, 0
        self._acknowledge(connection)

    def _look_for_queues(self, connection: BlockingConnection) -> None:
        """Consume the queues that are not consumed yet. They share the prefetch count. The consumer tag is the name."""
        names = self._subscription.names()
        for name in names:
            if name not in self._consumed:
                connection.call(wire.BasicQos(0, max(1, self._prefetch // len(names)), False), wire.BasicQosOk)
                connection.call(wire.BasicConsume(0, name, name), wire.BasicConsumeOk)
                self._consumed.add(name)

    def _close_pieces(self, connection: BlockingConnection) -> None:
        deliveries, connection.deliveries = connection.deliveries, []
        for start in range(0, len(deliveries), self._piece_rows):
            piece = deliveries[start : start + self._piece_rows]
            rows = pa.Table.from_batches(batches := self._encode(piece))
            self._add(
                Piece(
                    self._spool.write(batches, self._order()),
                    len(piece),
                    pc.min(pc.coalesce(rows["timestamp"], rows["received_at"])).as_py(),
                    pc.sum(rows["redelivered"]).as_py(),
                    self,
                    self._connection_number,
                    piece[-1].tag,
                )
            )
            self._in_pieces += len(piece)

    def _encode(self, deliveries: list[Delivery]) -> list[pa.RecordBatch]:
        """Return one batch per queue, each in the order of its queue."""
        if len(self._consumed) == 1:
            return [self._encoder(deliveries[0].consumer_tag).encode(deliveries)]
        queue_of = attrgetter("consumer_tag")
        by_queue = groupby(sorted(deliveries, key=queue_of), queue_of)
        return [self._encoder(queue).encode(list(group)) for queue, group in by_queue]

    def _encoder(self, queue: str) -> RowEncoder:
        if queue not in self._encoders:
            self._encoders[queue] = RowEncoder(queue)
        return self._encoders[queue]

    def _acknowledge(self, connection: BlockingConnection) -> None:
        last = 0
        while self._may_ack:
            piece = self._may_ack.popleft()
            if self.has(piece):
                last = max(last, piece.last_tag)
        if last:
            connection.send(CHANNEL, wire.BasicAck(last, True))
