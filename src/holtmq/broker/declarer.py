"""What a client declares, binds and deletes on one channel, subject to its user's permissions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from holtmq.broker.queue import MessageQueue
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.stream_queue import StreamQueue
from holtmq.errors import NotFoundError, NotImplementedByBrokerError, PreconditionFailedError, ResourceLockedError
from holtmq.queueing.stream_rules import STREAM
from holtmq.table import EMPTY_TABLE, FieldValue
from holtmq.topology import Binding, DestinationType, Exchange, Queue
from holtmq.topology.registry import refuse_default_exchange

if TYPE_CHECKING:
    from holtmq.broker.session import Session


class Declarer:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._vhost = session.vhost
        self._last_queue: str | None = None

    def queue(self, name: str) -> ServedQueue:
        """Return a queue that this client may use. The empty name means the last queue declared on this channel."""
        queue = self._vhost.queue(self._name(name))
        self._require_access(queue)
        return queue

    def readable_queue(self, name: str) -> ServedQueue:
        """Return a queue that the user may read. A user who may not does not learn whether it exists."""
        name = self._name(name)
        self._session.require("read", "queue", name)
        return self.queue(name)

    def readable_messages(self, name: str, operation: str) -> MessageQueue:
        """Return a queue that the user may read, for an operation that removes messages. A stream has no such operation."""
        queue = self.readable_queue(name)
        if isinstance(queue, MessageQueue):
            return queue
        raise NotImplementedByBrokerError(
            f"{operation} is not supported by stream {queue.name!r} in vhost {self._vhost.name!r}: "
            "expected a queue of another type"
        )

    def declare_exchange(self, exchange: Exchange) -> None:
        self._session.require("configure", "exchange", exchange.name)
        alternate = exchange.alternate_exchange
        if alternate is not None:
            self._session.require("read", "exchange", exchange.name)
            self._session.require("write", "exchange", alternate)
        self._vhost.declare_exchange(exchange)

    def require_exchange(self, name: str) -> None:
        """Raise if the exchange does not exist (passive declare). As in RabbitMQ, this needs no permission."""
        refuse_default_exchange(name)
        self._vhost.router.registry.exchange(name)

    def delete_exchange(self, name: str, *, if_unused: bool) -> None:
        refuse_default_exchange(name)
        self._session.require("configure", "exchange", name)
        self._vhost.delete_exchange(name, if_unused=if_unused)

    def declare_queue(
        self,
        name: str,
        *,
        is_durable: bool,
        is_exclusive: bool,
        is_auto_delete: bool,
        arguments: Mapping[str, FieldValue],
    ) -> ServedQueue:
        is_named_by_server = not name
        if is_named_by_server:
            if arguments.get("x-queue-type") == STREAM:
                raise PreconditionFailedError("a stream cannot be named by the broker: expected a name, got an empty one")
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        self._session.require("configure", "queue", name)
        existing = self._vhost.find(name)
        if existing is not None:
            self._require_access(existing)
            if existing.declared.exclusive != is_exclusive:
                raise _locked(existing)
        dead_letter_exchange = arguments.get("x-dead-letter-exchange")
        if existing is None and isinstance(dead_letter_exchange, str):
            self._session.require("read", "queue", name)
            self._session.require("write", "exchange", dead_letter_exchange)
        declared = Queue(name, is_durable, is_auto_delete, is_exclusive, arguments, self._vhost.name)
        queue = self._vhost.declare_queue(
            declared, owner=self._session if is_exclusive else None, is_named_by_server=is_named_by_server
        )
        self._last_queue = name
        return queue

    def require_queue(self, name: str) -> ServedQueue:
        """Return a queue, or raise if it does not exist (passive declare). As in RabbitMQ, this needs no permission.

        The empty name does not mean the last queue here.
        """
        queue = self._vhost.queue(name)
        self._require_access(queue)
        self._last_queue = queue.name
        queue.use()
        return queue

    def delete_queue(self, name: str, *, if_unused: bool, if_empty: bool) -> int:
        """Delete a queue and return the number of messages that were in it.

        As in RabbitMQ, the conditions do not count for a stream: it is deleted, and the number is 0.
        """
        name = self._name(name)
        self._session.require("configure", "queue", name)
        queue = self._vhost.find(name)
        if queue is None:
            return 0
        self._require_access(queue)
        what = f"queue {name!r} in vhost {self._vhost.name!r}"
        if isinstance(queue, StreamQueue):
            return self._vhost.delete_queue(queue)
        if if_unused and queue.consumers:
            raise PreconditionFailedError(f"{what} in use: expected no consumers, got {len(queue.consumers)}")
        if if_empty and queue.message_count:
            raise PreconditionFailedError(f"{what} not empty: expected no messages, got {queue.message_count}")
        return self._vhost.delete_queue(queue)

    def purge_queue(self, name: str) -> int:
        return self.readable_messages(name, "queue.purge").purge()

    def bind_queue(
        self,
        queue: str,
        exchange: str,
        routing_key: str,
        arguments: Mapping[str, FieldValue],
        metadata: Mapping[str, FieldValue] = EMPTY_TABLE,
    ) -> None:
        binding = self._queue_binding(queue, exchange, routing_key, arguments)
        self._vhost.bind(replace(binding, metadata=metadata))

    def unbind_queue(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, FieldValue]) -> None:
        self._vhost.unbind(self._queue_binding(queue, exchange, routing_key, arguments))

    def bind_exchange(
        self,
        destination: str,
        source: str,
        routing_key: str,
        arguments: Mapping[str, FieldValue],
        metadata: Mapping[str, FieldValue] = EMPTY_TABLE,
    ) -> None:
        binding = self._binding("exchange", destination, source, routing_key, arguments)
        self._vhost.bind(replace(binding, metadata=metadata))

    def unbind_exchange(self, destination: str, source: str, routing_key: str, arguments: Mapping[str, FieldValue]) -> None:
        self._vhost.unbind(self._binding("exchange", destination, source, routing_key, arguments))

    def _queue_binding(self, queue: str, exchange: str, routing_key: str, arguments: Mapping[str, FieldValue]) -> Binding:
        name = self._name(queue)
        if not queue and not routing_key:
            routing_key = name
        binding = self._binding("queue", name, exchange, routing_key, arguments)
        existing = self._vhost.find(name)
        if existing is not None:
            self._require_access(existing)
        return binding

    def _binding(
        self, kind: DestinationType, destination: str, source: str, routing_key: str, arguments: Mapping[str, FieldValue]
    ) -> Binding:
        refuse_default_exchange(source)
        if kind == "exchange":
            refuse_default_exchange(destination)
        session = self._session
        session.require("write", kind, destination)
        session.require("read", "exchange", source)
        if self._vhost.is_topic(source):
            session.broker.authorization.require_topic(session.user.name, self._vhost.name, "read", source, routing_key)
        return Binding(source, destination, routing_key, arguments, kind, self._vhost.name)

    def _name(self, name: str) -> str:
        if name:
            return name
        if self._last_queue is None:
            raise NotFoundError("no previously declared queue on this channel")
        return self._last_queue

    def _require_access(self, queue: ServedQueue) -> None:
        if queue.owner is not None and queue.owner is not self._session:
            raise _locked(queue)


def _locked(queue: ServedQueue) -> ResourceLockedError:
    return ResourceLockedError(
        f"cannot obtain exclusive access to locked queue {queue.name!r} in vhost {queue.declared.vhost!r}: "
        "it belongs to the connection that declared it, or was declared with another exclusive flag"
    )
