"""The session of a logged-in client: its user, its vhost, its channels and its exclusive queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holtmq.accounts import Access, User
from holtmq.broker.channel import Channel
from holtmq.broker.ports import Outlet

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.queue import MessageQueue
    from holtmq.broker.vhost import VirtualHost


class Session:
    def __init__(self, broker: Broker, user: User, vhost: VirtualHost) -> None:
        self.broker = broker
        self.user = user
        self.vhost = vhost
        self.channels: dict[int, Channel] = {}
        self.exclusive_queues: dict[str, MessageQueue] = {}
        vhost.sessions.add(self)

    def open_channel(self, number: int, outlet: Outlet) -> Channel:
        channel = self.channels[number] = Channel(self, number, outlet)
        self.broker.churn.channels_opened += 1
        return channel

    def close_channel(self, number: int) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.close()
            self.broker.churn.channels_closed += 1

    def close(self) -> None:
        """Requeue unacknowledged messages and delete exclusive queues."""
        for number in list(self.channels):
            self.close_channel(number)
        for queue in list(self.exclusive_queues.values()):
            self.vhost.delete_queue(queue)
        self.vhost.sessions.discard(self)

    def require(self, access: Access, kind: str, name: str) -> None:
        self.broker.authorization.require(self.user.name, self.vhost.name, access, kind, name)
