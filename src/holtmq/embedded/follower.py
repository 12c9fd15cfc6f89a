"""A reader that stays at the end of a stream and waits for more. Under a name, its position is kept in the file."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from holtmq.errors import PositionLostError
from holtmq.routing.explanation_text import count

if TYPE_CHECKING:
    from holtmq.embedded.stream_handle import StreamHandle
    from holtmq.embedded.stream_record import StreamRecord


class Follower(Iterator["StreamRecord"]):
    """An iterator over the messages of a stream, as returned by `StreamHandle.follow`. It belongs to one loop."""

    def __init__(
        self,
        stream: StreamHandle,
        stream_id: int,
        name: str | None,
        offset: int,
        matches: Callable[[str], bool],
        *,
        wait_s: float | None,
        auto_commit: bool,
    ) -> None:
        self._stream = stream
        self._stream_id = stream_id
        self._name = name
        self._position = self._cursor = offset
        """The position in the file as this follower knows it, and the offset up to which it has read ahead."""
        self._matches = matches
        self._wait_s = wait_s
        self._auto_commit = auto_commit and name is not None
        self._ahead: deque[StreamRecord] = deque()

    def __next__(self) -> StreamRecord:
        record = self.look(threading.Event())
        if record is None:
            raise StopIteration
        self.take()
        return record

    def look(self, given_up: threading.Event) -> StreamRecord | None:
        """Return the next message, and again until it is taken. All that were taken before count as handled.

        Return None if none has come within the time to wait, or if another thread has set `given_up` and called `wake`.
        """
        deadline = None if self._wait_s is None else time.monotonic() + self._wait_s
        self._commit_handled()
        while not self._ahead:
            mark = self._stream.listen()  # first, so that neither a message nor the end of patience is missed
            if given_up.is_set():
                return None
            if self._read_ahead():
                self._commit_handled()
                continue
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._stream.wait(mark, left_s)
        return self._ahead[0]

    def take(self) -> None:
        """Remove the message that `look` returned."""
        self._ahead.popleft()

    def _read_ahead(self) -> bool:
        """Read a chunk, and keep what matches. Return False at the end of the stream."""
        start, records, end = self._stream.read_some(self._stream_id, self._cursor, self._matches)
        if start > self._cursor and self._name is not None:
            removed = count(start - self._cursor, "message")
            raise PositionLostError(
                f"position {self._name!r} of stream {self._stream.name!r} is at offset {self._cursor}, but retention removed "
                f"{removed} from there to offset {start - 1}: call seek({self._name!r}, 'first') to skip them"
            )
        is_more, self._cursor = end > self._cursor, end
        self._ahead.extend(records)
        return is_more

    def _commit_handled(self) -> None:
        """Move the position past all messages that were handled or do not match."""
        if self._auto_commit:
            reached = self._ahead[0].offset if self._ahead else self._cursor
            if reached != self._position:
                assert self._name is not None
                self._stream.move(self._stream_id, self._name, self._position, reached)
                self._position = reached
