"""What becomes of a message that a client has received."""

from __future__ import annotations

from enum import Enum, auto


class Settlement(Enum):
    ACK = auto()
    REQUEUE = auto()
    REJECT = auto()


ACK, REQUEUE, REJECT = Settlement
"""Names by themselves: Python 3.11 finds a member of an enumeration slowly, and every acknowledgement looks for one."""
