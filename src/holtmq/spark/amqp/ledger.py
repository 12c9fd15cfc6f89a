"""The states of received messages, from the receiver to the commit. Runs on the driver.

A piece is *fresh* until a micro-batch includes it. It is then part of a segment, which is *planned* until Spark commits the
batch. Each state has its kind of file in the spool; docs/pipeline.md draws the transitions. With `ack=spool` messages are
acknowledged when they are planned, with `ack=commit` when they are committed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from holtmq.spark.amqp.segment import Piece, Segment
from holtmq.spark.amqp.spool import Spool


class Ledger:
    """Moves messages from state to state. Receivers call `add`; everything else is called by the thread of the query."""

    def __init__(self, spool: Spool, *, segment_rows: int, keeps_spool: bool) -> None:
        self._spool = spool
        self._segment_rows = segment_rows
        self._keeps_spool = keeps_spool
        self._lock = threading.Lock()
        self._fresh: deque[Piece] = deque()
        self._planned: dict[int, Segment] = {}
        self.received = 0
        self.redelivered = 0
        self.acknowledged = 0
        self.taken = 0
        """How many messages were planned."""

    @property
    def fresh_rows(self) -> int:
        """How many messages can be planned."""
        with self._lock:
            return sum(piece.rows for piece in self._fresh)

    @property
    def has_planned(self) -> bool:
        """Whether segments belong to a batch that is not committed."""
        return bool(self._planned)

    def left(self, after: int) -> list[Piece]:
        """Return the pieces that are fresh, or in segments with numbers above `after`."""
        with self._lock:
            pieces = [*self._fresh]
        return pieces + [piece for number, each in self._planned.items() if number > after for piece in each.pieces]

    def add(self, piece: Piece) -> None:
        """Add a piece that is on disk."""
        with self._lock:
            self._fresh.append(piece)
            self.received += piece.rows
            self.redelivered += piece.redelivered

    def recover(self, last: int) -> int:
        """Add what an earlier process has acknowledged and no batch up to segment `last` includes. Return its size."""
        self._spool.remove_fresh()
        pieces = self._spool.recover(last)
        self._fresh.extend(pieces)
        return sum(piece.rows for piece in pieces)

    def plan(self, last: int, most: int | None, enough: int | None = None) -> int:
        """Form segments of the oldest pieces, numbered after `last`, for a batch of at most `most` messages.

        Return the number of the last one. A batch has at least one piece, if there is any, and no piece after the one with
        which it has `enough` messages.
        """
        groups = _groups(self._take(most, enough), self._segment_rows)
        segments = [Segment(number, pieces) for number, pieces in enumerate(groups, last + 1)]
        if not segments:
            return last
        self._spool.number({segment.number: [piece.name for piece in segment.pieces] for segment in segments})
        for segment in segments:
            self._planned[segment.number] = segment
            self.taken += segment.rows
            if self._keeps_spool:
                self.acknowledged += segment.acknowledge()
        return segments[-1].number

    def is_planned(self, number: int) -> bool:
        """Return whether a segment belongs to a batch that is not committed."""
        return number in self._planned

    def commit(self, last: int) -> None:
        """Delete the segments up to `last`. With ack=commit, acknowledge their messages."""
        for number in [number for number in self._planned if number <= last]:
            segment = self._planned.pop(number)
            if not self._keeps_spool:
                self.acknowledged += segment.acknowledge()
        self._spool.remove_up_to(last)

    def _take(self, most: int | None, enough: int | None) -> list[Piece]:
        taken: list[Piece] = []
        rows = 0
        with self._lock:
            self._discard_lost()
            while self._fresh and (not taken or most is None or rows + self._fresh[0].rows <= most):
                if enough is not None and rows >= enough:
                    break
                taken.append(self._fresh.popleft())
                rows += taken[-1].rows
        return taken

    def _discard_lost(self) -> None:
        for piece in [piece for piece in self._fresh if piece.is_lost]:
            self._fresh.remove(piece)
            self._spool.discard(piece.name)


def _groups(pieces: Iterable[Piece], most: int) -> list[tuple[Piece, ...]]:
    """Divide pieces into groups of at most `most` messages, or of one piece."""
    groups: list[list[Piece]] = []
    rows = 0
    for piece in pieces:
        if not groups or rows + piece.rows > most:
            groups.append([])
            rows = 0
        groups[-1].append(piece)
        rows += piece.rows
    return [tuple(group) for group in groups]
