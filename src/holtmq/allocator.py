"""Tuning of the C library's memory allocator and of Python's garbage collector.

Sockets are read in pieces of up to 256 KiB. By default, glibc requests each piece from the kernel and returns it afterwards,
and the kernel maps the memory again page by page. With messages of 64 KiB this halves the throughput of a broker, or worse
(benchmarks/tuning.py). Creating hundreds of thousands of objects that all stay alive also triggers garbage collections that
find nothing and take as long as creating the objects.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8  # malloc.h
LARGEST_KEPT = 32 * 1024 * 1024  # the maximum that glibc accepts
KEPT_FREE = 32 * 1024 * 1024
PAD = 4 * 1024 * 1024
ARENAS = 1
"""What one thread frees, another can use. With an arena for each thread, a broker under pressure took 50 MiB more
(tests/server/test_memory.py), and one that writes to its disk was a tenth slower."""
SMALL_PIECES = (20_000, 0, 6_000)
"""Thresholds with which the garbage collector pauses for less than 50 ms during an import of 40,000 queues
(benchmarks/stalls.py). They cost a busy broker 12 % of its throughput."""


@contextmanager
def nothing_collected() -> Iterator[None]:
    """Pause garbage collection inside the block. If several threads do so, it resumes when the first of them leaves."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


@contextmanager
def collected_in_small_pieces() -> Iterator[None]:
    """Let each garbage collection in the block look at fewer objects, because many are created that stay.

    If blocks overlap, the first of them to be entered restores what was set before.
    """
    before = gc.get_threshold()
    if before == SMALL_PIECES:
        yield
        return
    gc.set_threshold(*SMALL_PIECES)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def keep_freed_memory() -> None:
    """Let glibc keep up to 32 MiB of freed memory in the process, for all threads. Other C libraries are left unchanged."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    values = {M_MMAP_THRESHOLD: LARGEST_KEPT, M_TRIM_THRESHOLD: KEPT_FREE, M_TOP_PAD: PAD, M_ARENA_MAX: ARENAS}
    for option, value in values.items():
        mallopt(option, value)


def give_back_freed_memory() -> None:
    """Give freed memory back to the operating system. This may take tens of milliseconds: do not call it on an event loop."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
