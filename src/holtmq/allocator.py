"""The C library's allocator, told to keep what it is going to need again, and Python's collector, told to wait.

Sockets are read in pieces of up to 256 KiB. By default glibc gets such a piece from the system and gives it back each time,
and the kernel then hands it out page by page: at 64 KiB a message a whole broker is then half as fast, or less
(benchmarks/tuning.py). And where a hundred thousand objects are made that are all going to stay, to look for garbage among
them, again and again, takes as long as to make them.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h
LARGEST_KEPT = 32 * 1024 * 1024  # the most that glibc takes
KEPT_FREE = 32 * 1024 * 1024
PAD = 4 * 1024 * 1024


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Don't look for garbage meanwhile. If several threads do so at a time, the first to end lets the search begin again."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of freed memory in the process; where the C library is another one, nothing changes."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    for option, value in ((M_MMAP_THRESHOLD, LARGEST_KEPT), (M_TRIM_THRESHOLD, KEPT_FREE), (M_TOP_PAD, PAD)):
        mallopt(option, value)
