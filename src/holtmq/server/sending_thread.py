"""Sending large output in a thread: the kernel copies it on another core while the event loop goes on.

To copy a message of 64 KiB to a socket takes as long as everything else that the broker does with it (benchmarks/broker.py).
What a turn leaves to be sent is handed over together. Sockets do not block: what one of them does not take now comes back, and
the event loop sends the rest when the client has read some of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from holtmq.broker.containment import InternalErrors
from holtmq.server.worker_thread import WorkerThread
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.wire.content import Buffer

LARGE_OUTPUT = 48 * 1024
"""Bytes for one client that are worth the thread. Less is sent before the thread has woken up."""
MOST_PIECES = 512
"""Pieces that the kernel takes at once. Systems allow 1,024 (IOV_MAX)."""
Rest: TypeAlias = Sequence[Buffer]


@dataclass(slots=True)
class _Output:
    fd: int
    """A descriptor of its own: the client's may be closed meanwhile, and its number taken by another connection."""
    pieces: Sequence[Buffer]
    sent: Callable[[Rest | None], None]
    """Called on the event loop with what the socket has not taken, or with None if that is not known."""


class SendingThread:
    def __init__(self, errors: InternalErrors, journal: BatchJournal) -> None:
        self._errors = errors
        self._journal = journal
        self._thread = WorkerThread("holtmq-sender")
        self._waiting: list[_Output] = []
        self._is_busy = False

    def is_worth(self, output: Sequence[Buffer]) -> bool:
        """Whether large output had better be sent by the thread than by the event loop (benchmarks/broker.py).

        While messages are written, it had not: the disk's thread has the other core, and the sooner messages are acknowledged,
        the fewer are written. Nor had a message of several frames: the event loop would wait for the next one meanwhile.
        """
        if self._journal.has_changes or self._journal.is_writing:
            return False
        return not any(isinstance(piece, memoryview) for piece in output)

    def add(self, fd: int, pieces: Sequence[Buffer], sent: Callable[[Rest | None], None]) -> bool:
        """Send output to a socket after `start`. Nobody else may send to it before `sent` is called.

        Return False if the process may not open another descriptor.
        """
        try:
            own_fd = os.dup(fd)
        except OSError:
            return False
        self._waiting.append(_Output(own_fd, pieces, sent))
        return True

    def start(self) -> None:
        """Let the thread send what was added, unless it is busy. It goes on with that afterwards."""
        if self._waiting and not self._is_busy:
            outputs, self._waiting = self._waiting, []
            self._thread.do(partial(_send_all, outputs), self._sent, partial(self._failed, outputs))
            self._is_busy = True

    def _sent(self, rests: Sequence[tuple[_Output, Rest]]) -> None:
        self._is_busy = False
        self.start()
        for output, rest in rests:
            output.sent(rest)

    def _failed(self, outputs: Sequence[_Output], error: Exception) -> None:
        self._is_busy = False
        self.start()
        with self._errors.contain("sending output", "some clients"):
            raise error
        for output in outputs:
            output.sent(None)

    def stop(self) -> None:
        self._thread.stop()


def _send_all(outputs: Sequence[_Output]) -> list[tuple[_Output, Rest]]:
    return [(output, _send(output)) for output in outputs]


def _send(output: _Output) -> Rest:
    """Send what the socket takes now, and return the rest."""
    pieces = output.pieces
    try:
        at = 0
        while at < len(pieces):
            some = pieces[at : at + MOST_PIECES]
            left = os.writev(output.fd, some)
            for piece in some:
                if left < len(piece):
                    return [memoryview(piece)[left:], *pieces[at + 1 :]]
                left -= len(piece)
                at += 1
    except OSError:  # the socket is full, or the connection is lost: the event loop finds out
        return pieces[at:]
    finally:
        os.close(output.fd)
    return ()
