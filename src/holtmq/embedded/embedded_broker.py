"""A HoltMQ file opened in this process: its topology, publishing through exchanges, and the way to its queues.

The file is the truth, and others may change it at any time. Every transaction starts by looking whether the topology or the
keys changed since it was last seen, and every put says in the same statement what it believes them to be.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from holtmq.body import Content, encode
from holtmq.embedded.background_producer import BackgroundProducer
from holtmq.embedded.bell import Bell
from holtmq.embedded.callback_consumer import CallbackConsumer
from holtmq.embedded.queue_handle import Key, QueueHandle, as_key
from holtmq.embedded.settings import QueueSettings, queue_arguments
from holtmq.errors import InvalidValueError, NotFoundError
from holtmq.routing import Explanation, Router
from holtmq.store.records import DeliveryState, Durability, NewMessage
from holtmq.store.sqlite.database import TIMEOUT_S, SqliteDatabase
from holtmq.store.sqlite.declarations import SqliteDeclarations, to_text
from holtmq.store.sqlite.keys import RoutingKeys
from holtmq.store.sqlite.message_store import SqliteMessageStore
from holtmq.table import FieldValue, Table, describe, require_short_string
from holtmq.topology import DEFAULT_EXCHANGE, DEFAULT_VHOST, Binding, DestinationType, Exchange, Removal, Topology
from holtmq.topology import Queue as QueueDeclaration

HIGHEST_PRIORITY = 255
Worker = TypeVar("Worker", BackgroundProducer, CallbackConsumer)


class EmbeddedBroker:
    """Use it from any number of threads; open the same file in any number of processes."""

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.path = str(path)
        self.database = SqliteDatabase(path, durability=durability, timeout_s=timeout_s)
        self.keys = RoutingKeys(self.database)
        self.messages = SqliteMessageStore(self.database, self.keys)
        self.bell = Bell(self.database.data_version)
        self.versions = (0, 0)
        self.unindexed_puts = 0
        self._clock = clock
        self._declarations = SqliteDeclarations(self.database)
        self._router = Router()
        self._queues: dict[str, tuple[int, QueueSettings]] = {}
        self._workers: list[BackgroundProducer | CallbackConsumer] = []
        self.database.on_rollback.append(self._forget)
        with self._transaction():
            pass

    def declare_exchange(
        self,
        name: str,
        type: str = "direct",  # noqa: A002  # AMQP's word
        *,
        internal: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> None:
        exchange = Exchange(name, type, internal=internal, auto_delete=auto_delete, arguments=Table.of(arguments))
        with self._transaction():
            if self._router.declare_exchange(exchange):
                self._declarations.add_exchange(exchange)
                self._changed()

    def declare_queue(
        self,
        name: str,
        *,
        max_length: int | None = None,
        max_attempts: int | None = None,
        ttl_ms: int | None = None,
        dead_letter_queue: str | None = None,
        retention_s: float = 0,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> QueueHandle:
        """Make a queue if there is none of this name; declaring it again in another way is refused with 406.

        `max_length` counts ready messages. A message that was popped `max_attempts` times and not settled is dead: it goes to
        `dead_letter_queue`, or stays here as dead. `retention_s` keeps messages that are done, to be looked at.
        """
        made = queue_arguments(
            arguments, max_length=max_length, max_attempts=max_attempts, ttl_ms=ttl_ms,
            dead_letter_queue=dead_letter_queue, retention_s=retention_s,
        )  # fmt: skip
        with self._transaction():
            queue = QueueDeclaration(name, arguments=made)
            if self._router.declare_queue(queue):
                queue_id = self._declarations.add_queue(queue)
                self._queues[name] = queue_id, QueueSettings.of(made)
                self._changed()
        return QueueHandle(name, self)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        with self._transaction():
            self._remove(self._router.delete_exchange(name, if_unused=if_unused))

    def delete_queue(self, name: str) -> None:
        """Remove a queue with its bindings and its messages."""
        with self._transaction() as connection:
            if name in self._queues:
                self.messages.index_arrivals(connection)
                self.messages.delete(connection, self._queues[name][0], list(DeliveryState))
            self._remove(self._router.delete_queue(name))

    def bind(
        self,
        queue: str,
        exchange: str,
        routing_key: Key = "",
        *,
        arguments: Mapping[str, FieldValue] | None = None,
        metadata: Mapping[str, FieldValue] | None = None,
        destination_type: DestinationType = "queue",
    ) -> None:
        """Let messages of an exchange come to a queue (or, with `destination_type`, to another exchange)."""
        binding = Binding(
            exchange, queue, as_key(routing_key), Table.of(arguments), destination_type,
            created_at=datetime.fromtimestamp(self._clock(), UTC), metadata=Table.of(metadata),
        )  # fmt: skip
        with self._transaction():
            if self._router.bind(binding):
                self._declarations.add_binding(binding)
                self._changed()

    def unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: Key = "",
        *,
        arguments: Mapping[str, FieldValue] | None = None,
        destination_type: DestinationType = "queue",
    ) -> None:
        binding = Binding(exchange, queue, as_key(routing_key), Table.of(arguments), destination_type)
        with self._transaction():
            self._remove(self._router.unbind(binding))

    def publish(
        self,
        content: Content,
        routing_key: Key = "",
        *,
        exchange: str = DEFAULT_EXCHANGE,
        headers: Mapping[str, FieldValue] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        delay_s: float = 0,
    ) -> int | None:
        """Send a message through an exchange; its id, or None where it reached no queue."""
        key = as_key(routing_key)
        with self._transaction() as connection:
            now = self.now_ms()
            route = self._router.resolve(exchange, key, headers)
            message = self.new_message(content, key, QueueSettings(), now, headers, priority, ttl_ms, delay_s, exchange)
            deliveries = []
            for name in route.queues:
                queue_id, settings = self._queues[name]
                entry = route.entries.get(name)
                own_priority = message.priority if priority is not None or entry is None else entry.priority or 0
                bound_ttl_ms = entry.ttl_ms if entry is not None and ttl_ms is None else ttl_ms
                if settings.max_length is not None and self._is_full(queue_id, settings.max_length):
                    continue  # a full queue takes no more; the others still get theirs
                deliveries.append((queue_id, own_priority, expiry(now, bound_ttl_ms, settings.ttl_ms)))
            if not deliveries:
                return None
            message_id = self.messages.publish(connection, message, deliveries, now)
        self.bell.ring()
        return message_id

    def queue(self, name: str) -> QueueHandle:
        """A queue to put to and pop from; it is made if it does not exist."""
        if name not in self._queues or self._declarations.versions() != self.versions:
            with self._transaction():
                if name not in self._queues:
                    self.declare_queue(name)
        return QueueHandle(name, self)

    def producer(self, queue: str) -> BackgroundProducer:
        """Sends to a queue in the background, many messages in one transaction when they come fast."""
        return self._keep(BackgroundProducer(self.queue(queue)))

    def consumer(self, queue: str, *, concurrency: int = 1, lease_s: float = 60, back_off_s: float = 1) -> CallbackConsumer:
        """Calls you for messages of a queue, in threads of its own; tries again after `back_off_s`, then twice that, …"""
        return self._keep(CallbackConsumer(self.queue(queue), concurrency=concurrency, lease_s=lease_s, back_off_s=back_off_s))

    def explain(self, exchange: str, routing_key: Key, headers: Mapping[str, FieldValue] | None = None) -> Explanation:
        """Why a message published so would go where it would go."""
        with self._transaction():
            return self._router.explain(exchange, as_key(routing_key), headers)

    def topology(self) -> Topology:
        with self._transaction():
            return self._declarations.load()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Several calls of this thread, all or none; other threads and processes wait meanwhile."""
        with self._transaction():
            yield

    def vacuum(self) -> None:
        """Give the space of what was removed back to the disk, and forget routing keys that no message has any more."""
        with self._transaction():
            self.keys.remove_unused()
        self.database.vacuum()

    def close(self) -> None:
        """Finish what producers have and what consumers are at, then close the file."""
        for worker in self._workers:
            worker.close()
        self.database.close()
        self.bell.ring()

    def __enter__(self) -> EmbeddedBroker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"holtmq.open({self.path!r})"

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def queue_of(self, name: str) -> tuple[int, QueueSettings]:
        """The id of a queue in the file and its settings, as last seen."""
        try:
            return self._queues[name]
        except KeyError:
            raise NotFoundError(f"no queue {name!r} in vhost {DEFAULT_VHOST!r}") from None

    def working(self, queue: str) -> QueueTransaction:
        """A transaction on a queue of which all messages are indexed."""
        return QueueTransaction(self, queue, is_indexing=True)

    def settling(self, queue: str) -> QueueTransaction:
        """A transaction on messages of a queue that were popped, and so are indexed."""
        return QueueTransaction(self, queue, is_indexing=False)

    def catch_up(self) -> None:
        """At the start of a transaction: take over what other processes changed since the last one."""
        if not self.database.is_nested:
            seen = self._declarations.versions()
            if seen != self.versions:
                self._follow(seen)

    def new_message(
        self,
        content: Content,
        key: str,
        settings: QueueSettings,
        now: int,
        headers: Mapping[str, FieldValue] | None,
        priority: int | None,
        ttl_ms: int | None,
        delay_s: float,
        exchange: str = DEFAULT_EXCHANGE,
    ) -> NewMessage:
        """Check and encode a message for the file."""
        properties, body = encode(content)
        message = NewMessage(self.intern(key), body, exchange, properties=properties)
        if priority is not None:
            message.priority = _checked_number(priority, "a priority", HIGHEST_PRIORITY)
        if headers:
            message.headers = to_text(Table.of(headers))
        if ttl_ms is not None or settings.ttl_ms is not None:
            if ttl_ms is not None:
                _checked_number(ttl_ms, "a time to live", 2**53)
            message.expires_at = expiry(now, ttl_ms, settings.ttl_ms)
        if delay_s > 0:
            message.due_at = now + round(delay_s * 1000)
        return message

    def intern(self, key: str) -> int:
        require_short_string(key, "a routing key")
        return self.keys.intern(key)

    def bury(self, connection: sqlite3.Connection, queue: str, message_id: int, reason: str) -> None:
        """A message that is dead here, because it was tried too often or came too late, goes to the dead letters."""
        queue_id, settings = self._queues[queue]
        if settings.dead_letter_exchange is not None:
            self._dead_letter(connection, queue_id, settings, message_id)
            self.messages.remove(connection, queue_id, message_id)
        elif reason == "expired":
            self.messages.remove(connection, queue_id, message_id)
        else:
            self.messages.set_state(connection, queue_id, message_id, DeliveryState.DEAD, settled_at=self.now_ms())

    def _dead_letter(self, connection: sqlite3.Connection, queue_id: int, settings: QueueSettings, message_id: int) -> None:
        (message,) = self.messages.read(queue_id, [message_id])
        exchange = settings.dead_letter_exchange or DEFAULT_EXCHANGE
        if exchange != DEFAULT_EXCHANGE and exchange not in self._router.registry.exchanges:
            return
        key = settings.dead_letter_routing_key or message.routing_key
        for name in self._router.resolve_unpublished(exchange, (key,)).queues:
            target, its_settings = self._queues[name]
            if target != queue_id:
                expires_at = expiry(self.now_ms(), None, its_settings.ttl_ms)
                self.messages.deliver_again(connection, message_id, target, message, expires_at)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.database.transaction() as connection:
            self.catch_up()
            yield connection

    def _follow(self, versions: tuple[int, int]) -> None:
        """Take over what another process changed."""
        if versions[0] != self.versions[0]:
            self._router = Router(self._declarations.load())
            ids, declared = self._declarations.queue_ids(DEFAULT_VHOST), self._router.registry.queues.values()
            self._queues = {queue.name: (ids[queue.name], QueueSettings.of(queue.arguments)) for queue in declared}
        self.keys.follow(versions[1])
        self.versions = versions

    def _changed(self) -> None:
        """The file is what this process just made it: there is nothing to take over."""
        self.versions = self._declarations.versions()

    def _remove(self, removal: Removal) -> None:
        if removal:
            self._declarations.remove(removal)
            for queue in removal.queues:
                del self._queues[queue.name]
            self._changed()

    def _forget(self) -> None:
        """A transaction was undone: whatever was seen in it may not be there."""
        self.versions = (0, 0)
        self.keys.forget()

    def _is_full(self, queue_id: int, max_length: int) -> bool:
        return self.messages.count_ready(queue_id, max_length + 1) >= max_length

    def _keep(self, worker: Worker) -> Worker:
        self._workers.append(worker)
        return worker


