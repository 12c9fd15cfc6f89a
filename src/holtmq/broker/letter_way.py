"""Where a dead letter goes, found once for letters that are alike: messages that die together mostly are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holtmq.broker.queued_message import Origin
from holtmq.broker.served_queue import ServedQueue
from holtmq.queueing.dead_letter import DeadLetter
from holtmq.routing.route import Entry
from holtmq.wire.content import CONTENT_END, Content, Properties, content_start


@dataclass(slots=True)
class LetterWay:
    """The queues that a dead letter enters, and what it has in all of them."""

    letter: DeadLetter
    generation: int
    """The vhost's generation in which the route was found. In any other generation it is stale."""
    origin: Origin
    properties: Properties
    destinations: Sequence[ServedQueue]
    entries: Mapping[str, Entry]
    _size: int = -1
    _start: bytes = b""
    """What comes before a body of this size."""

    def serves(self, letter: DeadLetter, generation: int) -> bool:
        """Return whether the letter is this one: `dead_letter` returns the same value for messages that are alike."""
        return self.letter is letter and self.generation == generation

    def content(self, body: bytes) -> Content:
        """Return the content of the letter with the body of a message. Bodies that follow each other often have one size."""
        size = len(body)
        if size != self._size:
            self._size, self._start = size, content_start(self.letter.raw_properties, size)
        return b"".join((self._start, body, CONTENT_END)) if size else self._start
