"""The rules of `queueing` applied to a file: messages that enter queues, and messages that die in them.

A message that enters a queue may push another one out of it, which may enter a further queue as a dead letter, and so on.
Such a chain is published within the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

from holtmq.errors import QueueFullError
from holtmq.queueing.dead_letter import DeadLetter, DeathReason, dead_letter
from holtmq.queueing.letter_chain import LetterChain
from holtmq.queueing.overflow import is_full, is_too_long
from holtmq.queueing.publishing_id import numbered_by
from holtmq.queueing.rules import QueueRules
from holtmq.queueing.stored_properties import raw_properties_of
from holtmq.queueing.stream_rules import StreamRules
from holtmq.queueing.terms import Terms, is_expired, terms_of
from holtmq.routing import Route, Router
from holtmq.steps import complete
from holtmq.store.message_port import MessageStorePort
from holtmq.store.records import DeliveryState, NewMessage
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.sql_database import Connection
from holtmq.store.stream_port import StreamEntry, StreamPort
from holtmq.wire.content import Properties

T = TypeVar("T")
Queues: TypeAlias = Mapping[str, tuple[int, QueueRules]]
"""The queues of the vhost: by name, the id in the file and the rules."""
Streams: TypeAlias = Mapping[str, tuple[int, StreamRules]]
"""The streams likewise."""


class Intake:
    """Applies the queue rules. Every method works within the caller's transaction, whose connection and time it is given."""

    def __init__(
        self,
        messages: MessageStorePort,
        log: StreamPort,
        keys: RoutingKeys,
        router: Callable[[], Router],
        queues: Callable[[], Queues],
        streams: Callable[[], Streams],
    ) -> None:
        self._messages = messages
        self._log = log
        self._keys = keys
        self._router = router
        self._queues = queues
        self._streams = streams
        self._dead_letters: LetterChain[bytes] = LetterChain()

    def publish(
        self,
        connection: Connection,
        message: NewMessage,
        route: Route,
        priority: int | None,
        ttl_ms: int | None,
        now_ms: int,
        *,
        is_cycle: Callable[[str], bool] = lambda _queue: False,
    ) -> int | None:
        """Put a message into the queues and streams of a route. Return its id, or None if none of them accepted it."""
        queues, streams = self._queues(), self._streams()
        targets = {
            name: terms_of(queues[name][1], priority, ttl_ms, route.entries.get(name), now_ms)
            for name in route.queues
            if name in queues and not is_cycle(name)
        }
        message_id = self._enter(connection, message, targets, now_ms)
        reached = [name for name in route.queues if name in streams] if streams else []
        for name in reached:
            self.append(*streams[name], [stream_entry(message, now_ms)], now_ms)
        if message_id is None and reached:
            return self._messages.skip_id(connection, now_ms)
        return message_id

    def append(self, stream: int, rules: StreamRules, entries: Sequence[StreamEntry], now_ms: int) -> list[int | None]:
        """Append messages to a stream, then apply its retention. Return their offsets, None for duplicates."""
        offsets = complete(self._log.append(stream, entries, rules.chunk_bytes))
        if rules.limits:
            since_ms = None if rules.max_age_ms is None else now_ms - rules.max_age_ms
            complete(self._log.trim(stream, rules.max_bytes, since_ms))
        return offsets

    def _enter(self, connection: Connection, message: NewMessage, targets: Mapping[str, Terms], now_ms: int) -> int | None:
        """Put a message into queues. Return its id, or None if no queue accepted it."""
        queues, size = self._queues(), len(message.body)
        limited = [name for name in targets if queues[name][1].limits_length]
        if limited:
            self._messages.index_arrivals(connection)
        full = [name for name in limited if self._is_full(connection, name, size, now_ms)]
        for name in full:
            self.bury_rejected(connection, message, message.routing_key, name, now_ms)
        deliveries = [(queues[name][0], terms) for name, terms in targets.items() if name not in full]
        if not deliveries:
            return None
        message_id = self._messages.publish(connection, message, deliveries, now_ms)
        for name in limited:
            if name not in full:
                self.drop_excess(connection, name, now_ms)
        return message_id

    def _is_full(self, connection: Connection, name: str, message_size: int, now_ms: int) -> bool:
        """Return whether a queue rejects a message. Expired messages leave a full queue first."""
        queue_id, rules = self._queues()[name]
        if rules.overflow == "drop-head" or not is_full(rules, *self._messages.measure(connection, queue_id), message_size):
            return False
        has_room = self._expire_head(connection, name, now_ms)
        return not has_room or is_full(rules, *self._messages.measure(connection, queue_id), message_size)

    def admit(self, connection: Connection, name: str, messages: list[NewMessage], append: Callable[[], T], now_ms: int) -> T:
        """Append messages to a queue, or raise `QueueFullError` if it rejects them. Drop the oldest beyond the limits."""
        queue_id, rules = self._queues()[name]
        if not rules.limits_length:
            return append()
        sizes = [len(message.body) for message in messages]
        self._require_room(connection, name, sizes)
        appended = append()
        if all(message.due_at is None for message in messages):  # delayed ones are not ready yet
            self._messages.grow_measure(connection, queue_id, len(sizes), sum(sizes))
        self.drop_excess(connection, name, now_ms)
        return appended

    def _require_room(self, connection: Connection, name: str, sizes: list[int]) -> None:
        queue_id, rules = self._queues()[name]
        count, size = self._messages.measure(connection, queue_id)
        if rules.overflow == "drop-head" or not sizes:
            return
        if is_full(rules, count + len(sizes) - 1, size + sum(sizes[:-1]), sizes[-1]):
            limits = [f"{rules.max_length} messages"] if rules.max_length is not None else []
            limits += [f"{rules.max_length_bytes} bytes"] if rules.max_length_bytes is not None else []
            raise QueueFullError(
                f"queue {name!r} is full: it holds {count} ready messages ({size} bytes) of at most {' and '.join(limits)}, "
                f"so that {len(sizes)} more ({sum(sizes)} bytes) do not fit"
            )

    def drop_excess(self, connection: Connection, name: str, now_ms: int) -> None:
        """Drop messages from the head of a queue until it is within its limits."""
        queue_id, rules = self._queues()[name]
        if not rules.limits_length:
            return
        count, size = self._messages.measure(connection, queue_id)
        if is_too_long(rules, count, size) and self._expire_head(connection, name, now_ms):
            count, size = self._messages.measure(connection, queue_id)
        while count and is_too_long(rules, count, size):
            message_id = self._messages.first_ready(connection, queue_id)
            if message_id is None:
                break  # other processes are about to lock the rest
            count, size = count - 1, size - self.bury(connection, name, message_id, "maxlen", now_ms)
        self._messages.remember_measure(connection, queue_id, count, size)

    def expire(self, connection: Connection, now_ms: int) -> bool:
        """Dead-letter the expired messages at the head of every queue. Return whether there were any."""
        queue_ids = self._messages.queues_with_expired(connection, now_ms)
        if not queue_ids:
            return False
        names = {queue_id: name for name, (queue_id, _) in self._queues().items()}
        expired = [self._expire_head(connection, names[each], now_ms) for each in queue_ids if each in names]
        return any(expired)

    def _expire_head(self, connection: Connection, name: str, now_ms: int) -> bool:
        queue_id, rules = self._queues()[name]
        has_expired = False
        for priority in range(rules.max_priority, -1, -1):
            while (head := self._messages.head(connection, queue_id, priority)) is not None:
                if not is_expired(head.expires_at, now_ms):
                    break
                self.bury(connection, name, head.message_id, "expired", now_ms)
                has_expired = True
        return has_expired

    def bury(self, connection: Connection, name: str, message_id: int, reason: DeathReason, now_ms: int) -> int:
        """Remove a message that died in a queue, dead-letter it if the queue says so, and return the size of its body.

        Without a dead-letter exchange, a message that reached the delivery limit stays in the file as dead, for inspection.
        A damaged message stays as well.
        """
        queue_id, rules = self._queues()[name]
        (stored,) = self._messages.read(queue_id, [message_id])
        if stored.state == DeliveryState.DAMAGED:
            return len(stored.body)
        if rules.dead_letter_exchange is None and reason == "delivery_limit":
            self._messages.set_state(connection, queue_id, message_id, DeliveryState.DEAD, settled_at=now_ms)
            return len(stored.body)
        properties = Properties(raw_properties_of(stored))
        self._messages.remove(connection, queue_id, message_id)
        self._send_on(connection, properties, stored.exchange, stored.routing_key, stored.body, name, reason, now_ms)
        return len(stored.body)

    def bury_rejected(self, connection: Connection, message: NewMessage, routing_key: str, name: str, now_ms: int) -> None:
        """Dead-letter a message that a full queue rejected, if the queue's overflow behaviour says so."""
        if self._queues()[name][1].overflow == "reject-publish-dlx":
            properties = Properties(raw_properties_of(message))
            self._send_on(connection, properties, message.exchange, routing_key, message.body, name, "maxlen", now_ms)

    def _send_on(
        self,
        connection: Connection,
        properties: Properties,
        exchange: str,
        routing_key: str,
        body: bytes,
        queue: str,
        reason: DeathReason,
        now_ms: int,
    ) -> None:
        rules, exchanges = self._queues()[queue][1], self._router().registry.exchanges
        make = partial(
            dead_letter, properties, exchange, routing_key,
            queue=queue, rules=rules, exchanges=exchanges, reason=reason, now_ms=now_ms,
        )  # fmt: skip
        self._dead_letters.add(make, body, partial(self._publish_dead_letter, connection, now_ms))

    def _publish_dead_letter(self, connection: Connection, now_ms: int, letter: DeadLetter, body: bytes) -> None:
        route = self._router().resolve_unpublished(letter.exchange, letter.routing_keys, letter.headers)
        priority = Properties(letter.raw_properties).priority
        key = letter.routing_keys[0]
        message = NewMessage(self._keys.intern(key), key, body, letter.exchange, raw_properties=letter.raw_properties)
        self.publish(connection, message, route, priority, None, now_ms, is_cycle=letter.is_cycle)


def stream_entry(message: NewMessage, now_ms: int) -> StreamEntry:
    """Return a message as it is appended to a stream, which knows neither priorities nor delays."""
    raw = raw_properties_of(message)
    has_headers = message.headers is not None or message.raw_properties is not None
    numbered = numbered_by(Properties(raw)) if has_headers else None
    return StreamEntry(message.exchange, message.routing_key, raw, message.body, now_ms, *(numbered or ()))
