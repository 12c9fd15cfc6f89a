"""Chores: work that may take long and must be done whatever fails, such as closing a session or deleting a queue.

A chore is a computation in steps that can be started again: it does what is left to do. As many steps as there is time for are
done when it is added, which is all of them for most; the rest follows between the turns of the broker (`server.between_turns`).
A chore that fails is reported and, with the next `retry`, started again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holtmq.broker.containment import InternalErrors
from holtmq.steps import Steps


class Chore:
    """One piece of work."""

    __slots__ = ("_begin", "_then", "is_done", "name", "steps", "subject")

    def __init__(self, name: str, subject: str, begin: Callable[[], Steps[None]]) -> None:
        self.name = name
        self.subject = subject
        self.is_done = False
        self.steps: Steps[None] | None = None
        self._begin = begin
        self._then: list[Callable[[], None]] = []

    def resume(self) -> Steps[None]:
        """Return the steps that are left."""
        if self.steps is None:
            self.steps = self._begin()
        return self.steps

    def then(self, call: Callable[[], None]) -> None:
        """Call a function when the chore is done, or now if it is."""
        if self.is_done:
            call()
        else:
            self._then.append(call)

    def finish(self) -> None:
        self.is_done = True
        then, self._then = self._then, []
        for call in then:
            call()


class Chores:
    """The chores of a broker. There is always time here: each is done at once."""

    def __init__(self, errors: InternalErrors) -> None:
        self._errors = errors
        self._waiting: deque[Chore] = deque()
        self._failed: list[Chore] = []

    @property
    def has_work(self) -> bool:
        """Whether there are chores with steps to do. Those that failed do not count."""
        return bool(self._waiting)

    def count_time(self) -> None:
        """Count the time from here on as that of a chore: those that come after long work have less of it, or none."""

    def add(self, name: str, subject: str, begin: Callable[[], Steps[None]]) -> Chore:
        """Start a chore. `name` and `subject` say in the log what failed, and for whom."""
        chore = Chore(name, subject, begin)
        try:
            self.start(chore)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._fail(chore)
        return chore

    def start(self, chore: Chore) -> None:
        """Start a chore that had to wait for something."""
        if not (self._has_time() and self._do(chore)):
            self._waiting.append(chore)

    def retry(self) -> None:
        """Start the chores again that have failed. None is lost if that fails as well."""
        for _ in range(len(self._failed)):
            chore = self._failed.pop(0)
            try:
                self.start(chore)
            except Exception:  # noqa: BLE001  # contained: it is reported
                self._fail(chore)

    def complete(self) -> None:
        """Do all chores to their end, and those that have failed once more."""
        failed, self._failed = self._failed, []
        self._waiting += failed
        while self._waiting:
            self._do(self._waiting.popleft(), is_urgent=True)

    def _do(self, chore: Chore, *, is_urgent: bool = False) -> bool:
        """Do a step of a chore, and more for as long as there is time, or all of them. Return False if there is more to do."""
        try:
            for _ in chore.resume():
                if not (is_urgent or self._has_time()):
                    return False
            chore.finish()
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._fail(chore)
        return True

    def _fail(self, chore: Chore) -> None:
        """Report the exception that is being handled, and leave the chore to the next `retry`."""
        chore.steps = None
        self._failed.append(chore)
        self._errors.report(chore.name, chore.subject)

    def _has_time(self) -> bool:
        return True
