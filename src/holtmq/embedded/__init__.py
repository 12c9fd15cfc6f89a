"""A durable message queue in one SQLite file, shared by any number of processes, without a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from holtmq.deprecation import renamed
from holtmq.embedded import aio
from holtmq.embedded.background_producer import BackgroundProducer
from holtmq.embedded.callback_consumer import CallbackConsumer
from holtmq.embedded.embedded_broker import EmbeddedBroker
from holtmq.embedded.message import Message
from holtmq.embedded.queue_handle import QueueHandle
from holtmq.embedded.stream_handle import StreamHandle
from holtmq.embedded.stream_record import StreamRecord
from holtmq.store.opening import TIMEOUT_S
from holtmq.store.records import Durability

__all__ = [
    "BackgroundProducer",
    "CallbackConsumer",
    "EmbeddedBroker",
    "Message",
    "QueueHandle",
    "StreamHandle",
    "StreamRecord",
    "aio",
    "open",
]
if not TYPE_CHECKING:  # a type checker would take any name for an attribute of this module
    __getattr__ = renamed(
        __name__,
        {"Consumer": CallbackConsumer, "Embedded": EmbeddedBroker, "Producer": BackgroundProducer, "Queue": QueueHandle},
    )
    aio.__getattr__ = renamed(aio.__name__, {"AsyncEmbedded": aio.AsyncEmbeddedBroker, "AsyncQueue": aio.AsyncQueueHandle})


def open(  # noqa: A001  # holtmq.open reads as it should
    path: str | Path, *, durability: Durability = "full", timeout_s: float = TIMEOUT_S, clock: Callable[[], float] | None = None
) -> EmbeddedBroker:
    """Open a HoltMQ file, creating it if it does not exist. ":memory:" keeps everything in memory.

    `durability` says what completed calls survive: "full" a power failure, "normal" and "off" a killed process.
    `timeout_s` is the maximum time to wait while another process holds the lock of the file.
    """
    return EmbeddedBroker(path, durability=durability, timeout_s=timeout_s, clock=clock)
