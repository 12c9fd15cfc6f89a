"""A producer that writes in the background. Messages sent during one transaction share the next one."""

from __future__ import annotations

import queue as queues
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from holtmq.body import Content
from holtmq.errors import StoreClosedError, StoreUnknownError

if TYPE_CHECKING:
    from holtmq.embedded.queue_handle import Key, QueueHandle

MOST_IN_ONE = 1000
MOST_WAITING = 10_000
"""Maximum number of unwritten messages; `send` blocks beyond it."""


class BackgroundProducer:
    """Puts messages into a queue from a thread of its own, as returned by `EmbeddedBroker.producer`."""

    def __init__(self, queue: QueueHandle) -> None:
        self.queue = queue
        self._outbox: queues.Queue[tuple[Content, Key, Future[int]] | None] = queues.Queue(MOST_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def send(self, content: Content, routing_key: Key = "") -> Future[int]:
        """Queue a message for writing. The future returns its id once it is in the file, or raises the error."""
        future: Future[int] = Future()
        with self._lock:
            if self._is_closed:
                raise StoreClosedError(f"the producer of queue {self.queue.name!r} is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"holtmq-producer-{self.queue.name}", daemon=True)
                self._thread.start()
        self._outbox.put((content, routing_key, future))
        return future

    def close(self) -> None:
        """Write all queued messages, then stop."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if self._thread is not None and not was_closed:
            self._outbox.put(None)
            self._thread.join()

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [self._outbox.get()]
            while len(batch) < MOST_IN_ONE and not self._outbox.empty():
                batch.append(self._outbox.get())
            is_open = None not in batch
            self._send_all([item for item in batch if item is not None])

    def _send_all(self, batch: list[tuple[Content, Key, Future[int]]]) -> None:
        """Write a batch. If it is refused, write the messages one by one, so that a bad one fails only its own future."""
        if not batch:
            return
        try:
            ids = self.queue.put_many([(content, key) for content, key, _ in batch])
        except Exception as error:  # noqa: BLE001  # the edge of a thread: every error belongs to the waiting future
            if len(batch) == 1 or isinstance(error, StoreUnknownError):  # what may be there must not be written again
                for _, _, future in batch:
                    future.set_exception(error)
                return
            for item in batch:
                self._send_all([item])
            return
        for message_id, (_, _, future) in zip(ids, batch, strict=True):
            future.set_result(message_id)
