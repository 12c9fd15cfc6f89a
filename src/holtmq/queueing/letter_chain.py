"""The work list of dead letters: publishes them one after another, and ends chains that are too long or too wide.

A dead letter may push another message out of the queue that it enters, which dies in turn. Calls that nest would exhaust the
stack, and queues that dead-letter to each other through fanout exchanges would never come to an end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from holtmq.queueing.dead_letter import DeadLetter

log = logging.getLogger(__name__)

MAX_DEATHS = 100
"""A message that has died in more queues than this is dropped: its `x-death` header would outgrow a frame."""
MAX_LETTERS = 200
"""Dead letters that one death may cause, directly or through further deaths. Further ones are dropped."""

Message = TypeVar("Message")


class Consequences:
    """What one death has caused so far."""

    __slots__ = ("letters",)

    def __init__(self) -> None:
        self.letters = 0


class LetterChain(Generic[Message]):
    """The dead letters that wait to be published."""

    def __init__(self) -> None:
        self.dropped = 0
        """Dead letters that were dropped because a limit was reached."""
        self.consequences = Consequences()
        """Of the death that the letters come from which are being published."""
        self._waiting: deque[tuple[DeadLetter, Message]] = deque()
        self.is_publishing = False

    def add(
        self, make: Callable[[], DeadLetter | None], message: Message, publish: Callable[[DeadLetter, Message], None]
    ) -> bool:
        """Publish the letter that `make` returns, and all that it causes, unless an outer call is doing so.

        Return False if there is no letter, or if it was dropped.
        """
        if self.consequences.letters >= MAX_LETTERS:
            self._drop()
            return False
        letter = make()
        if letter is None:
            return False
        if len(letter.deaths) > MAX_DEATHS:
            self._drop()
            return False
        self.consequences.letters += 1
        if self.is_publishing:
            self._waiting.append((letter, message))
        else:
            self.go_on(self.consequences, partial(publish, letter, message), publish)
        return True

    def go_on(
        self, consequences: Consequences, work: Callable[[], object], publish: Callable[[DeadLetter, Message], None]
    ) -> None:
        """Do what is left to do for a letter, such as to put it into further queues, and publish the letters that it causes.

        If one of them fails, the others are published all the same, and the first error is raised afterwards.
        """
        if self.is_publishing:
            work()
            return
        self.is_publishing, self.consequences = True, consequences
        failure = None
        try:
            work()
        except Exception as error:  # noqa: BLE001  # raised below
            failure = error
        while self._waiting:
            try:
                publish(*self._waiting.popleft())
            except Exception as error:  # noqa: BLE001  # raised below
                failure = failure or error
        self.is_publishing, self.consequences = False, Consequences()
        if failure is not None:
            raise failure

    def _drop(self) -> None:
        if not self.dropped:
            log.warning(
                "dropped a dead letter: a message can die in at most %d queues, and a death can cause at most %d dead letters. "
                "Further ones are dropped without a log entry",
                MAX_DEATHS,
                MAX_LETTERS,
            )
        self.dropped += 1
