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
MAX_LETTERS = 1000
"""Dead letters that one death may cause. Further ones are dropped."""

Message = TypeVar("Message")


class LetterChain(Generic[Message]):
    """The dead letters that wait to be published."""

    def __init__(self) -> None:
        self.dropped = 0
        """Dead letters that were dropped because a limit was reached."""
        self._waiting: deque[tuple[DeadLetter, Message]] = deque()
        self._is_publishing = False

    def add(self, letter: DeadLetter, message: Message, publish: Callable[[DeadLetter, Message], None]) -> None:
        """Publish a dead letter and all letters that this causes, unless an outer call is doing so."""
        if len(letter.deaths) > MAX_DEATHS:
            self._drop(1, letter)
            return
        self._waiting.append((letter, message))
        if self._is_publishing:
            return
        self._is_publishing = True
        try:
            for _ in range(MAX_LETTERS):
                publish(*self._waiting.popleft())
                if not self._waiting:
                    return
            self._drop(len(self._waiting), letter)
        finally:
            self._is_publishing = False
            self._waiting.clear()

    def _drop(self, count: int, letter: DeadLetter) -> None:
        if not self.dropped:
            log.warning(
                "dropped %d dead letters of queue %r: a message can die in at most %d queues, and cause at most %d dead "
                "letters. Further ones are dropped without a log entry",
                count, letter.deaths[0].get("queue"), MAX_DEATHS, MAX_LETTERS,
            )  # fmt: skip
        self.dropped += count
