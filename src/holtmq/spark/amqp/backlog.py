"""The messages that are still in the queues, counted by the broker. Runs on the driver."""

from __future__ import annotations

from holtmq.client.blocking_connection import BlockingConnection
from holtmq.errors import HoltmqError
from holtmq.spark.amqp.subscription import Subscription, ready_messages

SILENCE_S = 60.0
"""A queue that has messages and delivers none for this long is a stream queue, or another consumer has it for itself."""


class SilentQueueError(HoltmqError):
    """A queue has messages and does not deliver them."""

    @classmethod
    def of(cls, queue_has: str, ready: int, silence_s: float) -> SilentQueueError:
        return cls(
            f"{queue_has} {ready:,} messages, and delivered none for {silence_s:g} s. If it is a stream queue, say where to "
            "start: with the option startingOffsets or, in a command, with --from. Otherwise another consumer is the only one "
            "that gets messages: stop it"
        )


class Backlog:
    """Counts the messages that are ready. It keeps its connection, because a stream asks once per micro-batch."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._connection: BlockingConnection | None = None

    def ready(self) -> int:
        """Return the number of ready messages. Raise HoltmqError if a queue is missing or the broker is unreachable."""
        if self._connection is not None:
            try:
                return self._count(self._connection)
            except HoltmqError:  # it may have been lost since the last time
                self.close()
        self._connection = self._subscription.connect()
        return self._count(self._connection)

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _count(self, connection: BlockingConnection) -> int:
        return sum(ready_messages(connection, name) for name in self._subscription.names())
