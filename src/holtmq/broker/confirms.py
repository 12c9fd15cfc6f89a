"""Publisher confirms of one channel: which published messages are confirmed, rejected, or waiting for the disk."""

from __future__ import annotations

from holtmq.broker.ports import Outlet


class Confirms:
    """The confirm mode of a channel. Messages count from 1, in the order in which they are published."""

    __slots__ = ("_refused", "confirmed", "is_selected", "is_waiting", "journal_batch", "outlet", "published", "sealed")

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self._refused: set[int] = set()
        self.is_selected = False
        """Whether the client has selected confirm mode."""
        self.published = 0
        self.confirmed = 0
        self.sealed = 0
        """Messages published when the batch that is being written was sealed."""
        self.journal_batch = 0
        """The last journal batch that contains a message of this channel."""
        self.is_waiting = False
        """Whether the channel is in the broker's list of channels with unconfirmed messages."""

    def refuse(self) -> None:
        """Tell the publisher that its last message was rejected."""
        self._refused.add(self.published)
        self.outlet.refuse(self.published)

    def confirm(self, up_to: int) -> None:
        """Confirm all messages up to this one, except those that were rejected."""
        last = up_to
        while last in self._refused:
            last -= 1
        if last > self.confirmed:
            self.outlet.confirm(last, multiple=last > self.confirmed + 1)
        if up_to > self.confirmed:
            self.confirmed = up_to
            if self._refused:
                self._refused = {tag for tag in self._refused if tag > up_to}
