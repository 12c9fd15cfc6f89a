"""Messages that a consumer thread has claimed at once: some wait for their callback, some are handled but not acknowledged.

The consumer thread works through the batch. While a callback runs, another thread may take messages from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable

from holtmq.embedded.message import Message


class ClaimedBatch:
    """A batch of claimed messages. No message is started after `longest_s`, so that each has nearly all of its lease left."""

    def __init__(self, messages: Iterable[Message], longest_s: float) -> None:
        self._waiting = deque(messages)
        self._handled: deque[Message] = deque()
        self._claimed_at = time.monotonic()
        self._longest_s = longest_s
        self._is_begun = False

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._claimed_at

    @property
    def is_open(self) -> bool:
        """Whether messages wait, or are to be acknowledged."""
        return bool(self._waiting or self._handled)

    @property
    def is_overdue(self) -> bool:
        """Whether the batch takes longer than it should, so that messages that wait in it are better given back."""
        return self.age_s > self._longest_s

    def start_next(self) -> Message | None:
        """Return the next message to be handled, or None if there is none, or if the batch is overdue after the first."""
        if self._is_begun and self.is_overdue:
            return None
        self._is_begun = True
        return _first(self._waiting)

    def note_handled(self, message: Message) -> None:
        self._handled.append(message)

    def take_handled(self) -> list[Message]:
        """Return the messages to be acknowledged, each once."""
        return list(iter(lambda: _first(self._handled), None))

    def take_waiting(self) -> list[Message]:
        """Return the messages that were not started, each once."""
        return list(iter(lambda: _first(self._waiting), None))


def _first(messages: deque[Message]) -> Message | None:
    """Remove and return the first message. Several threads may do so at the same time."""
    try:
        return messages.popleft()
    except IndexError:
        return None
