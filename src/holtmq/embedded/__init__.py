"""A durable message queue in one SQLite file, in your process or in several, with no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import time

from holtmq.embedded import aio
from holtmq.embedded.consumer import Consumer
from holtmq.embedded.embedded import Embedded
from holtmq.embedded.message import Message
from holtmq.embedded.producer import Producer
from holtmq.embedded.queue import Queue
from holtmq.store import Durability
from holtmq.store.database import TIMEOUT_S

__all__ = ["Consumer", "Embedded", "Message", "Producer", "Queue", "aio", "open"]


def open(  # noqa: A001  # holtmq.open reads as it should
    path: str | Path, *, durability: Durability = "full", timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time
) -> Embedded:
    """Open a HoltMQ file, which is made if there is none; ":memory:" keeps everything in memory.

    `durability` says what a call that returned survives: "full" a power cut, "normal" and "off" a killed process.
    `timeout_s` is how long to wait while another process has the file locked.
    """
    return Embedded(path, durability=durability, timeout_s=timeout_s, clock=clock)
