"""Direct reply-to: a consumer without a queue, addressed by a generated name in the request's reply_to property."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holtmq.broker.queued_message import QueuedMessage
from holtmq.routing.route import Entry
from holtmq.wire.content import Properties

if TYPE_CHECKING:
    from holtmq.broker.consumer import Consumer

REPLY_QUEUE = "amq.rabbitmq.reply-to"


class ReplyDestination:
    """The destination of replies. It stores nothing: without a consumer, a reply is dropped."""

    is_deleted = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.consumer: Consumer | None = None

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool:
        if self.consumer is not None:
            self.consumer.channel.send_reply(self.consumer, message)
        return True

    def takes_all(self, properties: Properties) -> bool:
        return True

    def put_all(self, messages: Sequence[QueuedMessage], size: int) -> None:
        for message in messages:
            self.put(message)

    def save_memory(self) -> None:
        """Do nothing: it holds no messages."""
