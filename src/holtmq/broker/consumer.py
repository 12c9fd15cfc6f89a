"""A consumer of a queue, with the credit that its prefetch leaves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holtmq.broker.memory import CONSUMER_BYTES, SHORT_UNACKNOWLEDGED, memory_of_table
from holtmq.table import EMPTY_TABLE, FieldValue

if TYPE_CHECKING:
    from holtmq.broker.channel import Channel
    from holtmq.broker.reply import ReplyDestination
    from holtmq.broker.served_queue import ServedQueue

UNLIMITED = 2**31


class Consumer:
    __slots__ = (
        "arguments",
        "channel",
        "in_flight",
        "is_auto_ack",
        "is_exclusive",
        "memory",
        "number",
        "prefetch",
        "priority",
        "queue",
        "tag",
    )

    def __init__(
        self,
        number: int,
        tag: str,
        channel: Channel,
        queue: ServedQueue | ReplyDestination,
        *,
        is_auto_ack: bool,
        is_exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: Mapping[str, FieldValue] = EMPTY_TABLE,
    ) -> None:
        self.number = number
        """The order in which consumers were added."""
        self.tag = tag
        self.channel = channel
        self.queue = queue
        self.is_auto_ack = is_auto_ack
        self.is_exclusive = is_exclusive
        self.priority = priority
        self.prefetch = prefetch
        """Maximum number of unacknowledged messages; 0 means unlimited."""
        self.arguments = arguments
        self.memory = CONSUMER_BYTES + memory_of_table(arguments)
        """Bytes that the consumer takes."""
        self.in_flight = 0

    def room(self) -> int:
        """Return the number of messages that can be delivered now."""
        channel = self.channel
        if not channel.outlet.is_writable:
            return 0
        if self.is_auto_ack:
            return UNLIMITED
        if channel.in_flight >= SHORT_UNACKNOWLEDGED and channel.broker.memory.is_short:
            return 0
        room = self.prefetch - self.in_flight if self.prefetch else UNLIMITED
        if channel.prefetch:
            room = min(room, channel.prefetch - channel.in_flight)
        return room


def active_consumer(consumers: Sequence[Consumer], *, is_single_active: bool) -> Consumer:
    """Return the first consumer in order of priority or, in a queue with a single active one, the oldest."""
    return min(consumers, key=lambda consumer: consumer.number) if is_single_active else consumers[0]


def consumers_with_room(consumers: Sequence[Consumer], *, is_single_active: bool) -> list[Consumer]:
    """Return the consumers to deliver to: those of the highest priority among all that have credit.

    `consumers` are sorted by priority.
    """
    if not consumers:
        return []
    if is_single_active or len(consumers) == 1:
        active = consumers[0] if len(consumers) == 1 else active_consumer(consumers, is_single_active=True)
        return [active] if active.room() > 0 else []
    with_room: list[Consumer] = []
    limited_channels = set()
    for consumer in consumers:
        if with_room and consumer.priority != with_room[0].priority:
            break
        if consumer.room() <= 0 or consumer.channel in limited_channels:
            continue
        if consumer.channel.prefetch:
            limited_channels.add(consumer.channel)  # its consumers share one prefetch: one of them in each round
        with_room.append(consumer)
    return with_room
