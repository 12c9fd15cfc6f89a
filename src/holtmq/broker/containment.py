"""Containment: an internal error harms the queue or the client that caused it, and nothing else.

Every step of a turn that serves one queue or one client runs inside `contain`. A defect there is logged with its traceback,
counted, and shown in the metrics; the turn goes on with the next queue or client.
"""

from __future__ import annotations

import logging
from types import TracebackType

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

    def contain(self, step: str, subject: str) -> Containment:
        """Return a context that reports an exception which its block raises. What follows the block goes on."""
        return Containment(self, step, subject)


class Containment:
    """The context of one step. It can be used again and again: there are several in each turn (benchmarks/broker.py)."""

    __slots__ = ("_errors", "_step", "_subject")

    def __init__(self, errors: InternalErrors, step: str, subject: str) -> None:
        self._errors = errors
        self._step = step
        self._subject = subject

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self._errors.report(self._step, self._subject)
            return True
        return False
