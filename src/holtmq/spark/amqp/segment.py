"""The units of a stream: pieces, which receivers write, and segments, which Spark counts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


class Acknowledger(Protocol):
    """The receiver of a piece. Only it can acknowledge the messages."""

    def acknowledge(self, piece: Piece) -> None:
        """Request the acknowledgement of a piece and of all that the same connection received before it."""

    def has(self, piece: Piece) -> bool:
        """Return whether the connection that received the piece is still open."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A file of the spool, and the delivery tag that acknowledges it. Tags are valid for one connection only."""

    name: str
    rows: int
    oldest: datetime
    """The earliest timestamp of a message, or time of receipt of one without a timestamp."""
    redelivered: int = 0
    receiver: Acknowledger | None = None
    """None for a piece that an earlier process has acknowledged."""
    connection_number: int = 0
    last_tag: int = 0

    @property
    def is_lost(self) -> bool:
        """Whether its connection was lost. Its messages are unacknowledged then, and the broker redelivers them."""
        return self.receiver is not None and not self.receiver.has(self)


@dataclass(frozen=True, slots=True)
class Segment:
    """The pieces that one task of a micro-batch reads. Its number is an offset of Spark."""

    number: int
    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def acknowledge(self) -> int:
        """Acknowledge the messages. Return how many were not acknowledged before."""
        count = 0
        for piece in self.pieces:
            if piece.receiver is not None:
                piece.receiver.acknowledge(piece)
                count += piece.rows
        return count
