"""Vacuums the tables of messages while a queue is in use.

Every pop and every acknowledgement leaves a dead row, with its index entries. They take space, and a pop steps over those at
the head of its queue. Autovacuum looks at a database once a minute by default, and no table can change that. So a process
that has removed some thousand messages has the server clean up, in a thread with a connection of its own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from holtmq.errors import StoreError
from holtmq.store.postgres.postgres_connection import Link

SWEEP_AFTER = 5_000
"""Messages that a process removes before it sweeps."""
LARGEST_BYTES = 64 << 20
"""Size of the table above which sweeping is left to autovacuum: the dead rows of a minute are a small part of it."""
CLOSING_S = 1.0
IS_SMALL = "SELECT pg_relation_size('deliveries') <= $1"
# Who is vacuuming the tables already is not waited for. Returning space to the system would need a lock that stops everybody.
SWEEP = "VACUUM (SKIP_LOCKED, TRUNCATE false) deliveries, messages"


class TableSweeper:
    def __init__(self, open_connection: Callable[[], psycopg.Connection[Any]]) -> None:
        self._open = open_connection
        self._removed = random.randrange(SWEEP_AFTER)  # workers that start together do not sweep together
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._is_closed = False
        self.raw: psycopg.Connection[Any] | None = None
        """The connection of the sweep that is running."""

    def note_removed(self, number: int) -> None:
        """Count messages that were removed, and sweep if there were enough. For the holder of the connection's lock."""
        self._removed += number
        if self._removed >= SWEEP_AFTER and not self._is_sweeping:
            self._removed = 0
            self._thread = threading.Thread(target=self._sweep, name="holtmq-sweeper", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        if self._link is not None:
            self._link.cut()  # the server ends its sweep without us
        if self._thread is not None:
            self._thread.join(CLOSING_S)

    @property
    def _is_sweeping(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _sweep(self) -> None:
        # What goes wrong here stops nobody: autovacuum comes later.
        with suppress(psycopg.Error, StoreError), self._open() as self.raw:
            self._link = Link(self.raw)
            if not self._is_closed and self.raw.execute(IS_SMALL, (LARGEST_BYTES,)).fetchone() == (True,):
                self.raw.execute(SWEEP)
        self.raw = self._link = None
