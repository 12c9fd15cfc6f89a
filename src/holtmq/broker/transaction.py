"""A transaction of one channel: publishes and acknowledgements that are applied together at tx.commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holtmq.broker.channel import Delivery


class Transaction:
    """The publishes and acknowledgements of a channel since its last commit."""

    def __init__(self) -> None:
        self.publishes: list[Callable[[], None]] = []
        self.settlements: list[Callable[[], None]] = []
        self.settled: dict[int, Delivery] = {}
        """The deliveries that `settlements` are about, by delivery tag: a rollback makes them unsettled again."""

    def apply(self) -> None:
        for change in (*self.publishes, *self.settlements):
            change()
