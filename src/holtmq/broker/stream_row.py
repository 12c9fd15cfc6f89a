"""Messages of a stream in a row that differ in nothing but their offsets and bodies, and whose bodies have one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holtmq.broker.queued_message import Origin
from holtmq.queueing.offset_header import OffsetFrames


class StreamRow(NamedTuple):
    """A row of messages for one consumer."""

    origin: Origin
    frames: OffsetFrames
    """Their content without offsets and bodies, for the channel of the consumer."""
    first_offset: int
    bodies: Sequence[bytes]
