"""The clock of a running broker: the time of day, without its jumps.

A broker measures TTLs and idle times. If somebody sets the clock of the machine by hours, no message may expire because of
it and no idle queue may be deleted. The broker therefore reads the time of day once, and from then on counts.
"""

from __future__ import annotations

import time


class SteadyClock:
    """The time of day when it was made, plus the time that has passed since.

    Corrections in small steps, as NTP makes them, are followed; jumps are not, until the broker is started again. Time in
    which the machine is suspended counts, where the system can tell it (Linux).
    """

    def __init__(self) -> None:
        self._started_ns = time.time_ns() - elapsed_ns()

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return (self._started_ns + elapsed_ns()) // 1_000_000


def elapsed_s() -> float:
    """Return seconds since an unknown moment, unaffected by changes of the time of day."""
    return elapsed_ns() / 1e9


def elapsed_ns() -> int:
    """Return nanoseconds since an unknown moment, unaffected by changes of the time of day."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic_ns()
