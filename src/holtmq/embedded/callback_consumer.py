"""A consumer with callbacks: messages are claimed in its own threads and acknowledged when the callback returns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from holtmq.errors import LeaseLostError, StoreClosedError, StoreError
from holtmq.routing.topic import TopicMatcher
from holtmq.topology import Binding

if TYPE_CHECKING:
    from holtmq.embedded.message import Message
    from holtmq.embedded.queue_handle import QueueHandle

Callback: TypeAlias = Callable[["Message"], object]
LONGEST_BACK_OFF_S = 300.0
PAUSE_AFTER_ERROR_S = 1.0
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
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def on_message(self, pattern: str, callback: Callback) -> CallbackConsumer:
        """Call `callback` for each message whose key matches the pattern. If it raises, the message is retried later."""
        matcher = TopicMatcher()
        matcher.add(Binding("", "", pattern))
        self._callbacks = {**self._callbacks, pattern: (matcher, callback)}
        if self._stopping.is_set():
            raise StoreClosedError(f"the consumer of queue {self.queue.name!r} is closed")
        if not self._threads:
            for number in range(self._concurrency):
                name = f"holtmq-consumer-{self.queue.name}-{number}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        self.queue.wake()
        return self

    def close(self) -> None:
        """Stop claiming messages, and wait for the running callbacks."""
        self._stopping.set()
        self.queue.wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    stop = close

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                mark = self.queue.listen()  # first, so that neither a new pattern nor the stop is missed
                if self._stopping.is_set():
                    return
                message = self.queue.pop_or_wait(mark, list(self._callbacks), lease_s=self._lease_s)
                if message is not None:
                    self._handle(message)
            except StoreClosedError:
                return
            except StoreError:
                log.exception("consumer of queue %r failed, retrying", self.queue.name)
                self._stopping.wait(PAUSE_AFTER_ERROR_S)

    def _handle(self, message: Message) -> None:
        callback = next(call for matcher, call in self._callbacks.values() if matcher.match(message.routing_key, {}))
        try:
            callback(message)
        except Exception:  # any error of the user's code
            log.exception("callback failed for message %d of queue %r, retrying later", message.id, self.queue.name)
            delay_s = min(self._back_off_s * 2 ** (message.attempts - 1), LONGEST_BACK_OFF_S)
            self._settle(message, lambda: message.retry(delay_s))
        else:
            self._settle(message, message.ack)

    def _settle(self, message: Message, settle: Callable[[], None]) -> None:
        try:
            settle()
        except LeaseLostError:
            current = self.queue.get(message.id)
            if current is not None and current.state == "locked":
                log.warning(
                    "message %d of queue %r took longer than its lease and was delivered again", message.id, self.queue.name
                )
