"""The queues of a broker: those that forget a message when it is acknowledged, and streams, which keep it."""

from __future__ import annotations

from typing import TypeAlias

from holtmq.broker.queue import MessageQueue
from holtmq.broker.stream_queue import StreamQueue

ServedQueue: TypeAlias = MessageQueue | StreamQueue