class QueueTransaction:
    """A transaction on a queue, as a context; gives the connection, the queue's id and its settings.

    A class and not a generator: every put, pop and ack passes here (benchmarks/embedded.py).
    """

    __slots__ = ("_is_indexing", "_owner", "_queue", "_transaction")

    def __init__(self, owner: EmbeddedBroker, queue: str, *, is_indexing: bool) -> None:
        self._owner = owner
        self._queue = queue
        self._is_indexing = is_indexing
        self._transaction = owner.database.transaction()

    def __enter__(self) -> tuple[sqlite3.Connection, int, QueueSettings]:
        connection = self._transaction.__enter__()
        try:
            self._owner.catch_up()
            queue_id, settings = self._owner.queue_of(self._queue)
            if self._is_indexing:
                self._owner.messages.index_arrivals(connection)
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise
        return connection, queue_id, settings

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._transaction.__exit__(kind, error, trace)


def expiry(now: int, ttl_ms: int | None, queue_ttl_ms: int | None) -> int | None:
    """The shorter of two times to live counts."""
    shortest = min((ttl for ttl in (ttl_ms, queue_ttl_ms) if ttl is not None), default=None)
    return None if shortest is None else now + shortest


def _checked_number(value: object, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidValueError(f"{what} must be an integer from 0 to {most}, got {describe(value)}")
    return value
