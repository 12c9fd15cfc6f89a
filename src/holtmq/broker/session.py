"""The session of a logged-in client: its user, its vhost, its channels and its exclusive queues."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holtmq.accounts import Access, User
from holtmq.broker.channel import Channel
from holtmq.broker.memory import CHANNEL_BYTES
from holtmq.broker.ports import Outlet
from holtmq.errors import AmqpError, InternalError
from holtmq.steps import Steps

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.chores import Chore
    from holtmq.broker.queue import MessageQueue
    from holtmq.broker.vhost import VirtualHost


class Session:
    def __init__(self, broker: Broker, user: User, vhost: VirtualHost) -> None:
        self.broker = broker
        self.user = user
        self.vhost = vhost
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[str, MessageQueue] = {}
        self.consumers = 0
        """Bytes of the consumers on all channels."""
        self.routing = 0
        """Bytes of what the channels keep of the routes of their messages."""
        self.uncommitted = 0
        """Bytes of the messages in open transactions."""
        self.fanning_out = 0
        """Bytes of the messages that are entering many queues."""
        self.is_closed = False
        """Whether the client has left. The session then goes on only to give back what it holds."""
        self.needs_marks = 0
        """The batch of the journal whose marks of deliveries must be on disk before the output may be sent."""
        self.uses_password = False
        """Whether the client logged in with a password, so that the session ends when that changes."""
        self.close_connection: Callable[[AmqpError], None] | None = None
        """Closes the client's connection for a reason, and with it the session. A session of the HTTP API has none."""
        self.wait_for: Callable[[Chore], None] = _go_on
        """Makes the client wait for a chore before anything else is done for it."""
        vhost.sessions.add(self)
        broker.sessions[user.name].add(self)

    def open_channel(self, number: int, outlet: Outlet) -> Channel:
        self.broker.memory.require_room_for_channel()
        channel = self.channels[number] = Channel(self, number, outlet)
        self.broker.churn.channels_opened += 1
        return channel

    @property
    def memory(self) -> int:
        """Bytes that channels, their routes, consumers, open transactions and unfinished publishes take."""
        return CHANNEL_BYTES * len(self.channels) + self.routing + self.consumers + self.uncommitted + self.fanning_out

    def close_channel(self, number: int) -> Chore | None:
        """Close a channel, in steps. Its number is free when that is done."""
        channel = self.channels.get(number)
        if channel is None:
            return None
        channel.shut()
        subject = f"channel {number} of {self.user.name!r}"
        return self.broker.chores.add("closing a channel", subject, lambda: self._close_channel(channel))

    def _close_channel(self, channel: Channel) -> Steps[None]:
        yield from channel.close()
        if self.channels.get(channel.number) is channel:
            del self.channels[channel.number]
            self.broker.churn.channels_closed += 1

    def close(self) -> Steps[None]:
        """Requeue unacknowledged messages and delete exclusive queues, whatever fails on the way. What failed can be repeated.

        Nobody finds an exclusive queue of a closed session: it is deleted here, or when its name is next looked up.
        """
        self.is_closed = True
        for channel in self.channels.values():
            channel.shut()
        for channel in list(self.channels.values()):
            with self.broker.internal_errors.contain("closing a channel", f"channel {channel.number} of {self.user.name!r}"):
                yield from self._close_channel(channel)
        for queue in list(self.exclusive_queues.values()):
            with self.broker.internal_errors.contain("deleting an exclusive queue", f"queue {queue.name!r}"):
                self.vhost.delete_queue(queue)
            yield
        if self.channels or self.exclusive_queues:
            raise InternalError(f"{len(self.channels)} channels and {len(self.exclusive_queues)} exclusive queues are left")
        self.vhost.sessions.discard(self)
        if self in self.broker.sessions[self.user.name]:
            self.broker.sessions[self.user.name].remove(self)
        if not self.broker.sessions[self.user.name]:
            del self.broker.sessions[self.user.name]

    def require(self, access: Access, kind: str, name: str) -> None:
        self.broker.authorization.require(self.user.name, self.vhost.name, access, kind, name)


def _go_on(_: Chore) -> None:
    """Do not wait: the caller finishes the chores of its channel itself."""
