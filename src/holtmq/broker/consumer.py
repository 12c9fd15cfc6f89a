"""Somebody who wants the messages of a queue, and how many more it can take."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from holtmq.broker.queued_message import QueuedMessage

if TYPE_CHECKING:
    from holtmq.broker.channel import Channel
    from holtmq.broker.queue import MessageQueue
    from holtmq.broker.reply import ReplyDestination

UNLIMITED = 2**31


class Outlet(Protocol):
    """The way to a client: whatever a channel has to tell it. `protocol` implements it."""

    @property
    def is_writable(self) -> bool:
        """Whether the client reads fast enough to be sent more messages."""

    def deliver(
        self, consumer: Consumer, first_tag: int, messages: Sequence[QueuedMessage], redelivered: Collection[int]
    ) -> None:
        """Send messages, tagged in a row from the first; `redelivered` has the ids of those that were sent before."""

    def confirm(self, tag: int, *, multiple: bool) -> None: ...
    def refuse(self, tag: int) -> None:
        """Tell a publisher that its message was not taken."""

    def give_back(self, message: QueuedMessage) -> None:
        """Return a mandatory message that no queue took."""

    def cancel(self, consumer: Consumer) -> None:
        """Tell a consumer that its queue is gone."""


class Consumer:
    __slots__ = (
        "channel",
        "in_flight",
        "is_auto_ack",
        "is_exclusive",
        "number",
        "prefetch",
        "priority",
        "queue",
        "spelling",
        "tag",
    )

    def __init__(
        self,
        number: int,
        tag: str,
        channel: Channel,
        queue: MessageQueue | ReplyDestination,
        *,
        is_auto_ack: bool,
        is_exclusive: bool,
        priority: int,
        prefetch: int,
    ) -> None:
        self.number = number
        """The order in which consumers came."""
        self.tag = tag
        self.channel = channel
        self.queue = queue
        self.is_auto_ack = is_auto_ack
        self.is_exclusive = is_exclusive
        self.priority = priority
        self.prefetch = prefetch
        """How many messages it may have unsettled; 0 is no limit."""
        self.in_flight = 0
        self.spelling: Any = None
        """For the outlet to keep what is the same in every delivery."""

    def room(self) -> int:
        """How many messages it can be sent now."""
        channel = self.channel
        if not channel.outlet.is_writable:
            return 0
        if self.is_auto_ack:
            return UNLIMITED
        room = self.prefetch - self.in_flight if self.prefetch else UNLIMITED
        if channel.prefetch:
            room = min(room, channel.prefetch - channel.in_flight)
        return room
