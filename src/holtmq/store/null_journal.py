"""A journal that keeps nothing, for a broker that only rehearses changes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from holtmq.store.chunk import Page, PageRequest, Reading
from holtmq.store.journal_port import JournalPort, StorableMessage
from holtmq.store.records import DueMessage
from holtmq.store.stream_port import StreamChange, StreamExtent
from holtmq.topology import Queue


class NullJournal(JournalPort):
    """Accept every change and store none."""

    @property
    def batch(self) -> int:
        return 0

    @property
    def has_changes(self) -> bool:
        return False

    @property
    def size(self) -> int:
        return 0

    @property
    def memory(self) -> int:
        return 0

    @property
    def damaged(self) -> int:
        return 0

    @property
    def change_count(self) -> int:
        return 0

    @property
    def declared_batch(self) -> int:
        return 0

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def request_page(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> PageRequest:
        return PageRequest(queue_id, priority, 0, after_id, limit, most_bytes)

    def fetch(self, request: PageRequest) -> Page:
        return Page(request, [])

    def attach(self, page: Page) -> Reading:
        return Reading([], page.request.after_id, page.request.after_id)

    def read_one(self, message: StorableMessage) -> tuple[bytes, str | None]:
        raise NotImplementedError("this journal stores nothing that could be read")

    def id_ahead(self, queue_id: int, priority: int, after_id: int, number: int) -> int | None:
        return None

    def begin_stream(
        self, queue_id: int, chunk_bytes: int, max_bytes: int | None = None, since_ms: int | None = None
    ) -> StreamChange:
        return StreamChange()

    def stream_chunk(self, queue_id: int, offset: int) -> None:
        return None

    def stream_extent(self, queue_id: int) -> StreamExtent:
        return StreamExtent()

    def stream_offset_at(self, queue_id: int, timestamp_ms: int) -> int:
        return 0

    def next_due(self, after_ms: int) -> int | None:
        return None

    def due(self, after_ms: int, now_ms: int) -> Sequence[DueMessage]:
        return ()

    def add_queue(self, queue: Queue) -> int:
        return 0

    def _ignore(self, *_: object, **__: object) -> None:
        """Store nothing."""

    add = add_all = _ignore
    remove = _ignore
    returned = _ignore
    set_aside = _ignore
    set_chunk_aside = _ignore
    set_row_aside = _ignore
    take_in = _ignore
    purge = _ignore
    forget_queue = _ignore
    delivered = _ignore
    recover_stream = _ignore
    forget_delivered = _ignore
    add_exchange = _ignore
    add_binding = _ignore
    remove_parts = _ignore
    set_policy = _ignore
    remove_policy = _ignore
    set_vhost = _ignore
    set_parameter = _ignore
    remove_parameter = _ignore
    remove_vhost = _ignore
    set_user = _ignore
    remove_user = _ignore
    set_permission = _ignore
    remove_permission = _ignore
