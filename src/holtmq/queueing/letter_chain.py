"""The work list of dead letters: publishes them one after another, and ends chains that are too long or too wide.

A dead letter may push another message out of the queue that it enters, which dies in turn. Calls that nest would exhaust the
stack, and queues that dead-letter to each other through fanout exchanges would never come to an end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from holtmq.queueing.dead_letter import DeadLetter

log = logging.getLogger(__name__)

MAX_DEATHS = 100
"""A message that has died in more queues than this is dropped: its `x-death` header would outgrow a frame."""
MAX_LETTERS = 200
"""Dead letters that one death may cause, directly or through further deaths. Further ones are dropped."""

Message = TypeVar("Message")


class LetterChain(Generic[Message]):
    """The dead letters that wait to be published."""

    def __init__(self) -> None:
        self.dropped = 0
        """Dead letters that were dropped because a limit was reached."""
        self._waiting: deque[tuple[DeadLetter, Message]] = deque()
        self._is_publishing = False
        self._count = 0

    def add(
        self, make: Callable[[], DeadLetter | None], message: Message, publish: Callable[[DeadLetter, Message], None]
    ) -> None:
        """Publish the letter that `make` returns, if any, and all that it causes, unless an outer call is doing so."""
        if self._count >= MAX_LETTERS:
            self._drop()
            return
        letter = make()
        if letter is None:
            return
        if len(letter.deaths) > MAX_DEATHS:
            self._drop()
            return
        self._count += 1
        self._waiting.append((letter, message))
        if self._is_publishing:
            return
        self._is_publishing = True
        try:
            while self._waiting:
                publish(*self._waiting.popleft())
        finally:
            self._is_publishing, self._count = False, 0
            self._waiting.clear()

    def _drop(self) -> None:
        if not self.dropped:
            log.warning(
                "dropped a dead letter: a message can die in at most %d queues, and a death can cause at most %d dead letters. "
                "Further ones are dropped without a log entry",
                MAX_DEATHS,
                MAX_LETTERS,
            )
        self.dropped += 1
