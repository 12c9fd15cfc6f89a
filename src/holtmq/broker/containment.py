"""Containment: an internal error harms the queue or the client that caused it, and nothing else.

Every step of a turn that serves one queue or one client runs inside `contain`. A defect there is logged with its traceback,
counted, and shown in the metrics; the turn goes on with the next queue or client.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

LOGGED_PER_PLACE = 10
"""Tracebacks that are logged for one step. A defect that repeats in every turn must not fill the disk."""


class InternalErrors:
    """The internal errors since the broker started, by the step that failed."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def report(self, step: str, subject: str) -> None:
        """Count and log the exception that is being handled. `step` says what failed, `subject` for whom."""
        count = self.counts[step] = self.counts.get(step, 0) + 1
        if count <= LOGGED_PER_PLACE:
            log.exception("internal error while %s (%s)", step, subject)
        if count == LOGGED_PER_PLACE:
            log.error("further internal errors while %s are counted, but not logged", step)

    @contextmanager
    def contain(self, step: str, subject: str) -> Iterator[None]:
        """Report an exception that the block raises, and go on after the block."""
        try:
            yield
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.report(step, subject)
