"""Space in the file that messages have left: given back to the file system in small steps, so that nobody waits for it.

SQLite keeps the pages of removed messages for new ones. A file that was large once would stay large. Its last pages are
moved to free places and the file is cut (`auto_vacuum = INCREMENTAL`). Some free pages stay: the next messages need them.
Files from before this was possible are converted by a full VACUUM.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque

INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` for a file that can be cut step by step."""
PAGES_KEPT = 1000
"""Free pages that every file may keep. A larger file may keep half as many as it uses."""
STEP_S = 0.002
"""A step takes about this long: 4 µs for a page that is free, 60 µs for one that is moved."""
FEWEST_PAGES, MOST_PAGES = 16, 1024
LOOKS = 10
"""Free pages are given back if they were not needed at this many looks in a row. A busy broker would need them again."""
WAL_KEPT_BYTES = 32 * 1024 * 1024
"""The WAL is cut to this size when it has grown beyond, because a reader kept it from being reused."""


class FreeSpace:
    """The free pages of a file that are too many."""

    def __init__(self) -> None:
        self._pages = FEWEST_PAGES
        self._seen: deque[int] = deque(maxlen=LOOKS)
        self._is_uncut = False
        """Whether pages were given back that the file still has, until its WAL is written to it."""

    def excess(self, connection: sqlite3.Connection) -> int:
        """Return how many free pages the file has beyond those that it may keep."""
        free = free_pages(connection)
        if free <= PAGES_KEPT or not is_divisible(connection):
            return 0
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        return max(0, free - max(PAGES_KEPT, (int(pages) - free) // 2))

    def is_unused(self, connection: sqlite3.Connection) -> bool:
        """Look at the free pages, and return whether there have been too many for some time, or the file is to be cut."""
        self._seen.append(self.excess(connection))
        return self._is_uncut or (len(self._seen) == LOOKS and min(self._seen) > 0)

    def give_back(self, connection: sqlite3.Connection) -> bool:
        """Give a few pages back, unless a transaction is open. Return whether there are more."""
        if connection.in_transaction:  # a script would commit it
            return False
        excess = self.excess(connection)
        if not excess:
            if self._is_uncut:
                self._is_uncut = False
                cut(connection)
            return False
        self.give_back_some(connection, excess)
        self._is_uncut = True
        return True

    def give_back_some(self, connection: sqlite3.Connection, most: int) -> int:
        """Give back as many pages as a step has time for, up to a number. Return how many were asked for."""
        assert not connection.in_transaction
        pages = min(self._pages, most)
        start = time.perf_counter()
        # A script, because sqlite3 would execute only the first step of a statement that returns nothing.
        connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        faster = time.perf_counter() - start < STEP_S
        self._pages = min(self._pages * 2, MOST_PAGES) if faster else max(self._pages // 2, FEWEST_PAGES)
        return pages


def free_pages(connection: sqlite3.Connection) -> int:
    """Return how many free pages the file has."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    return int(free)


def is_divisible(connection: sqlite3.Connection) -> bool:
    """Return whether free pages can be given back in steps."""
    (mode,) = connection.execute("PRAGMA auto_vacuum").fetchone()
    return bool(mode == INCREMENTAL)


def cut(connection: sqlite3.Connection) -> None:
    """Write the WAL to the file and cut both, unless a reader still needs them as they are."""
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
