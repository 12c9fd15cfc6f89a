"""Pages of a backlog: a queue asks for the next one, and gets it later."""

from __future__ import annotations

from collections.abc import Callable

from holtmq.errors import StoreError
from holtmq.store.chunk import Page, PageRequest
from holtmq.store.journal_port import JournalPort


class PageReads:
    """Reads pages for the queues of a broker. There is always time here: each is read at once."""

    def __init__(self, journal: JournalPort) -> None:
        self._journal = journal

    def ask(self, request: PageRequest, then: Callable[[Page | StoreError], None]) -> None:
        """Read a page, and pass it on, or the error that prevents it."""
        answer: Page | StoreError
        try:
            answer = self._journal.fetch(request)
        except StoreError as error:
            answer = error
        then(answer)
