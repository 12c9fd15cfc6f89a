"""A handle to a queue of a HoltMQ file: put, pop, settle, inspect, prune. Each call is a transaction, or a part of yours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holtmq.body import Content, encode
from holtmq.embedded.message import STATE_NAMES, Message, StateName
from holtmq.embedded.persistent import persistent, repeatable
from holtmq.errors import InvalidValueError, LeaseLostError, NotFoundError, PreconditionFailedError, QueueFullError
from holtmq.queueing.delivery_count import DELIVERY_COUNT
from holtmq.queueing.overflow import is_full
from holtmq.queueing.rules import QueueRules
from holtmq.queueing.terms import is_expired, terms_of
from holtmq.store.checksum import json_checksum
from holtmq.store.message_port import SETTLED_AT_ONCE
from holtmq.store.records import DeliveryState, NewMessage, StoredMessage
from holtmq.store.sql.sql_database import Connection
from holtmq.table import FieldValue, describe, require_short_string

if TYPE_CHECKING:
    from holtmq.embedded.embedded_broker import EmbeddedBroker

LEASE_S = 60.0
LISTED = 1000
LONGEST_WAIT_MS = 60_000.0
INDEX_EVERY = 500
"""Puts in a row after which messages are indexed, so that a later pop does not have to index very many at once."""
NEVER = threading.Event()
"""Is never set. To create one for each pop would take longer than anything else that a pop does in Python."""
T = TypeVar("T")
Key: TypeAlias = str | Sequence[str]
Patterns: TypeAlias = str | Sequence[str] | None


class QueueHandle:
    """A queue of an open file, as returned by `EmbeddedBroker.queue`. Handles hold no state besides the name."""

    def __init__(self, name: str, owner: EmbeddedBroker) -> None:
        self.name = name
        self._owner = owner
        self._messages = owner.messages

    @property
    def database(self) -> Any:
        return self._owner.database

    def put(
        self,
        content: Content,
        routing_key: Key = "",
        *,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        delay_s: float = 0,
    ) -> int:
        """Add a message and return its id. When the call returns, the message is in the file.

        `ttl_ms` is the time after which the message expires; `delay_s` is the time before it becomes available.
        A `priority` needs a queue with priorities (`max_priority`).
        """
        owner, now = self._owner, self._owner.now_ms()
        key = routing_key if isinstance(routing_key, str) else as_key(routing_key)
        versions = owner.versions  # first: another thread may notice meanwhile that the queue was deleted
        queue_id, rules = owner.queue_of(self.name)
        if rules.max_length is None and rules.max_length_bytes is None:
            if headers is None and priority is None and ttl_ms is None and delay_s == 0 and rules.message_ttl_ms is None:
                # The hot path: see benchmarks/embedded.py.
                properties, body = encode(content)
                key_id = owner.keys.ids.get(key) or owner.intern(key)
                message_id = self._messages.append_plain(key_id, key, properties, body, queue_id, now, versions)
            else:
                message = self._new_message(content, key, rules, now, headers, priority, ttl_ms, delay_s)
                message_id = self._messages.append_alone(message, queue_id, now, versions)
            if message_id is not None:
                self._index_now_and_then()
                owner.bell.ring()
                return message_id
        return self._put_within_limits(content, key, now, headers, priority, ttl_ms, delay_s)

    @persistent
    def _put_within_limits(
        self,
        content: Content,
        key: str,
        now: int,
        headers: Mapping[str, FieldValue] | None,
        priority: int | None,
        ttl_ms: int | None,
        delay_s: float,
    ) -> int:
        owner = self._owner
        owner.intern(key)  # in a transaction of its own: until its end, no other process adds a key
        with owner.working(self.name) as (connection, queue_id, rules):
            owner.intake.expire(connection, now)
            message = self._new_message(content, key, rules, now, headers, priority, ttl_ms, delay_s)
            added = self._admit(
                connection, [message], [key], lambda: self._messages.append(connection, message, queue_id, now), now
            )
        return self._done(added)

    def _new_message(
        self,
        content: Content,
        key: str,
        rules: QueueRules,
        now: int,
        headers: Mapping[str, FieldValue] | None,
        priority: int | None,
        ttl_ms: int | None,
        delay_s: float,
    ) -> NewMessage:
        message = self._owner.new_message(content, key, now, headers, priority, ttl_ms, delay_s)
        if priority and not rules.max_priority:
            raise InvalidValueError(
                f"queue {self.name!r} has no priorities, got priority {priority}: declare the queue with max_priority"
            )
        if priority or ttl_ms is not None or rules.message_ttl_ms is not None:
            message.expires_at, message.priority = terms_of(rules, priority, ttl_ms, None, now)
        return message

    def put_many(self, messages: Iterable[tuple[Content, Key]]) -> Sequence[int]:
        """Add messages, each with its routing key, and return their ids. Either all are added or none is."""
        given = [(key if isinstance(key, str) else as_key(key), *encode(content)) for content, key in messages]
        return self._put_all(given)

    @persistent
    def _put_all(self, given: Sequence[tuple[str, str | None, bytes]]) -> Sequence[int]:
        owner, now = self._owner, self._owner.now_ms()
        with owner.working(self.name) as (connection, queue_id, rules):
            known = owner.keys.ids.get
            contents = [
                (known(key) or owner.intern(key), properties, body, json_checksum("", key, None, properties, body))
                for key, properties, body in given
            ]
            expires_at, _ = terms_of(rules, None, None, None, now)

            def append() -> Sequence[int]:
                return self._messages.append_many(connection, contents, queue_id, now, expires_at)

            if not rules.limits_length:
                added: Sequence[int] | QueueFullError = append()
            else:
                owner.intake.expire(connection, now)
                new = [NewMessage(owner.intern(key), key, body, properties=properties) for key, properties, body in given]
                added = self._admit(connection, new, [key for key, *_ in given], append, now)
        return self._done(added)

    def _admit(
        self, connection: Connection, messages: list[NewMessage], keys: list[str], append: Callable[[], T], now: int
    ) -> T | QueueFullError:
        """Append messages as far as the limits of the queue allow. If it rejects them, dead-letter them if it says so.

        The error is returned, not raised: within the transaction it would roll back the dead letters as well.
        """
        intake = self._owner.intake
        try:
            return intake.admit(connection, self.name, messages, append, now)
        except QueueFullError as error:
            for message, key in zip(messages, keys, strict=True):
                intake.bury_rejected(connection, message, key, self.name, now)
            return error

    def _done(self, added: T | QueueFullError) -> T:
        """Wake waiting consumers, and return what was added or raise the error."""
        self._owner.bell.ring()
        if isinstance(added, QueueFullError):
            raise added
        return added

    def pop(self, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> Message | None:
        """Lock and return the first ready message whose routing key matches the pattern (or one of several patterns).

        Return None if there is none, after waiting up to `wait_s`. When the lease expires, the message returns to the queue.
        """
        popped = self.pop_until(NEVER, 1, pattern, lease_s=lease_s, wait_s=wait_s)
        return popped[0] if popped else None

    def pop_many(self, most: int, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> list[Message]:
        """Lock and return up to `most` ready messages, in order."""
        return self.pop_until(NEVER, most, pattern, lease_s=lease_s, wait_s=wait_s)

    def pop_until(
        self, given_up: threading.Event, most: int, pattern: Patterns = None, *, lease_s: float, wait_s: float
    ) -> list[Message]:
        """Pop as `pop_many`, but stop waiting when another thread has set `given_up` and called `wake`."""
        if most < 1 or lease_s <= 0:
            raise InvalidValueError(f"expected at least one message and a lease above 0 s, got {most} and {lease_s} s")
        patterns = as_patterns(pattern)
        deadline = self._owner.now_ms() + wait_s * 1000 if wait_s else 0
        while True:
            mark = self._owner.bell.listen()
            claimed = [] if given_up.is_set() else self._claim(most, patterns, lease_s)
            if claimed or given_up.is_set() or (left_ms := deadline - self._owner.now_ms()) <= 0:
                return claimed
            self._wait(mark, left_ms)

    def listen(self) -> int:
        """Return a mark for `pop_or_wait`: whatever happens after it wakes the caller."""
        return self._owner.bell.listen()

    def pop_or_wait(self, mark: int, most: int, patterns: Sequence[str], *, lease_s: float) -> list[Message]:
        """Return messages, or none after something has changed since the mark: the caller must check again.

        A message that was delivered before comes alone.
        """
        claimed = self._claim(most, as_patterns(list(patterns)), lease_s, keeps_retried_apart=True)
        if not claimed:
            self._wait(mark, LONGEST_WAIT_MS)
        return claimed

    def wake(self) -> None:
        """Wake all waiting callers, which then check again."""
        self._owner.bell.ring()

    @repeatable
    def peek(self, pattern: Patterns = None) -> Message | None:
        """Return the message that `pop` would return, without locking it."""
        with self._owner.looking(self.name) as (connection, queue_id, rules):
            self._release_due(connection, queue_id, rules)
            while ids := self._messages.find_ready(connection, queue_id, as_patterns(pattern), 1):
                for stored in self._messages.read(queue_id, ids):  # none if another process has just removed it
                    if stored.state == DeliveryState.READY:
                        return Message(stored, self)
            return None

    @repeatable
    def get(self, message_id: int) -> Message | None:
        """Return a message of this queue by its id, in any state."""
        with self._owner.looking(self.name) as (_, queue_id, _settings):
            return next((Message(stored, self) for stored in self._messages.read(queue_id, [message_id])), None)

    def ack(self, message: Message) -> None:
        """Acknowledge a locked message: remove it, or keep it as done if the queue has a retention."""
        self.ack_many([message])

    def ack_many(self, messages: Iterable[Message]) -> None:
        """Acknowledge locked messages in one transaction.

        If some of the leases have expired, the other messages are acknowledged, and `LeaseLostError` names the first of those.
        """
        lost = self.ack_held(list(messages))
        if lost:
            raise self._lease_lost(lost[0])

    def ack_held(self, messages: Sequence[Message]) -> list[Message]:
        """Acknowledge messages in one transaction. Return those that are no longer locked by the caller."""
        owner = self._owner
        queue_id, rules = owner.queue_of(self.name)  # as last seen: the rules of a queue never change, nor is its id used again

        def acknowledge(connection: Connection) -> list[Message]:
            if not rules.retention_ms:
                mine = self._messages.remove_all_mine(connection, queue_id, [(each.id, each.attempts) for each in messages])
                return _without(messages, mine)
            now, done = owner.now_ms(), DeliveryState.DONE
            lost = [
                each
                for each in messages
                if not self._messages.settle_mine(connection, queue_id, each.id, each.attempts, done, settled_at=now)
            ]
            self._messages.forget_done(connection, queue_id, now - rules.retention_ms)
            return lost

        is_single = not rules.retention_ms and len(messages) <= SETTLED_AT_ONCE
        return owner.database.together(acknowledge, is_single=is_single) if messages else []

    @persistent
    def give_back(self, messages: Iterable[Message]) -> None:
        """Return locked messages to the queue as if they had not been popped: it does not count as an attempt.

        Messages whose leases have expired are left as they are.
        """
        locked = [(message.id, message.attempts) for message in messages]
        if locked:
            with self._owner.claiming(self.name) as (connection, queue_id, _):
                self._messages.give_back_mine(connection, queue_id, locked)
                self._owner.intake.drop_excess(connection, self.name, self._owner.now_ms())
            self._owner.bell.ring()

    @persistent
    def fail(self, message: Message) -> None:
        """Mark a locked message as failed. It stays in the queue until it is retried or pruned."""
        with self._owner.settling(self.name) as (connection, queue_id, _):
            self._settle(connection, queue_id, message, DeliveryState.FAILED)

    @persistent
    def reject(self, message: Message) -> None:
        """Reject a locked message: it goes to the queue's dead-letter exchange, or is dropped if there is none."""
        with self._owner.settling(self.name) as (connection, queue_id, _):
            if not self._messages.is_mine(connection, queue_id, message.id, message.attempts):
                raise self._lease_lost(message)
            self._owner.intake.bury(connection, self.name, message.id, "rejected", self._owner.now_ms())
        self._owner.bell.ring()

    @persistent
    def retry(self, message: Message | int, *, delay_s: float = 0) -> None:
        """Make a message ready again: a locked one by its holder, or a done, failed or dead one by its id."""
        due = self._owner.now_ms() + round(delay_s * 1000) if delay_s > 0 else None
        state = DeliveryState.DELAYED if due else DeliveryState.READY
        with self._owner.working(self.name) as (connection, queue_id, rules):
            if isinstance(message, Message) and message.state == "locked":
                if not self._messages.settle_mine(connection, queue_id, message.id, message.attempts, state, due_at=due):
                    raise self._lease_lost(message)
                if rules.is_exhausted(message.attempts):
                    self._owner.intake.bury(connection, self.name, message.id, "delivery_limit", self._owner.now_ms())
            else:
                message_id = message if isinstance(message, int) else message.id
                self._messages.hold(connection, queue_id, message_id)
                self._require_settled(message_id)
                self._messages.set_state(connection, queue_id, message_id, state, due_at=due)
            self._owner.intake.expire(connection, self._owner.now_ms())  # it may have expired while it was locked
            self._owner.intake.drop_excess(connection, self.name, self._owner.now_ms())
        self._owner.bell.ring()

    @persistent
    def extend(self, message: Message, lease_s: float) -> Message:
        """Extend the lease of a locked message to `lease_s` from now, and return the message with the new lease."""
        due = self._owner.now_ms() + round(lease_s * 1000)
        with self._owner.claiming(self.name) as (connection, queue_id, _):
            if not self._messages.settle_mine(
                connection, queue_id, message.id, message.attempts, DeliveryState.LOCKED, due_at=due
            ):
                raise self._lease_lost(message)
            extended = self.get(message.id)
        assert extended is not None
        return extended

    @repeatable
    def list_messages(self, state: StateName | None = None, *, limit: int = LISTED) -> list[Message]:
        """Return the messages in a state, or in any state, oldest first."""
        with self._owner.looking(self.name) as (_connection, queue_id, _):
            return [Message(stored, self) for stored in self._messages.find(queue_id, states_of(state), limit)]

    @repeatable
    def list_locked(self, longer_than_s: float, *, limit: int = LISTED) -> list[Message]:
        """Return the messages that have been locked for longer than this."""
        before = self._owner.now_ms() - round(longer_than_s * 1000)
        with self._owner.looking(self.name) as (_connection, queue_id, _):
            found = self._messages.find(queue_id, [DeliveryState.LOCKED], limit, locked_before_ms=before)
            return [Message(stored, self) for stored in found]

    @repeatable
    def size(self, state: StateName = "ready") -> int:
        """Return the number of messages in a state."""
        with self._owner.looking(self.name) as (_connection, queue_id, _):
            counts = self._messages.count(queue_id)
        return sum(counts.get(one, 0) for one in states_of(state))

    def empty(self) -> bool:
        """Return whether `pop` would find no message."""
        return self.peek() is None

    @repeatable
    def full(self) -> bool:
        """Return whether the queue has no room for an empty message, so that a put is rejected or drops the oldest."""
        with self._owner.looking(self.name) as (connection, queue_id, rules):
            return rules.limits_length and is_full(rules, *self._messages.measure(connection, queue_id), 0)

    @persistent
    def prune(self, older_than_s: float = 0, *, states: Sequence[StateName] = ("done", "failed", "dead")) -> int:
        """Remove messages that were settled longer ago than this, and expired ones. Return the number of settled ones."""
        before = self._owner.now_ms() - round(older_than_s * 1000) + (0 if older_than_s else 1)
        with self._owner.working(self.name) as (connection, queue_id, _):
            self._owner.intake.expire(connection, self._owner.now_ms())
            chosen = [one for name in states for one in states_of(name)]
            return self._messages.delete(connection, queue_id, chosen, settled_before_ms=before)

    @persistent
    def purge(self) -> int:
        """Remove all ready messages, including delayed ones, and return their number."""
        with self._owner.working(self.name) as (connection, queue_id, _):
            return self._messages.delete(connection, queue_id, [DeliveryState.READY, DeliveryState.DELAYED])

    def __repr__(self) -> str:
        return f"QueueHandle({self.name!r} in {self._owner.path})"

    @repeatable
    def _claim(
        self, most: int, patterns: list[str] | None, lease_s: float, *, keeps_retried_apart: bool = False
    ) -> list[Message]:
        owner = self._owner
        queue_id, rules = owner.queue_of(self.name)
        with owner.database.lazy_transaction() as connection:
            if most == 1:
                first = self._claim_first(connection, queue_id, rules, patterns, lease_s)
                if first is not None:
                    return [first]
            if not owner.database.is_nested:
                owner.database.admit_puts()  # dead letters
            owner.catch_up()
            return self._claim_any(most, patterns, lease_s, keeps_retried_apart=keeps_retried_apart)

    def _claim_first(
        self, connection: Connection, queue_id: int, rules: QueueRules, patterns: list[str] | None, lease_s: float
    ) -> Message | None:
        """Return the first message, if that is all there is to do (benchmarks/embedded.py).

        In a file, messages that are not indexed yet come after those that are, unless the queue has priorities. A queue that
        was deleted meanwhile has none: its id is not used again. Only a put that drops the oldest must not meet a pop.
        """
        drops_head = rules.limits_length and rules.overflow == "drop-head"
        if drops_head or ((rules.limits_length or rules.max_priority) and not self.database.is_remote):
            return None
        refuse_unsupported(self.name, rules)
        now = self._owner.now_ms()
        stored = self._messages.claim_first(queue_id, patterns, now, now + round(lease_s * 1000))
        if stored is None or stored.state == DeliveryState.DAMAGED:
            return None
        if is_expired(stored.expires_at, now):
            self._owner.intake.bury(connection, self.name, stored.id, "expired", now)
            return None
        return self._delivered(stored, rules)

    def _claim_any(self, most: int, patterns: list[str] | None, lease_s: float, *, keeps_retried_apart: bool) -> list[Message]:
        owner = self._owner
        with owner.claiming(self.name) as (connection, queue_id, rules):
            refuse_unsupported(self.name, rules)
            now = self._release_due(connection, queue_id, rules)
            lease_until = now + round(lease_s * 1000)
            fresh: list[StoredMessage] = []
            while len(fresh) < most and not (fresh and keeps_retried_apart):
                claimed = self._messages.claim(
                    connection, queue_id, patterns, most - len(fresh), now, lease_until, keeps_retried_apart=keeps_retried_apart
                )
                if not claimed and (fresh or not owner.intake.expire(connection, now)):
                    break  # nothing is ready, and no message that expired elsewhere came here as a dead letter
                for stored in claimed:
                    if is_expired(stored.expires_at, now):
                        owner.intake.bury(connection, self.name, stored.id, "expired", now)
                    elif stored.state != DeliveryState.DAMAGED:
                        fresh.append(stored)
        return [self._delivered(each, rules) for each in fresh]

    def _delivered(self, stored: StoredMessage, rules: QueueRules) -> Message:
        counts = rules.is_quorum and stored.attempts > 1
        return Message(stored, self, {DELIVERY_COUNT: stored.attempts - 1} if counts else None)

    def _release_due(self, connection: Connection, queue_id: int, rules: QueueRules) -> int:
        now = self._owner.now_ms()
        released, exhausted = self._messages.release_due(connection, queue_id, now, rules.delivery_limit)
        for message_id in exhausted:
            self._owner.intake.bury(connection, self.name, message_id, "delivery_limit", now)
        if rules.limits_length and released:
            self._owner.intake.drop_excess(connection, self.name, now)
        elif rules.limits_length:
            self._owner.database.serialize(queue_id)  # else a put that finds the oldest locked would drop the next one
        return now

    def _settle(self, connection: Connection, queue_id: int, message: Message, state: DeliveryState) -> None:
        now = self._owner.now_ms()
        if not self._messages.settle_mine(connection, queue_id, message.id, message.attempts, state, settled_at=now):
            raise self._lease_lost(message)

    def _wait(self, mark: int, longest_ms: float) -> None:
        """Wait for a new message, for a delayed one to become available, or for a message of any queue to expire."""
        wait_ms = min([longest_ms, *self._next_events_ms()])
        self._owner.bell.wait(mark, wait_ms / 1000)

    @repeatable
    def _next_events_ms(self) -> list[int]:
        now = self._owner.now_ms()
        due, expiry = self._messages.next_due(self._owner.queue_of(self.name)[0]), self._messages.next_expiry(now)
        return [max(at - now, 1) for at in (due, None if expiry is None else expiry + 1) if at is not None]

    def _index_now_and_then(self) -> None:
        self._owner.unindexed_puts += 1
        if self._owner.unindexed_puts >= INDEX_EVERY:
            self._owner.unindexed_puts = 0
            with self._owner.working(self.name):
                pass  # entering the transaction indexes the messages

    def _lease_lost(self, message: Message) -> LeaseLostError:
        return LeaseLostError(
            f"message {message.id} of queue {self.name!r} is not locked by this caller any more: "
            "it was settled already, or its lease ran out and another took it"
        )

    def _require_settled(self, message_id: int) -> None:
        current = self.get(message_id)
        if current is None:
            raise NotFoundError(f"no message {message_id} in queue {self.name!r}")
        if current.state == "locked":
            raise LeaseLostError(f"message {message_id} of queue {self.name!r} is locked; its holder can retry it")


