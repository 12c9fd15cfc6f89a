"""Consuming a stream queue from a position. Acknowledgements remove nothing: they allow the broker to send more."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TypeAlias

from holtmq.client.blocking_connection import (
    CHANNEL,
    REPLY_TIMEOUT_S,
    BlockingConnection,
    ConnectionLostError,
    RefusedError,
)
from holtmq.client.delivered_offset import OFFSET_HEADER, NotAStreamError, take_offset
from holtmq.errors import PreconditionFailedError
from holtmq.protocol.client_connection import Delivery
from holtmq.queueing.damage_report import REPORT_ARGUMENT
from holtmq.wire import methods as wire

ConsumeFrom: TypeAlias = str | int | datetime
"""The value of the argument `x-stream-offset`: first, last, next, an offset, or a time."""
QUIET_ROUND_TRIPS = 40
QUIET_PAUSE_S = 0.025
"""A consumer that gets nothing in this many round trips, with a pause before each, is at the end of the stream.

AMQP cannot say that a stream is empty, and RabbitMQ counts its messages with a delay of seconds. Round trips, unlike seconds,
pass only if the broker gets to run.
"""
SETTLING_ROUND_TRIPS = 3
"""A broker may deliver in the turn after the one that answers."""


class OffsetConsumer:
    """A consumer of a stream, which has the connection for itself.

    With a prefetch count of 1, only what is taken is acknowledged. RabbitMQ sends all messages of a chunk even then.
    """

    def __init__(self, connection: BlockingConnection, queue: str, start: ConsumeFrom, *, prefetch: int) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self._connection = connection
        self._acknowledged = 0
        """How many of the waiting deliveries are acknowledged."""
        connection.call(wire.BasicQos(0, prefetch, False), wire.BasicQosOk)
        # HoltMQ then delivers a report in place of a damaged message. Others ignore the argument.
        consume = wire.BasicConsume(0, queue, "holtmq", arguments={OFFSET_HEADER: start, REPORT_ARGUMENT: True})
        try:
            connection.call(consume, wire.BasicConsumeOk)
        except RefusedError as error:
            if error.reply_code == PreconditionFailedError.reply_code and OFFSET_HEADER in str(error):
                raise NotAStreamError(queue) from error
            raise

    @property
    def waiting(self) -> list[Delivery]:
        """Deliveries that have arrived and were not taken."""
        return self._connection.deliveries

    def receive(self, timeout_s: float) -> bool:
        """Read once, and acknowledge in pieces, so that the broker does not wait. Return False if nothing arrives in time."""
        has_received = self._connection.receive(timeout_s)
        self._require_consumer()
        if self.prefetch > 1 and len(self.waiting) - self._acknowledged > self.prefetch // 4:
            self._acknowledge()
        return has_received

    def take(self) -> list[Delivery]:
        """Return the deliveries that have arrived, and acknowledge them."""
        if len(self.waiting) > self._acknowledged:
            self._acknowledge()
        deliveries, self._connection.deliveries, self._acknowledged = self.waiting, [], 0
        return deliveries

    def has_first(self, *, may_be_missing: bool = False) -> bool:
        """Wait for the first delivery. Return False if there is none.

        `may_be_missing` is for a start in the future: there may be none although the stream has messages.
        """
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        quiet = 0
        while not self.waiting:
            self.receive(QUIET_PAUSE_S)
            counted = self.round_trip()
            quiet += 1
            is_expected = counted > 0 and not may_be_missing and time.monotonic() < deadline
            if quiet >= QUIET_ROUND_TRIPS and not is_expected:
                return False
        return True

    def settle(self) -> None:
        """Wait until the broker has sent what it had when it received the last acknowledgement."""
        for _ in range(SETTLING_ROUND_TRIPS):
            self.round_trip()

    def round_trip(self) -> int:
        """Return the number of messages that the broker counts. RabbitMQ counts with a delay."""
        counted = self._connection.call(wire.QueueDeclare(0, self.queue, passive=True), wire.QueueDeclareOk)
        self._require_consumer()
        return counted.message_count

    def _require_consumer(self) -> None:
        if self._connection.is_cancelled:
            raise ConnectionLostError(f"the broker cancelled the consumer of {self.queue!r}: was the stream deleted?")

    def _acknowledge(self) -> None:
        self._connection.send(CHANNEL, wire.BasicAck(self.waiting[-1].tag, True))
        self._acknowledged = len(self.waiting)


def offset_of(delivery: Delivery, queue: str) -> int:
    """Return the offset of a delivery. Raise NotAStreamError if it has none."""
    taken = take_offset(delivery.raw_properties)
    if taken is None:
        raise NotAStreamError(queue)
    return taken[0]
