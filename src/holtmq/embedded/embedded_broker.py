"""A HoltMQ file opened in this process: its topology, publishing through exchanges, and access to its queues.

The file is the only source of truth, and other processes may change it at any time. Every transaction first checks whether
the topology or the routing keys have changed since this process last read them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from holtmq.body import Content, encode
from holtmq.embedded.background_producer import BackgroundProducer
from holtmq.embedded.bell import Bell
from holtmq.embedded.callback_consumer import CallbackConsumer
from holtmq.embedded.intake import Intake
from holtmq.embedded.persistent import persistent, repeatable
from holtmq.embedded.queue_handle import Key, QueueHandle, as_key, refuse_unsupported
from holtmq.embedded.stream_handle import StreamHandle
from holtmq.errors import InvalidValueError, NotFoundError, PreconditionFailedError
from holtmq.queueing.argument_values import LONGEST_MS
from holtmq.queueing.rules import HIGHEST_PRIORITY, QueueRules, queue_arguments
from holtmq.queueing.stream_arguments import stream_arguments
from holtmq.queueing.stream_rules import StreamRules, is_stream
from holtmq.routing import Explanation, Router
from holtmq.steps import complete
from holtmq.store.opening import TIMEOUT_S, open_store
from holtmq.store.records import DeliveryState, Durability, NewMessage
from holtmq.store.sql.declarations import to_text
from holtmq.store.sql.sql_database import TOPOLOGY, Connection
from holtmq.table import FieldValue, Table, describe, require_short_string
from holtmq.topology import DEFAULT_EXCHANGE, DEFAULT_VHOST, Binding, DestinationType, Exchange, Removal, Topology
from holtmq.topology import Queue as QueueDeclaration

Worker = TypeVar("Worker", BackgroundProducer, CallbackConsumer)


class EmbeddedBroker:
    """An open HoltMQ file, or schema of a PostgreSQL database. Any number of threads and processes may use the same one."""

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] | None = None,
        must_exist: bool = False,
    ) -> None:
        store = open_store(path, durability=durability, timeout_s=timeout_s, must_exist=must_exist)
        self.database, self.keys, self.messages, self.streams = store.database, store.keys, store.messages, store.streams
        self.path = str(self.database.path)
        self.bell = Bell(self.database.await_change, self.database.stop_awaiting, self.database.announce)
        self.versions = (0, 0)
        self.unindexed_puts = 0
        self._clock = clock or self.database.clock
        self._declarations = store.declarations
        self._router = Router()
        self._queues: dict[str, tuple[int, QueueRules]] = {}
        self._streams: dict[str, tuple[int, StreamRules]] = {}
        self.intake = Intake(
            self.messages, self.streams, self.keys, lambda: self._router, lambda: self._queues, lambda: self._streams
        )
        self._workers: list[BackgroundProducer | CallbackConsumer] = []
        self.database.on_rollback.append(self._forget)
        try:
            with self._transaction():
                pass
        except BaseException:
            self.database.close()  # another process can open the file
            raise

    @repeatable
    def declare_exchange(
        self,
        name: str,
        type: str = "direct",  # noqa: A002  # AMQP's word
        *,
        internal: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> None:
        """Create an exchange unless an equivalent one exists. Any other exchange of this name raises an error (406)."""
        exchange = Exchange(name, type, internal=internal, auto_delete=auto_delete, arguments=Table.of(arguments))
        with self._changing():
            if self._router.declare_exchange(exchange):
                self._declarations.add_exchange(exchange)
                self._changed()

    @repeatable
    def declare_queue(
        self,
        name: str,
        *,
        max_length: int | None = None,
        max_length_bytes: int | None = None,
        max_attempts: int | None = None,
        max_priority: int | None = None,
        ttl_ms: int | None = None,
        dead_letter_queue: str | None = None,
        retention_s: float = 0,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> QueueHandle:
        """Create a queue unless an equivalent one exists. Any other queue of this name raises an error (406).

        The keywords are short forms of AMQP arguments, and the broker treats the queue in the same way:

        - `max_length` and `max_length_bytes` limit the ready messages (`x-max-length`, `x-max-length-bytes`). A put
          beyond a limit raises `QueueFullError` (`x-overflow: reject-publish`). With `arguments={"x-overflow":
          "drop-head"}`, or with the AMQP arguments alone, the oldest message is dropped instead.
        - `max_attempts` limits the deliveries of a message (`x-delivery-limit` is one less). After the last attempt the
          message goes to the dead-letter queue. Without one it stays in this queue as dead.
        - `max_priority` is the number of priorities (`x-max-priority`). Without it, the queue has no priorities.
        - `ttl_ms` is the time after which a message expires (`x-message-ttl`).
        - `dead_letter_queue` receives rejected, expired and dropped messages (`x-dead-letter-exchange: ""` with the
          queue's name as `x-dead-letter-routing-key`).
        - `retention_s` keeps acknowledged messages for inspection (`x-retention`, in milliseconds).
        """
        made = queue_arguments(
            arguments, max_length=max_length, max_length_bytes=max_length_bytes, max_attempts=max_attempts,
            max_priority=max_priority, ttl_ms=ttl_ms, dead_letter_queue=dead_letter_queue, retention_s=retention_s,
        )  # fmt: skip
        queue = QueueDeclaration(name, arguments=made)
        if is_stream(queue):
            raise PreconditionFailedError(f"queue {name!r} is of type stream: declare it with declare_stream")
        refuse_unsupported(name, QueueRules.of(queue))
        with self._changing():
            self._adopt_old_limit(queue)
            if self._router.declare_queue(queue):
                self._queues[name] = self._declarations.add_queue(queue), self._rules_of(queue)
                self._changed()
        return QueueHandle(name, self)

    @repeatable
    def declare_stream(
        self,
        name: str,
        *,
        max_age_s: int | None = None,
        max_bytes: int | None = None,
        arguments: Mapping[str, FieldValue] | None = None,
    ) -> StreamHandle:
        """Create a stream unless an equivalent one exists. Any other stream or queue of this name raises an error (406).

        A stream is a queue of type stream (`x-queue-type`), and the broker treats it as such. Its messages stay until
        retention removes them:

        - `max_age_s` is the age up to which messages are kept, in seconds (`x-max-age`, such as 3600s).
        - `max_bytes` is the size up to which the stream grows (`x-max-length-bytes`).

        Retention removes the oldest messages when new ones are appended, in chunks of up to 1 MiB. Without a limit, the
        stream keeps everything.
        """
        stream = QueueDeclaration(name, arguments=stream_arguments(arguments, max_age_s=max_age_s, max_bytes=max_bytes))
        StreamRules.of(stream)  # refuses what makes no sense for a stream
        with self._changing():
            if self._router.declare_queue(stream):
                self._streams[name] = self._declarations.add_queue(stream), self._stream_rules_of(stream)
                self._changed()
        return StreamHandle(name, self)

    @repeatable
    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        """Delete an exchange with its bindings. With `if_unused`, an exchange with bindings raises an error."""
        with self._changing():
            self._remove(self._router.delete_exchange(name, if_unused=if_unused))

    @repeatable
    def delete_queue(self, name: str) -> None:
        """Delete a queue or a stream with its bindings and its messages."""
        with self._changing() as connection:
            self.database.exclude_puts()
            self.catch_up()
            if name in self._queues:
                self.messages.index_arrivals(connection)
                self.messages.delete(connection, self._queues[name][0], list(DeliveryState))
            elif name in self._streams:
                complete(self.streams.forget(self._streams[name][0]))
            self._remove(self._router.delete_queue(name))

    @repeatable
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
        """Bind a queue (or, with `destination_type`, an exchange) to an exchange.

        `metadata` is kept with the binding and has no effect on routing.
        """
        binding = Binding(
            exchange, queue, as_key(routing_key), Table.of(arguments), destination_type,
            created_at=datetime.fromtimestamp(self._clock(), UTC), metadata=Table.of(metadata),
        )  # fmt: skip
        with self._changing():
            if self._router.bind(binding):
                self._declarations.add_binding(binding)
                self._changed()

    @repeatable
    def unbind(
        self,
        queue: str,
        exchange: str,
        routing_key: Key = "",
        *,
        arguments: Mapping[str, FieldValue] | None = None,
        destination_type: DestinationType = "queue",
    ) -> None:
        """Remove a binding. If only bindings with other arguments exist, raise `BindingArgumentsMismatchError`."""
        binding = Binding(exchange, queue, as_key(routing_key), Table.of(arguments), destination_type)
        with self._changing():
            self._remove(self._router.unbind(binding))

    @persistent
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
        """Publish a message to an exchange. Return its id, or None if no queue accepted it.

        Streams count as queues here. They have neither priorities nor delays, and their messages do not expire.
        """
        key = as_key(routing_key)
        if key not in self.keys.ids:
            self.intern(key)  # in a transaction of its own: until its end, no other process adds a key
        with self._transaction(is_adding=True) as connection:
            now = self.now_ms()
            route = self._router.resolve(exchange, key, headers)
            if headers is not None and "BCC" in headers:
                headers = {name: value for name, value in headers.items() if name != "BCC"}
            message = self.new_message(content, key, now, headers, priority, ttl_ms, delay_s, exchange)
            message_id = self.intake.publish(connection, message, route, priority, ttl_ms, now)
        self.bell.ring()
        return message_id

    @repeatable
    def queue(self, name: str) -> QueueHandle:
        """Return a handle to a queue, which is created if it does not exist."""
        if name not in self._queues or self._declarations.versions() != self.versions:
            with self._changing():
                if name in self._streams:
                    raise _stream_error(name)
                if name not in self._queues:
                    self.declare_queue(name)
        return QueueHandle(name, self)

    @repeatable
    def stream(self, name: str) -> StreamHandle:
        """Return a handle to a stream, which is created without limits if it does not exist."""
        if name not in self._streams or self._declarations.versions() != self.versions:
            with self._changing():
                if name not in self._queues and name not in self._streams:
                    self.declare_stream(name)
                self.stream_of(name)
        return StreamHandle(name, self)

    def producer(self, queue: str) -> BackgroundProducer:
        """Return a producer that puts messages into a queue in the background, many in one transaction under load."""
        return self._keep(BackgroundProducer(self.queue(queue)))

    def consumer(self, queue: str, *, concurrency: int = 1, lease_s: float = 60, back_off_s: float = 1) -> CallbackConsumer:
        """Return a consumer that calls back for each message, in `concurrency` threads of its own.

        A message whose callback raises is retried after `back_off_s`, then after twice that time, and so on.
        """
        handle = self.queue(queue)
        refuse_unsupported(queue, self.queue_of(queue)[1])
        return self._keep(CallbackConsumer(handle, concurrency=concurrency, lease_s=lease_s, back_off_s=back_off_s))

    @repeatable
    def explain(self, exchange: str, routing_key: Key, headers: Mapping[str, FieldValue] | None = None) -> Explanation:
        """Explain why a message published with this exchange, key and headers goes where it goes."""
        with self._looking():
            return self._router.explain(exchange, as_key(routing_key), headers)

    @repeatable
    def topology(self) -> Topology:
        """Return the topology of the file."""
        with self._looking():
            return self._declarations.load()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Combine several calls of this thread into one transaction.

        Other threads wait meanwhile, and so do processes that use the same file. On PostgreSQL, other processes go on: they
        wait for what the transaction has changed only.
        """
        with self._transaction(is_adding=True):
            yield

    @repeatable
    def vacuum(self) -> None:
        """Return unused space to the file system, and remove routing keys that no message has."""
        with self._transaction() as connection:
            self.messages.remove_unused(connection)
            self.keys.remove_unused()
        self.database.vacuum()

    def close(self) -> None:
        """Send what producers hold, finish the callbacks that are running, and close the file."""
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
        """Return the time of the clock, in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def queue_of(self, name: str) -> tuple[int, QueueRules]:
        """Return the id of a queue in the file and its rules, as last seen. They never change: a new queue has a new id."""
        found = self._queues.get(name)
        if found is None:
            self._look()  # another process may have declared it
            found = self._queues.get(name)
        if found is None and name in self._streams:
            raise _stream_error(name)
        if found is None:
            raise NotFoundError(f"no queue {name!r} in vhost {DEFAULT_VHOST!r}")
        return found

    def stream_of(self, name: str) -> tuple[int, StreamRules]:
        """Return the id of a stream in the file and its rules, as they are now."""
        if name not in self._streams or self._declarations.versions() != self.versions:
            self._look()  # another process may have declared or deleted it
        found = self._streams.get(name)
        if found is None and name in self._queues:
            raise PreconditionFailedError(f"{name!r} is a queue, not a stream: use queue({name!r}) to put and pop messages")
        if found is None:
            raise NotFoundError(f"no stream {name!r} in vhost {DEFAULT_VHOST!r}")
        return found

    def working(self, queue: str) -> QueueTransaction:
        """Return a transaction on a queue whose messages are all indexed."""
        return QueueTransaction(self, queue, self.database.transaction(), is_indexing=True)

    def claiming(self, queue: str) -> QueueTransaction:
        """Return a transaction that changes leases only. It does not wait for the disk: a lost lease is one more delivery."""
        return QueueTransaction(self, queue, self.database.lazy_transaction(), is_indexing=True)

    def looking(self, queue: str) -> QueueTransaction:
        """Return a transaction that inspects a queue: expired messages leave it first."""
        return QueueTransaction(self, queue, self.database.lazy_transaction(), is_indexing=True, is_expiring=True)

    def settling(self, queue: str) -> QueueTransaction:
        """Return a transaction on messages of a queue that were popped, and so are indexed."""
        return QueueTransaction(self, queue, self.database.transaction(), is_indexing=False)

    def catch_up(self) -> None:
        """Read what other processes have changed, at the start of a transaction."""
        if not self.database.is_nested:
            seen = self._declarations.versions()
            if seen != self.versions:
                self._follow(seen)

    def new_message(
        self,
        content: Content,
        key: str,
        now: int,
        headers: Mapping[str, FieldValue] | None,
        priority: int | None,
        ttl_ms: int | None,
        delay_s: float,
        exchange: str = DEFAULT_EXCHANGE,
    ) -> NewMessage:
        """Validate and encode a message. Its priority and TTL become the AMQP properties `priority` and `expiration`."""
        properties, body = encode(content)
        message = NewMessage(self.intern(key), key, body, exchange, properties=properties)
        if headers:
            message.headers = to_text(Table.of(headers))
        if priority is not None or ttl_ms is not None:
            own = json.loads(properties) if properties else {}
            if priority is not None:
                own["priority"] = _checked_number(priority, "a priority", HIGHEST_PRIORITY)
            if ttl_ms is not None:
                own["expiration"] = str(_checked_number(ttl_ms, "a time to live", LONGEST_MS))
            message.properties = json.dumps(own)
        if delay_s > 0:
            message.due_at = now + round(delay_s * 1000)
        return message

    def intern(self, key: str) -> int:
        """Return the id of a routing key in the file."""
        require_short_string(key, "a routing key")
        return self.keys.ids.get(key) or self._intern(key)

    @repeatable
    def _intern(self, key: str) -> int:
        return self.keys.intern(key)

    @contextmanager
    def _transaction(self, *, is_adding: bool = False) -> Iterator[Connection]:
        with self.database.transaction() as connection:
            if is_adding:
                self.database.admit_puts()
            self.catch_up()
            yield connection

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """Begin a transaction that may change the topology. No other process changes it meanwhile."""
        with self.database.transaction() as connection:
            self.database.serialize(TOPOLOGY)
            self.catch_up()
            yield connection

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Read what other processes have changed, without waiting for the disk."""
        with self.database.lazy_transaction():
            self.catch_up()
            yield

    @repeatable
    def _look(self) -> None:
        with self._looking():
            pass

    def _follow(self, versions: tuple[int, int]) -> None:
        """Load what another process has changed."""
        if versions[0] != self.versions[0]:
            self._router = Router(self._declarations.load())
            ids = self._declarations.queue_ids(DEFAULT_VHOST)
            # What another process deletes meanwhile has no id. The next look at the versions shows it.
            declared = [each for each in self._router.registry.queues.values() if each.name in ids]
            self._queues = {each.name: (ids[each.name], self._rules_of(each)) for each in declared if not is_stream(each)}
            self._streams = {each.name: (ids[each.name], self._stream_rules_of(each)) for each in declared if is_stream(each)}
        self.keys.follow(versions[1])
        self.versions = versions

    def _rules_of(self, queue: QueueDeclaration) -> QueueRules:
        return QueueRules.of(queue, self._router.registry.queue_policy(queue.name))

    def _stream_rules_of(self, stream: QueueDeclaration) -> StreamRules:
        return StreamRules.of(stream, self._router.registry.queue_policy(stream.name))

    def _adopt_old_limit(self, queue: QueueDeclaration) -> None:
        """Accept a queue that 0.1 declared with the same `max_attempts`: it wrote this number as `x-delivery-limit`."""
        existing, limit = self._router.registry.queues.get(queue.name), queue.arguments.get("x-delivery-limit")
        if existing is None or not isinstance(limit, int):
            return
        as_before = Table.of({**queue.arguments, "x-delivery-limit": limit + 1})
        if existing.arguments == as_before and self._declarations.replace_old_limit(queue):
            self._follow(self._declarations.versions())

    def _changed(self) -> None:
        """Note that this process made the latest change, so that it need not be loaded."""
        self.versions = self._declarations.versions()

    def _remove(self, removal: Removal) -> None:
        if removal:
            complete(self._declarations.remove(removal))
            for queue in removal.queues:
                (self._streams if is_stream(queue) else self._queues).pop(queue.name)
            self._changed()

    def _forget(self) -> None:
        """Discard what was seen in a transaction that was rolled back."""
        self.versions = (0, 0)
        self.keys.forget()

    def _keep(self, worker: Worker) -> Worker:
        self._workers.append(worker)
        return worker


class QueueTransaction:
    """A transaction on a queue, as a context that returns the connection, the queue's id and its rules.

    A class rather than a generator, because every put, pop and ack passes here (benchmarks/embedded.py).
    """

    __slots__ = ("_is_expiring", "_is_indexing", "_owner", "_queue", "_transaction")

    def __init__(
        self,
        owner: EmbeddedBroker,
        queue: str,
        transaction: AbstractContextManager[Connection],
        *,
        is_indexing: bool,
        is_expiring: bool = False,
    ) -> None:
        self._owner = owner
        self._queue = queue
        self._is_indexing = is_indexing
        self._is_expiring = is_expiring
        self._transaction = transaction

    def __enter__(self) -> tuple[Connection, int, QueueRules]:
        connection = self._transaction.__enter__()
        try:
            owner = self._owner
            if not owner.database.is_nested:
                owner.database.admit_puts()  # dead letters, too
                owner.catch_up()
            queue_id, rules = owner.queue_of(self._queue)
            if self._is_indexing:
                owner.messages.index_arrivals(connection)
            if self._is_expiring:
                owner.intake.expire(connection, owner.now_ms())
        except BaseException as error:
            self._transaction.__exit__(type(error), error, error.__traceback__)
            raise
        return connection, queue_id, rules

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._transaction.__exit__(kind, error, trace)


def _stream_error(name: str) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"{name!r} is a stream, whose messages are not popped: use stream({name!r}) to append, read and follow"
    )


def _checked_number(value: object, what: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise InvalidValueError(f"{what} must be an integer from 0 to {most}, got {describe(value)}")
    return value
