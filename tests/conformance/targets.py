"""The targets of the table. Each executes one action at a time and returns its outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import assert_never

import amqp

from holtmq import Binding, EmbeddedBroker, Exchange, Queue, Router
from holtmq.errors import AmqpError
from holtmq.table import to_plain
from tests.conformance.naive import NaiveBroker, RefusedError
from tests.conformance.table import Action, Bind, DeleteExchange, DeleteQueue, Outcome, Publish, Scenario, Unbind
from tests.deadline import PATIENCE_S


class Target(ABC):
    """An empty vhost that executes actions."""

    @abstractmethod
    def apply(self, action: Action) -> Outcome: ...

    def run(self, scenario: Scenario) -> list[Outcome]:
        return [self.apply(step.action) for step in scenario.steps]


class LocalTarget(Target):
    """A broker in this process, with one method for each action."""

    broker: Router | NaiveBroker

    def apply(self, action: Action) -> Outcome:
        try:
            return self._apply(action)
        except AmqpError as error:
            return error.reply_code
        except RefusedError as error:
            return error.code

    def _apply(self, action: Action) -> Outcome:
        match action:
            case Exchange():
                self.broker.declare_exchange(action)
            case Queue():
                self.broker.declare_queue(action)
            case Bind(binding):
                self.broker.bind(binding)
            case Unbind(binding):
                self.broker.unbind(binding)
            case DeleteExchange(name):
                self.broker.delete_exchange(name)
            case DeleteQueue(name):
                self.broker.delete_queue(name)
            case Publish(exchange, key, headers):
                return self.broker.route(exchange, key, to_plain(headers))
            case _:
                assert_never(action)
        return None


class RouterTarget(LocalTarget):
    def __init__(self, *, strict_unbind: bool = True) -> None:
        self.broker: Router = Router(strict_unbind=strict_unbind)


class NaiveTarget(LocalTarget):
    def __init__(self, *, strict_unbind: bool = True) -> None:
        self.broker: NaiveBroker = NaiveBroker(strict_unbind=strict_unbind)


class EmbeddedTarget(Target):
    """A HoltMQ file. Each message is published, then popped from the queues that it reached.

    Targets that have the same file open share the set of declared queues.
    """

    def __init__(self, mq: EmbeddedBroker, queues: set[str]) -> None:
        self._mq = mq
        self._queues = queues

    def apply(self, action: Action) -> Outcome:
        try:
            return self._apply(action)
        except AmqpError as error:
            return error.reply_code

    def _apply(self, action: Action) -> Outcome:
        mq = self._mq
        match action:
            case Exchange(name=name, type=type_, internal=internal, auto_delete=auto_delete, arguments=arguments):
                mq.declare_exchange(name, type_, internal=internal, auto_delete=auto_delete, arguments=arguments)
            case Queue(name=name, arguments=arguments):
                mq.declare_queue(name, arguments=arguments)
                self._queues.add(name)
            case Bind(binding) | Unbind(binding):
                change = mq.bind if isinstance(action, Bind) else mq.unbind
                kind = binding.destination_type
                change(
                    binding.destination, binding.source, binding.routing_key, arguments=binding.arguments, destination_type=kind
                )
            case DeleteExchange(name):
                mq.delete_exchange(name)
            case DeleteQueue(name):
                mq.delete_queue(name)
                self._queues.discard(name)
            case Publish(exchange, key, headers):
                mq.publish(b"m", key, exchange=exchange, headers=headers)
                return tuple(name for name in sorted(self._queues) if self._drain(name))
            case _:
                assert_never(action)
        return None

    def _drain(self, name: str) -> bool:
        messages = self._mq.queue(name).pop_many(10)
        assert len(messages) <= 1, f"more than one copy in {name}"
        for message in messages:
            message.ack()
        return bool(messages)


class AmqpTarget(Target):
    """A live broker, over AMQP. Everything that a scenario declares is deleted at its end."""

    def __init__(self, amqp_port: int) -> None:
        self._amqp_port = amqp_port
        self._connect()
        self._exchanges: set[str] = set()
        self._queues: set[str] = set()

    def apply(self, action: Action) -> Outcome:
        try:
            return self._apply(action)
        except amqp.exceptions.AMQPError as error:
            if self._connection.connected:
                self._channel = self._connection.channel()
            else:
                self._connect()
            return int(error.reply_code)

    def _connect(self) -> None:
        timeouts = {"read_timeout": PATIENCE_S, "write_timeout": PATIENCE_S}
        self._connection = amqp.Connection(f"127.0.0.1:{self._amqp_port}", confirm_publish=True, **timeouts)
        self._connection.connect()
        self._channel = self._connection.channel()

    def _apply(self, action: Action) -> Outcome:
        channel = self._channel
        match action:
            case Exchange():
                self._declare_exchange(action)
            case Queue(name=name):
                channel.queue_declare(name, durable=True, auto_delete=False, arguments=to_plain(action.arguments))
                self._queues.add(name)
            case Bind(binding):
                bind = channel.queue_bind if binding.is_to_queue else channel.exchange_bind
                bind(*_ends(binding), arguments=to_plain(binding.arguments))
            case Unbind(binding):
                unbind = channel.queue_unbind if binding.is_to_queue else channel.exchange_unbind
                unbind(*_ends(binding), arguments=to_plain(binding.arguments))
            case DeleteExchange(name):
                channel.exchange_delete(name)
            case DeleteQueue(name):
                channel.queue_delete(name)
            case Publish():
                return self._publish(action)
            case _:
                assert_never(action)
        return None

    def _declare_exchange(self, exchange: Exchange) -> None:
        self._channel.send_method(  # amqp's own exchange_declare has no word for an internal exchange
            amqp.spec.Exchange.Declare,
            "BssbbbbbF",
            (
                0,
                exchange.name,
                exchange.type,
                False,
                exchange.durable,
                exchange.auto_delete,
                exchange.internal,
                False,
                to_plain(exchange.arguments),
            ),
        )
        self._channel.wait(amqp.spec.Exchange.DeclareOk)
        self._exchanges.add(exchange.name)

    def _publish(self, action: Publish) -> Outcome:
        headers = {"application_headers": to_plain(action.headers)} if action.headers else {}
        self._channel.basic_publish_confirm(amqp.Message(b"m", **headers), action.exchange, action.key)
        copies = {queue: self._drain(queue) for queue in sorted(self._queues)}
        assert max(copies.values(), default=0) <= 1, f"more than one copy: {copies}"
        return tuple(queue for queue, count in copies.items() if count)

    def _drain(self, queue: str) -> int:
        count = 0
        try:
            while self._channel.basic_get(queue, no_ack=True):
                count += 1
        except amqp.exceptions.NotFound:
            self._channel = self._connection.channel()
            self._queues.remove(queue)
        return count

    def clear(self) -> None:
        for queue in self._queues:
            self._channel.queue_delete(queue)
        for exchange in self._exchanges:
            if exchange and not exchange.startswith("amq."):
                self._channel.exchange_delete(exchange)
        self._connection.close()


@contextmanager
def amqp_target(amqp_port: int) -> Iterator[AmqpTarget]:
    target = AmqpTarget(amqp_port)
    try:
        yield target
    finally:
        target.clear()


def _ends(binding: Binding) -> tuple[str, str, str]:
    return binding.destination, binding.source, binding.routing_key
