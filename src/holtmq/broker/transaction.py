"""A transaction of one channel: publishes and acknowledgements that are applied together at tx.commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holtmq.broker.settlement import Settlement

if TYPE_CHECKING:
    from holtmq.broker.channel import Delivery


class Transaction:
    """The publishes and acknowledgements of a channel since its last commit."""

    def __init__(self) -> None:
        self.publishes: deque[Callable[[], None]] = deque()
        """Each publishes messages that differ in nothing but their body."""
        self.published = 0
        """Number of messages."""
        self.copies = 0
        """Number of messages in all their queues."""
        self.size = 0
        """Bytes that the publishes take."""
        self.settlements: deque[tuple[dict[int, Delivery], Settlement]] = deque()
        """By delivery tag: the deliveries that are acknowledged, rejected or requeued together."""

    def add(self, publish: Callable[[], None], number: int, copies: int) -> None:
        """Add a call that publishes a number of messages to a number of queues."""
        self.publishes.append(publish)
        self.published += number
        self.copies += number * max(1, copies)

    @property
    def settled(self) -> dict[int, Delivery]:
        """The deliveries of all settlements, by delivery tag: a rollback makes them unsettled again."""
        return {tag: delivery for deliveries, _ in self.settlements for tag, delivery in deliveries.items()}

    @property
    def settled_count(self) -> int:
        return sum(len(deliveries) for deliveries, _ in self.settlements)
