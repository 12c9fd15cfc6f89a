"""Messages that have left their queue and are about to become dead letters.

A dead letter needs the content of the message. That of an unacknowledged message may have been released, so that it must be
read from the file first; messages that die after it wait, because dead letters are published in the order of the deaths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol, TypeAlias

from holtmq.broker.ports import QueueHost
from holtmq.broker.queued_message import QueuedMessage
from holtmq.errors import StoreError
from holtmq.queueing.dead_letter import DeathReason
from holtmq.store.journal_port import JournalPort

READ_TOGETHER = 100
"""Messages that are read together, and then dead-lettered in one turn."""
READ_BYTES = 1024 * 1024
"""Bytes that are read together, or one message."""

Contents: TypeAlias = tuple[list[tuple[bytes, str | None]], StoreError | None]
"""The contents of the first of some messages, each with its damage if it has any, and what prevented reading the others."""


class ReadEnded(Protocol):
    """Notes whether contents could be read. After an error, `go_on` is called later."""

    def __call__(self, error: StoreError | None, *, has_read: bool) -> None: ...


class DyingMessages:
    """The dying messages of one queue, in order."""

    def __init__(
        self,
        host: QueueHost,
        bury: Callable[[QueuedMessage, DeathReason], None],
        lose: Callable[[QueuedMessage, bytes, str], None],
        read_ended: ReadEnded,
    ) -> None:
        """`bury` publishes a dead letter. `lose` handles a message whose content is damaged."""
        self._host = host
        self._bury = bury
        self._lose = lose
        self._read_ended = read_ended
        self._waiting: deque[tuple[QueuedMessage, DeathReason]] = deque()
        self._is_reading = False

    def add(self, message: QueuedMessage, reason: DeathReason) -> None:
        """Dead-letter a message, after those that wait."""
        if message.content and not self._waiting:
            self._bury(message, reason)
            return
        self._waiting.append((message, reason))
        self.go_on()

    def clear(self) -> None:
        """Forget them: the queue was purged."""
        self._waiting.clear()

    def go_on(self) -> None:
        """Dead-letter the first messages, up to one whose content must be read."""
        while self._waiting and not self._is_reading:
            message, reason = self._waiting[0]
            if not message.content:
                self._read()
                if self._waiting and self._waiting[0][0] is message and not message.content:
                    return
                continue
            self._waiting.popleft()
            self._bury(message, reason)

    def _read(self) -> None:
        self._is_reading = True
        messages: list[QueuedMessage] = []
        size = 0
        for message, _ in islice(self._waiting, READ_TOGETHER):
            if not message.content and size < READ_BYTES:
                messages.append(message)
                size += message.size
        self._host.ask(partial(contents_of, self._host.journal, messages), partial(self._read_done, messages))

    def _read_done(self, messages: list[QueuedMessage], answer: Contents | StoreError) -> None:
        self._is_reading = False
        contents, error = ([], answer) if isinstance(answer, StoreError) else answer
        dying = {message.id: (message, reason) for message, reason in islice(self._waiting, READ_TOGETHER)}
        for message, (content, damage) in zip(messages, contents, strict=False):
            if damage is None:
                message.content = content
            elif message.id in dying:  # otherwise the queue was purged meanwhile
                self._waiting.remove(dying[message.id])
                self._lose(message, content, damage)
        has_failed = error is not None and messages[len(contents)].id in dying
        self._read_ended(error if has_failed else None, has_read=bool(contents))
        if not has_failed:
            self.go_on()


def contents_of(journal: JournalPort, messages: Sequence[QueuedMessage]) -> Contents:
    """Read the contents of messages that were released. Another thread may do so."""
    contents: list[tuple[bytes, str | None]] = []
    try:
        for message in messages:
            contents.append(journal.read_one(message))  # noqa: PERF401  # what was read before an error counts
    except StoreError as error:
        return contents, error
    return contents, None
