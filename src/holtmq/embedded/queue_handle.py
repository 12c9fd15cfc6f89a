"""A queue of a HoltMQ file: put, pop, settle, look, tidy up. Every call is a transaction of its own, or a part of yours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection
from typing import TYPE_CHECKING, TypeAlias

from holtmq.body import Content, encode
from holtmq.embedded.message import STATE_NAMES, Message, StateName, message_of
from holtmq.embedded.settings import QueueSettings
from holtmq.errors import InvalidValueError, LeaseLostError, NotFoundError, QueueFullError
from holtmq.store.records import DeliveryState
from holtmq.table import FieldValue, describe, require_short_string

if TYPE_CHECKING:
    from holtmq.embedded.embedded_broker import EmbeddedBroker

LEASE_S = 60.0
LISTED = 1000
LONGEST_WAIT_MS = 60_000.0
INDEX_EVERY = 500
"""Puts in a row after which the messages are indexed, so that no later pop has to do it for very many at once."""
Key: TypeAlias = str | Sequence[str]
Patterns: TypeAlias = str | Sequence[str] | None


class QueueHandle:
    """Made by `Embedded.queue`; holds nothing but the name, so any number may stand for one queue."""

    def __init__(self, name: str, owner: EmbeddedBroker) -> None:
        self.name = name
        self._owner = owner
        self._messages = owner.messages

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
        """Add a message; its id. When this returns the message is in the file."""
        owner, key, now = self._owner, as_key(routing_key), self._owner.now_ms()
        queue_id, settings = owner.queue_of(self.name)
        if settings.max_length is None:
            message = owner.new_message(content, key, settings, now, headers, priority, ttl_ms, delay_s)
            message_id = self._messages.append_alone(message, queue_id, now, owner.versions)
            if message_id is not None:
                self._index_now_and_then()
                owner.bell.ring()
                return message_id
        with owner.working(self.name) as (connection, queue_id, settings):
            self._require_room(queue_id, settings, 1)
            message = owner.new_message(content, key, settings, now, headers, priority, ttl_ms, delay_s)
            message_id = self._messages.append(connection, message, queue_id, now)
        owner.bell.ring()
        return message_id

    def put_many(self, messages: Iterable[tuple[Content, Key]]) -> range:
        """Add messages, each with its key, all or none of them; their ids."""
        owner, now = self._owner, self._owner.now_ms()
        with owner.working(self.name) as (connection, queue_id, settings):
            known = owner.keys.ids.get
            contents = [
                ((isinstance(key, str) and known(key)) or owner.intern(as_key(key)), *encode(content))
                for content, key in messages
            ]
            self._require_room(queue_id, settings, len(contents))
            expires_at = None if settings.ttl_ms is None else now + settings.ttl_ms
            ids = self._messages.append_many(connection, contents, queue_id, now, expires_at)
        owner.bell.ring()
        return ids

    def pop(self, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> Message | None:
        """Lock the first message that is ready, of those whose key fits the pattern, or one of several.

        None where there is none, if need be after waiting. It comes back to the queue when the lease runs out.
        """
        return next(iter(self.pop_many(1, pattern, lease_s=lease_s, wait_s=wait_s)), None)

    def pop_many(self, most: int, pattern: Patterns = None, *, lease_s: float = LEASE_S, wait_s: float = 0) -> list[Message]:
        """Lock up to `most` messages that are ready, in their order."""
        if most < 1 or lease_s <= 0:
            raise InvalidValueError(f"expected at least one message and a lease above 0 s, got {most} and {lease_s} s")
        patterns = as_patterns(pattern)
        deadline = self._owner.now_ms() + wait_s * 1000
        while True:
            mark = self._owner.bell.listen()
            claimed = self._claim(most, patterns, lease_s)
            left_ms = deadline - self._owner.now_ms()
            if claimed or left_ms <= 0:
                return claimed
            self._wait(mark, left_ms)

    def listen(self) -> int:
        """A mark for `pop_or_wait`: what happens after it wakes."""
        return self._owner.bell.listen()

    def pop_or_wait(self, mark: int, patterns: Sequence[str], *, lease_s: float) -> Message | None:
        """A message if there is one, or None after something happened since the mark: it is time to look again."""
        claimed = self._claim(1, list(patterns), lease_s)
        if claimed:
            return claimed[0]
        self._wait(mark, LONGEST_WAIT_MS)
        return None

    def wake(self) -> None:
        """Let those who wait look again."""
        self._owner.bell.ring()

    def peek(self, pattern: Patterns = None) -> Message | None:
        """The message that a pop would give, untouched."""
        with self._owner.working(self.name) as (connection, queue_id, settings):
            self._release_due(connection, queue_id, settings)
            ids = self._messages.find_ready(connection, queue_id, as_patterns(pattern), 1)
            return next((message_of(stored, self) for stored in self._messages.read(queue_id, ids)), None)

    def get(self, message_id: int) -> Message | None:
        """A message of this queue by its id, whatever its state."""
        with self._owner.working(self.name) as (_, queue_id, _settings):
            return next((message_of(stored, self) for stored in self._messages.read(queue_id, [message_id])), None)

    def ack(self, message: Message) -> None:
        with self._owner.settling(self.name) as (connection, queue_id, settings):
            if settings.retention_ms:
                self._settle(connection, queue_id, message, DeliveryState.DONE)
                self._messages.forget_done(connection, queue_id, self._owner.now_ms() - settings.retention_ms)
            elif not self._messages.remove_mine(connection, queue_id, message.id, message.attempts):
                raise self._lease_lost(message)

    def fail(self, message: Message) -> None:
        with self._owner.settling(self.name) as (connection, queue_id, _):
            self._settle(connection, queue_id, message, DeliveryState.FAILED)

    def retry(self, message: Message | int, *, delay_s: float = 0) -> None:
        """Make a message ready again: one that is locked by its holder, or one that is done, failed or dead by its id."""
        due = self._owner.now_ms() + round(delay_s * 1000) if delay_s > 0 else None
        state = DeliveryState.DELAYED if due else DeliveryState.READY
        with self._owner.working(self.name) as (connection, queue_id, settings):
            if isinstance(message, Message) and message.state == "locked":
                if not self._messages.settle_mine(connection, queue_id, message.id, message.attempts, state, due_at=due):
                    raise self._lease_lost(message)
                if settings.max_attempts is not None and message.attempts >= settings.max_attempts:
                    self._owner.bury(connection, self.name, message.id, "delivery_limit")
            else:
                message_id = message if isinstance(message, int) else message.id
                self._require_settled(message_id)
                self._messages.set_state(connection, queue_id, message_id, state, due_at=due)
        self._owner.bell.ring()

    def extend(self, message: Message, lease_s: float) -> Message:
        due = self._owner.now_ms() + round(lease_s * 1000)
        with self._owner.working(self.name) as (connection, queue_id, _):
            if not self._messages.settle_mine(
                connection, queue_id, message.id, message.attempts, DeliveryState.LOCKED, due_at=due
            ):
                raise self._lease_lost(message)
            extended = self.get(message.id)
        assert extended is not None
        return extended

    def list_messages(self, state: StateName | None = None, *, limit: int = LISTED) -> list[Message]:
        """Messages in a state, or in any, oldest first."""
        with self._owner.working(self.name) as (_connection, queue_id, _):
            return [message_of(stored, self) for stored in self._messages.find(queue_id, states_of(state), limit)]

    def list_locked(self, longer_than_s: float, *, limit: int = LISTED) -> list[Message]:
        """Messages that have been locked for longer than this."""
        before = self._owner.now_ms() - round(longer_than_s * 1000)
        with self._owner.working(self.name) as (_connection, queue_id, _):
            found = self._messages.find(queue_id, [DeliveryState.LOCKED], limit, locked_before_ms=before)
            return [message_of(stored, self) for stored in found]

    def size(self, state: StateName = "ready") -> int:
        """How many messages are in a state."""
        with self._owner.working(self.name) as (_connection, queue_id, _):
            counts = self._messages.count(queue_id)
        return sum(counts.get(one, 0) for one in states_of(state))

    def empty(self) -> bool:
        """Whether a pop would find nothing."""
        return self.peek() is None

    def full(self) -> bool:
        """Whether a put would be refused."""
        with self._owner.working(self.name) as (_connection, queue_id, settings):
            most = settings.max_length
            return most is not None and self._messages.count_ready(queue_id, most + 1) >= most

    def prune(self, older_than_s: float = 0, *, states: Sequence[StateName] = ("done", "failed", "dead")) -> int:
        """Remove settled messages that were settled longer ago than this, and those whose time to live is over."""
        now = self._owner.now_ms()
        before = now - round(older_than_s * 1000) + (0 if older_than_s else 1)
        with self._owner.working(self.name) as (connection, queue_id, _):
            chosen = [one for name in states for one in states_of(name)]
            for message_id in self._messages.expired(connection, queue_id, now):
                self._owner.bury(connection, self.name, message_id, "expired")
            return self._messages.delete(connection, queue_id, chosen, settled_before_ms=before)

    def purge(self) -> int:
        """Remove all messages that are ready, delayed ones included; how many there were."""
        with self._owner.working(self.name) as (connection, queue_id, _):
            return self._messages.delete(connection, queue_id, [DeliveryState.READY, DeliveryState.DELAYED])

    def __repr__(self) -> str:
        return f"Queue({self.name!r} in {self._owner.path})"

    def _require_room(self, queue_id: int, settings: QueueSettings, wanted: int) -> None:
        if settings.max_length is None:
            return
        ready = self._messages.count_ready(queue_id, settings.max_length + 1)
        if ready + wanted > settings.max_length:
            raise QueueFullError(
                f"queue {self.name!r} may hold {settings.max_length} ready messages and has {ready}; got {wanted} more"
            )

    def _claim(self, most: int, patterns: list[str] | None, lease_s: float) -> list[Message]:
        with self._owner.working(self.name) as (connection, queue_id, settings):
            now = self._release_due(connection, queue_id, settings)
            lease_until = now + round(lease_s * 1000)
            fresh: list[int] = []
            while len(fresh) < most:
                claims = self._messages.claim(connection, queue_id, patterns, most - len(fresh), now, lease_until)
                if not claims:
                    break
                for claim in claims:
                    if claim.expires_at is not None and claim.expires_at <= now:
                        self._owner.bury(connection, self.name, claim.message_id, "expired")
                    else:
                        fresh.append(claim.message_id)
            stored = self._messages.read(queue_id, fresh)
        return [message_of(one, self) for one in stored]

    def _release_due(self, connection: Connection, queue_id: int, settings: QueueSettings) -> int:
        now = self._owner.now_ms()
        for message_id in self._messages.release_due(connection, queue_id, now, settings.max_attempts):
            self._owner.bury(connection, self.name, message_id, "delivery_limit")
        return now

    def _settle(self, connection: Connection, queue_id: int, message: Message, state: DeliveryState) -> None:
        now = self._owner.now_ms()
        if not self._messages.settle_mine(connection, queue_id, message.id, message.attempts, state, settled_at=now):
            raise self._lease_lost(message)

    def _wait(self, mark: int, longest_ms: float) -> None:
        """Wait for a message to come, or to become ready because its time has come."""
        due = self._messages.next_due(self._owner.queue_of(self.name)[0])
        wait_ms = longest_ms if due is None else min(longest_ms, max(due - self._owner.now_ms(), 1))
        self._owner.bell.wait(mark, wait_ms / 1000)

    def _index_now_and_then(self) -> None:
        self._owner.unindexed_puts += 1
        if self._owner.unindexed_puts >= INDEX_EVERY:
            self._owner.unindexed_puts = 0
            with self._owner.working(self.name):
                pass  # to begin is to index

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


def as_key(key: Key) -> str:
    """A routing key given whole or as its segments."""
    if isinstance(key, str):
        return key
    if not isinstance(key, Sequence) or not all(isinstance(segment, str) for segment in key):
        raise InvalidValueError(f"a routing key must be a string or a list of its segments, got {describe(key)}")
    return ".".join(key)


def as_patterns(pattern: Patterns) -> list[str] | None:
    """One pattern, several, or none, which asks for any message."""
    if pattern is None:
        return None
    patterns = list(pattern) if isinstance(pattern, list | tuple) else [pattern]
    for one in patterns:
        require_short_string(one, "a pattern")
    return patterns  # type: ignore[return-value]  # each was just checked


def states_of(name: StateName | None) -> Sequence[DeliveryState]:
    if name is not None and name not in STATE_NAMES.values():
        raise InvalidValueError(f"a state must be one of {', '.join(dict.fromkeys(STATE_NAMES.values()))}, got {name!r}")
    return [state for state, its_name in STATE_NAMES.items() if name in (None, its_name)]
