"""Whether a server refuses a connection for now or for good, whatever the language of its messages.

psycopg knows the SQLSTATE of a failed statement, but only the text of a refused connection. libpq 18 or later writes down what
it receives, on Linux. So a text that is not known costs a second attempt, once.
"""

from __future__ import annotations

import os
import re
import select
import sys
import time
from functools import lru_cache

from psycopg.pq import PGconn, PollingStatus, abc

ANSWER = re.compile(rb'ErrorResponse\t.* C "(\w{5})"')
TOO_MANY_CONNECTIONS = "53300"
CANNOT_CONNECT_NOW = "57P03"
PASSING_CLASSES = ("53", "55", "57")
"""Insufficient resources, a database that takes no connections, and operator intervention."""
TEXTS_KEPT = 100


@lru_cache(TEXTS_KEPT)
def passing_state(conninfo: str, _text: str, timeout_s: float) -> str | None:
    """Connect again after a refusal, once for each text. Return the SQLSTATE if it is one that passes."""
    if sys.platform != "linux":
        return None
    with os.fdopen(os.memfd_create("holtmq-trace"), "rb") as trace:  # it may have passwords: not a file on a disk
        attempt = PGconn.connect_start(conninfo.encode())
        try:
            attempt.trace(trace.fileno())
            is_accepted = _finish(attempt, time.monotonic() + timeout_s)
            attempt.untrace()
        finally:
            attempt.finish()
        if is_accepted:
            return CANNOT_CONNECT_NOW
        trace.seek(0)
        states = [state.decode() for state in ANSWER.findall(trace.read())]
    return next((state for state in states if state.startswith(PASSING_CLASSES)), None)


def _finish(attempt: abc.PGconn, deadline: float) -> bool:
    """Connect, and return whether that succeeded."""
    while (status := attempt.connect_poll()) in (PollingStatus.READING, PollingStatus.WRITING):
        poll = select.poll()
        poll.register(attempt.socket, select.POLLIN if status == PollingStatus.READING else select.POLLOUT)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return False
    return status == PollingStatus.OK