def refuse_unsupported(name: str, rules: QueueRules) -> None:
    """Raise if consuming a queue needs a broker: the embedded library knows neither idle queues nor active consumers."""
    if rules.is_single_active:
        raise PreconditionFailedError(
            f"queue {name!r} has a single active consumer (x-single-active-consumer), which only a broker supports: "
            "consume it through `holtmq serve`, or declare it without this argument"
        )
    if rules.expires_ms is not None:
        raise PreconditionFailedError(
            f"queue {name!r} expires when it is unused for {rules.expires_ms} ms (x-expires, or a policy), which only a "
            "broker supports: consume it through `holtmq serve`, or declare it without this argument"
        )


def _without(messages: Sequence[Message], ids: set[int]) -> list[Message]:
    """Return the messages without those with these ids, each of which is left out once."""
    if len(ids) == len(messages):
        return []
    rest = []
    for each in messages:
        if each.id in ids:
            ids.remove(each.id)
        else:
            rest.append(each)
    return rest


def as_key(key: Key) -> str:
    """Return a routing key that is given as a string or as its segments."""
    if isinstance(key, str):
        return key
    if not isinstance(key, Sequence) or not all(isinstance(segment, str) for segment in key):
        raise InvalidValueError(f"a routing key must be a string or a list of its segments, got {describe(key)}")
    return ".".join(key)


def as_patterns(pattern: Patterns) -> list[str] | None:
    """Return one pattern or several as a list, or None for any message."""
    if pattern is None:
        return None
    patterns = list(pattern) if isinstance(pattern, list | tuple) else [pattern]
    for one in patterns:
        require_short_string(one, "a pattern")
    if "#" in patterns:
        return None
    return patterns  # type: ignore[return-value]  # each was just checked


def states_of(name: StateName | None) -> Sequence[DeliveryState]:
    """Return the stored states that a name stands for, or all states."""
    if name is not None and name not in STATE_NAMES.values():
        raise InvalidValueError(f"a state must be one of {', '.join(dict.fromkeys(STATE_NAMES.values()))}, got {name!r}")
    return [state for state, its_name in STATE_NAMES.items() if name in (None, its_name)]
