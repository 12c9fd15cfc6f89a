"""A consumer with callbacks: messages are claimed in its own threads and acknowledged when the callback returns.

A thread claims as many messages at once as it handles in about `BATCH_S`, and acknowledges them in one transaction. If a
callback takes longer than expected, another thread acknowledges what was handled before it, and gives back what waits
behind it, so that no message loses its lease, or keeps another consumer idle, by waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from holtmq.embedded.claimed_batch import ClaimedBatch
from holtmq.errors import LeaseLostError, StoreClosedError, StoreError
from holtmq.routing.topic import TopicMatcher
from holtmq.topology import Binding

if TYPE_CHECKING:
    from holtmq.embedded.message import Message
    from holtmq.embedded.queue_handle import QueueHandle

Callback: TypeAlias = Callable[["Message"], object]
LONGEST_BACK_OFF_S = 300.0
PAUSE_AFTER_ERROR_S = 1.0
MOST_AT_ONCE = 100
BATCH_S = 0.02
"""Time in which a thread handles a batch of messages. A handled message is acknowledged after at most twice this time."""
LONGEST_BATCH_S = 0.1
SHARE_OF_LEASE = 0.1
"""Time for which messages wait in a batch, and the share of their lease. They are given back after the shorter of the two."""
log = logging.getLogger(__name__)


class CallbackConsumer:
    """A consumer as returned by `EmbeddedBroker.consumer`. It starts with its first pattern.

    If several patterns match a message, the callback that was registered first receives it.
    """

    def __init__(self, queue: QueueHandle, *, concurrency: int = 1, lease_s: float = 60, back_off_s: float = 1.0) -> None:
        self.queue = queue
        self._lease_s = lease_s
        self._back_off_s = back_off_s
        self._concurrency = concurrency
        self._callbacks: dict[str, tuple[TopicMatcher, Callback]] = {}
        self._longest_batch_s = min(LONGEST_BATCH_S, lease_s * SHARE_OF_LEASE)
        self._batches: dict[int, ClaimedBatch] = {}
        """By thread: the messages that it has claimed."""
        self._threads: list[threading.Thread] = []
        self._has_batch = threading.Event()
        self._stopping = threading.Event()

    def on_message(self, pattern: str, callback: Callback) -> CallbackConsumer:
        """Call `callback` for each message whose key matches the pattern. If it raises, the message is retried later."""
        matcher = TopicMatcher()
        matcher.add(Binding("", "", pattern))
        self._callbacks = {**self._callbacks, pattern: (matcher, callback)}
        if self._stopping.is_set():
            raise StoreClosedError(f"the consumer of queue {self.queue.name!r} is closed")
        if not self._threads:
            name = f"holtmq-consumer-{self.queue.name}"
            targets = [self._run] * self._concurrency + [self._watch]
            self._threads = [threading.Thread(target=run, name=f"{name}-{n}", daemon=True) for n, run in enumerate(targets)]
            for thread in self._threads:
                thread.start()
        self.queue.wake()
        return self

    def close(self) -> None:
        """Stop claiming messages, give back those that wait, and wait for the running callbacks."""
        self._stopping.set()
        self._has_batch.set()
        self.queue.wake()
        for batch in list(self._batches.values()):
            self._finish(batch)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    stop = close

    def _run(self) -> None:
        most = 1
        while not self._stopping.is_set():
            with self._pause_after_errors():
                mark = self.queue.listen()  # first, so that neither a new pattern nor the stop is missed
                if not self._stopping.is_set():
                    messages = self.queue.pop_or_wait(mark, most, list(self._callbacks), lease_s=self._lease_s)
                    most = self._handle_all(messages) if messages else most

    def _handle_all(self, messages: list[Message]) -> int:
        """Handle messages, and return how many to claim the next time."""
        batch = self._batches[threading.get_ident()] = ClaimedBatch(messages, self._longest_batch_s)
        if len(messages) > 1:
            self._has_batch.set()
        handled = 0
        try:
            while not self._stopping.is_set() and (message := batch.start_next()) is not None:
                self._handle(message, batch)
                handled += 1
        finally:
            took_s = batch.age_s
            del self._batches[threading.get_ident()]
            self._finish(batch)
        # At most twice as many as there were: a short queue is shared with other consumers.
        return max(1, min(MOST_AT_ONCE, 2 * handled, int(handled * BATCH_S / max(took_s, 1e-6))))

    def _handle(self, message: Message, batch: ClaimedBatch) -> None:
        callback = next(call for matcher, call in self._callbacks.values() if matcher.match(message.routing_key, {}))
        try:
            callback(message)
        except Exception:  # any error of the user's code
            log.exception("callback failed for message %d of queue %r, retrying later", message.id, self.queue.name)
            delay_s = min(self._back_off_s * 2 ** (message.attempts - 1), LONGEST_BACK_OFF_S)
            try:
                message.retry(delay_s)
            except LeaseLostError:
                self._warn_of(message)
        else:
            batch.note_handled(message)

    def _finish(self, batch: ClaimedBatch) -> None:
        """Give back the messages that wait, and acknowledge those that are handled."""
        self.queue.give_back(batch.take_waiting())
        self._acknowledge(batch)

    def _acknowledge(self, batch: ClaimedBatch) -> None:
        handled = batch.take_handled()
        if handled:
            for message in self.queue.ack_held(handled):
                self._warn_of(message)

    def _watch(self) -> None:
        """Look after batches that take longer than expected, because a callback does."""
        while self._has_batch.wait():
            self._has_batch.clear()  # before the look at the stop, whose wake-up call would otherwise be lost
            if self._stopping.wait(BATCH_S):
                return
            for batch in list(self._batches.values()):
                if batch.is_open:
                    self._has_batch.set()
                with self._pause_after_errors():
                    if batch.is_overdue:
                        self._finish(batch)
                    elif batch.age_s > BATCH_S:
                        self._acknowledge(batch)

    def _warn_of(self, lost: Message) -> None:
        """Log that a message was delivered again during its callback, unless the callback has settled it."""
        current = self.queue.get(lost.id)
        if current is not None and current.state == "locked":
            log.warning("message %d of queue %r took longer than its lease and was delivered again", lost.id, self.queue.name)

    @contextmanager
    def _pause_after_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreClosedError:
            self._stopping.set()
        except StoreError:
            log.exception("consumer of queue %r failed, retrying", self.queue.name)
            self._stopping.wait(PAUSE_AFTER_ERROR_S)
