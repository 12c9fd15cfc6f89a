"""The running half of a stream: receivers that fill the ledger, and the end of a stream that has one. Runs on the driver."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime, timedelta

from holtmq.errors import HoltmqError
from holtmq.spark.amqp.amqp_options import StreamOptions
from holtmq.spark.amqp.backlog import SILENCE_S, Backlog, SilentQueueError
from holtmq.spark.amqp.ledger import Ledger
from holtmq.spark.amqp.receiver import Receiver
from holtmq.spark.amqp.spool import Spool
from holtmq.spark.amqp.stream_metrics import StreamMetrics
from holtmq.spark.amqp.subscription import Subscription

QUIET_S = 0.15
"""When no receiver gets a message for this long, the queues may be empty, and the broker is asked."""
PAUSE_S = 0.01
MAX_COUNTS = 5
"""How often the lag is counted if messages move meanwhile: some could be counted twice, or not at all."""


class StreamError(HoltmqError):
    """A receiver failed, and the stream cannot continue."""


class Intake:
    """The receivers of a stream, its ledger and its spool."""

    def __init__(self, subscription: Subscription, options: StreamOptions) -> None:
        self._subscription = subscription
        self._options = options
        self._backlog = Backlog(subscription)
        self._receivers: list[Receiver] = []
        self._target: int | None = None
        """Total number of messages to read, or None for a stream without end."""
        self._silent_since: float | None = None
        if options.keeps_spool and options.spool is not None:
            self.spool = Spool(options.spool)
        else:
            self.spool = Spool.temporary(options.spool)
        self.spool.acquire()
        segment_rows = min(options.segment_rows, options.batch_rows)
        self.ledger = Ledger(self.spool, segment_rows=segment_rows, keeps_spool=options.keeps_spool)

    def end_when_empty(self) -> None:
        """Note how many messages are in the queues now. The stream ends when they are read."""
        self._target = self._backlog.ready()

    def start(self, last: int) -> None:
        """Start the receivers once. `last` is the last segment that Spark has recorded in a batch."""
        if self._receivers:
            return
        if self._options.keeps_spool:
            recovered = self.ledger.recover(last)
            self._target = None if self._target is None else self._target + recovered
        self._subscription.required_names()
        counter = itertools.count(time.time_ns() // 1000)
        for _ in range(self._options.receivers):
            receiver = Receiver(
                self._subscription,
                self.spool,
                prefetch=self._options.prefetch,
                piece_rows=min(self._options.segment_rows, self._options.batch_rows),
                order=lambda: next(counter),
                add=self.ledger.add,
            )
            receiver.start()
            self._receivers.append(receiver)

    @property
    def is_complete(self) -> bool:
        """Whether a stream that has an end has reached it."""
        return self._missing() == 0

    def plan(self, last: int, most: int | None) -> int | None:
        """Plan a batch of at most `most` messages after segment `last`. Return its last segment, or None if there is none.

        A stream that has an end waits for a full batch: fewer batches cost less, and nobody waits for a part of the result.
        """
        while (missing := self._missing()) and not self._is_quiet():
            self._raise_errors()
            if self.ledger.fresh_rows >= (missing if most is None else min(most, missing)):
                break
            time.sleep(PAUSE_S)
        self._raise_errors()
        if missing == 0:
            return None
        end = self.ledger.plan(last, most, missing)
        return end if end > last else None

    def expects_more(self) -> bool:
        """Return whether messages will come before the end of the stream. Without an end nobody waits for them.

        Raise SilentQueueError if the queues have messages, and none comes for a minute.
        """
        if not self._missing():
            return False
        if not self._is_quiet() or self.ledger.fresh_rows:
            self._silent_since = None
            return True
        ready = self._backlog.ready()
        now = time.monotonic()
        self._silent_since = self._silent_since or now
        if ready and now - self._silent_since > SILENCE_S:
            raise SilentQueueError.of(f"the queues {self._subscription} have", ready, SILENCE_S)
        return bool(ready)

    def metrics(self, after: int) -> StreamMetrics:
        """Return what the stream has done, and what is left after segment `after`."""
        for _ in range(MAX_COUNTS):
            before = self._moved()
            waiting, left = self._waiting(), self.ledger.left(after)
            if self._moved() == before:
                break
        oldest = min((piece.oldest for piece in left), default=None)
        age = None if oldest is None else max(timedelta(), datetime.now(UTC) - oldest)
        return StreamMetrics(
            None if waiting is None else waiting + sum(piece.rows for piece in left),
            self.ledger.received,
            self.ledger.acknowledged,
            self.ledger.redelivered,
            None if age is None else age // timedelta(milliseconds=1),
        )

    def stop(self) -> None:
        """Stop the receivers. Unlock the spool if it is kept, otherwise delete it."""
        for receiver in self._receivers:
            receiver.stop()
        for receiver in self._receivers:
            receiver.join()
        self._backlog.close()
        if self._options.keeps_spool:
            self.spool.remove_fresh()
            self.spool.release()
        else:
            self.spool.remove()

    def _missing(self) -> int | None:
        """Return how many messages are missing until the end of the stream, or None if it has no end."""
        return None if self._target is None else max(0, self._target - self.ledger.taken)

    def _moved(self) -> tuple[int, int]:
        """Return how many messages receivers have got, and how many of those are in pieces."""
        return sum(receiver.received for receiver in self._receivers), self.ledger.received

    def _waiting(self) -> int | None:
        """Return how many messages are in no piece yet, or None if the broker does not answer.

        They are ready in the queues, or receivers have them. Nobody can count those on their way between the two, but a stream
        that has an end knows how many will come.
        """
        try:
            ready = self._backlog.ready()
        except HoltmqError:  # the receivers report a broker that stays unreachable; metrics must not stop a stream
            return None
        received, in_pieces = self._moved()
        missing = self._missing()
        coming = 0 if missing is None or self._is_quiet() else missing - self.ledger.fresh_rows
        return max(ready + received - in_pieces, coming)

    def _is_quiet(self) -> bool:
        now = time.monotonic()
        idle = [receiver.idle_since for receiver in self._receivers]
        return all(since is not None and now - since >= QUIET_S for since in idle)

    def _raise_errors(self) -> None:
        for receiver in self._receivers:
            if receiver.error is not None:
                raise StreamError(str(receiver.error)) from receiver.error
