"""What becomes of a message that a client has received."""

from __future__ import annotations

from enum import Enum, auto


class Settlement(Enum):
    ACK = auto()
    REQUEUE = auto()
    REJECT = auto()
