"""What the table of queue behaviour is run against: the embedded library, the broker, one store that changes hands between
the two, and any AMQP broker over the wire."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import holtmq
from holtmq.broker.broker import Broker
from holtmq.broker.consumer import Consumer
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.stream_row import StreamRow
from holtmq.errors import AmqpError
from holtmq.server.startup import recover
from holtmq.steps import complete
from holtmq.store.sql.declarations import SqlDeclarations
from holtmq.topology import Exchange, Policy
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.conformance.queue_table import QueueScenario, QueueStep
from tests.places import database_at, journal_on

START_MS = 1_700_000_000_000
EMPTY_KEY = '""'
Table = Mapping[str, Any]


@dataclass(slots=True)
class Received:
    """A message that a target has delivered."""

    body: str
    is_redelivered: bool
    routing_key: str
    headers: Table
    settle: Callable[[str], None]
    """ack, requeue or reject."""


class QueueTarget(Protocol):
    """An implementation of queues."""

    def declare_queue(self, name: str, arguments: Table) -> None: ...
    def declare_exchange(self, name: str, kind: str) -> None: ...
    def bind(self, exchange: str, queue: str, key: str, arguments: Table) -> None: ...
    def set_policy(self, name: str, pattern: str, definition: Table) -> None: ...
    def publish(self, exchange: str, key: str, body: str, properties: Table) -> bool:
        """Publish a message. Return whether every queue that it was routed to accepted it."""

    def get(self, queue: str) -> Received | None: ...
    def count(self, queue: str) -> int: ...
    def wait(self, milliseconds: int) -> None: ...
    def catch_up(self) -> None:
        """Let messages expire that are due. The library has no timers: it does so when someone looks."""

    def close(self) -> None: ...


@dataclass
class Player:
    """Plays a scenario on a target and returns the outcome of each step."""

    target: QueueTarget
    look: Callable[[Callable[[], str], str | None], str] = field(default=lambda look, _: look())
    """Make an observation; over the wire, again and again until it is the expected one."""
    received: dict[str, Received] = field(default_factory=dict)

    def play(self, scenario: QueueScenario, expected: Callable[[QueueStep], str | None]) -> list[tuple[str, str | None]]:
        outcomes = []
        for step in scenario.steps:
            try:
                outcome = self._apply(step, expected(step))
            except AmqpError as error:
                outcome = f"! {error.reply_code}"
            except ClosedError as error:
                outcome = f"! {error.code}"
            is_told = step.expected is not None or (outcome or "").startswith("!")
            outcomes.append((step.text, outcome if is_told else None))
        return outcomes

    def _apply(self, step: QueueStep, expected: str | None) -> str | None:
        if step.verb in ("queue", "exchange", "bind", "policy"):
            self._declare(step)
            return None
        if step.verb in ("deaths", "key", "header"):
            return self._inspect(step)
        target = self.target
        match step.verb, step.words:
            case "put", [queue, body]:
                return "accepted" if target.publish("", queue, body, step.table) else "rejected"
            case "publish", [exchange, key, body]:
                target.publish(exchange, key, body, step.table)
            case "get", [queue]:
                return self.look(lambda: self._get(queue), expected)
            case ("ack" | "requeue" | "reject") as how, [body]:
                self.received[body].settle(how)
            case "wait", [milliseconds]:
                target.wait(int(milliseconds))
            case "count", [queue]:
                return self.look(lambda: str(target.count(queue)), expected)
            case "drain", [queue]:
                self.look(lambda: str(target.count(queue)), None if expected is None else str(len(expected.split())))
                return " ".join(self._drain(queue))
            case _:
                raise ValueError(f"unknown step {step.text!r}")
        return None

    def _declare(self, step: QueueStep) -> None:
        match step.verb, step.words:
            case "queue", [name]:
                self.target.declare_queue(name, step.table)
            case "exchange", [name, kind]:
                self.target.declare_exchange(name, kind)
            case "bind", [exchange, queue, key]:
                self.target.bind(exchange, queue, "" if key == EMPTY_KEY else key, step.table)
            case "policy", [name, pattern]:
                self.target.set_policy(name, pattern, step.table)
            case _:
                raise ValueError(f"unknown step {step.text!r}")

    def _inspect(self, step: QueueStep) -> str:
        match step.verb, step.words:
            case "deaths", [body]:
                deaths = self.received[body].headers.get("x-death", ())
                return " ".join(f"{death['queue']}/{death['reason']}/{death['count']}" for death in deaths)
            case "key", [body]:
                return self.received[body].routing_key
            case "header", [body, name]:
                return str(self.received[body].headers.get(name, "none"))
            case _:
                raise ValueError(f"unknown step {step.text!r}")

    def _get(self, queue: str) -> str:
        message = self.target.get(queue)
        if message is None:
            return "none"
        self.received[message.body] = message
        return f"{message.body} again" if message.is_redelivered else message.body

    def _drain(self, queue: str) -> list[str]:
        bodies = []
        while (message := self.target.get(queue)) is not None:
            message.settle("ack")
            self.received[message.body] = message
            bodies.append(message.body)
        return bodies


class TestClock:
    """The time in milliseconds, which only `wait` moves."""

    __test__ = False

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> float:
        return self.now_ms / 1000


class EmbeddedQueueTarget:
    def __init__(self, path: str | Path, clock: TestClock) -> None:
        self._clock = clock
        self._mq = holtmq.open(path, durability="off", clock=clock)

    def declare_queue(self, name: str, arguments: Table) -> None:
        self._mq.declare_queue(name, arguments=arguments)

    def declare_exchange(self, name: str, kind: str) -> None:
        self._mq.declare_exchange(name, kind)

    def bind(self, exchange: str, queue: str, key: str, arguments: Table) -> None:
        self._mq.bind(queue, exchange, key, arguments=arguments)

    def set_policy(self, name: str, pattern: str, definition: Table) -> None:
        SqlDeclarations(self._mq.database).set_policy(Policy(name, pattern, definition, "queues"))

    def publish(self, exchange: str, key: str, body: str, properties: Table) -> bool:
        ttl_ms = int(properties["expiration"]) if "expiration" in properties else None
        priority = properties.get("priority")
        return self._mq.publish(body, key, exchange=exchange, priority=priority, ttl_ms=ttl_ms) is not None

    def get(self, queue: str) -> Received | None:
        message = self._mq.queue(queue).pop(lease_s=3600)
        if message is None:
            return None
        settle = {"ack": message.ack, "requeue": message.retry, "reject": message.reject}
        return Received(message.text, message.attempts > 1, message.routing_key, message.headers, lambda how: settle[how]())

    def count(self, queue: str) -> int:
        return self._mq.queue(queue).size()

    def wait(self, milliseconds: int) -> None:
        self._clock.now_ms += milliseconds

    def catch_up(self) -> None:
        for queue in self._mq.topology().queues:
            self._mq.queue(queue.name).size()

    def close(self) -> None:
        self._mq.close()


class BrokerQueueTarget:
    """A broker without sockets on a file, which is written after every call."""

    is_writable = True

    def __init__(self, path: str | Path, clock: TestClock) -> None:
        self._clock = clock
        self._journal = journal_on(database_at(path, owner="a test"))
        self._broker = Broker(self._journal)
        self._broker.begin(clock.now_ms)
        recover(self._broker, self._journal)
        self._session = self._broker.open_session(self._broker.authorization.users["guest"], "/")
        self._channel = self._session.open_channel(1, self)
        self._channel.select_confirms()
        self._refused = False
        self._turn()

    def _turn(self) -> None:
        self._broker.end()
        if self._journal.has_changes:
            self._broker.sealed()
            self._journal.gather()
            assert self._journal.begin()
            complete(self._journal.write())
            self._broker.committed(self._journal.commit())
            self._broker.end()
        self._broker.begin(self._clock.now_ms)

    def deliver(
        self, consumer: Consumer, first_tag: int, messages: Sequence[QueuedMessage], redelivered: Collection[int]
    ) -> None:
        raise AssertionError("the table has no consumers")

    def deliver_row(self, consumer: Consumer, first_tag: int, row: StreamRow) -> None:
        raise AssertionError("the table has no consumers")

    def confirm(self, tag: int, *, multiple: bool) -> None:
        pass

    def refuse(self, tag: int) -> None:
        self._refused = True

    def give_back(self, message: QueuedMessage) -> None:
        pass

    def cancel(self, consumer: Consumer) -> None:
        pass

    def fail(self) -> None:
        pass

    def declare_queue(self, name: str, arguments: Table) -> None:
        self._channel.declarer.declare_queue(
            name, is_durable=True, is_exclusive=False, is_auto_delete=False, arguments=arguments
        )
        self._turn()

    def declare_exchange(self, name: str, kind: str) -> None:
        self._channel.declarer.declare_exchange(Exchange(name, kind))
        self._turn()

    def bind(self, exchange: str, queue: str, key: str, arguments: Table) -> None:
        self._channel.declarer.bind_queue(queue, exchange, key, arguments)
        self._turn()

    def set_policy(self, name: str, pattern: str, definition: Table) -> None:
        complete(self._broker.set_policy(Policy(name, pattern, definition, "queues")))
        self._turn()

    def publish(self, exchange: str, key: str, body: str, properties: Table) -> bool:
        raw, self._refused = encode_properties({**properties, "delivery_mode": 2}), False
        publication = self._channel.publication(exchange, key, is_mandatory=False)
        publication.publish(raw, [make_content(raw, body.encode())])
        self._turn()
        return not self._refused

    def get(self, queue: str) -> Received | None:
        fetched = self._channel.get(queue, is_auto_ack=False)
        self._turn()
        if fetched is None:
            return None
        message = fetched.message

        def settle(how: str) -> None:
            if how == "ack":
                self._channel.ack(fetched.tag, multiple=False)
            else:
                self._channel.reject(fetched.tag, multiple=False, requeue=how == "requeue")
            self._turn()

        headers = message.properties.headers
        return Received(message.body.decode(), fetched.is_redelivered, message.origin.routing_key, headers, settle)

    def count(self, queue: str) -> int:
        return self._broker.vhosts["/"].queue(queue).message_count

    def wait(self, milliseconds: int) -> None:
        self._clock.now_ms += milliseconds
        self._turn()
        self._turn()

    def catch_up(self) -> None:
        self._turn()

    def close(self) -> None:
        complete(self._session.close())
        self._broker.forget_delivered()
        self._turn()
        self._journal.close()


class HandoverTarget:
    """One store that changes hands before every call, unless a message is held: the library has it, then the broker, …"""

    def __init__(self, path: str | Path, clock: TestClock) -> None:
        self._path = path
        self._clock = clock
        self._kinds: list[Callable[[str | Path, TestClock], QueueTarget]] = [EmbeddedQueueTarget, BrokerQueueTarget]
        self._owner: QueueTarget = EmbeddedQueueTarget(path, clock)
        self._held = 0
        self.handovers = 0

    def _next(self) -> QueueTarget:
        if not self._held:
            self._owner.close()
            self.handovers += 1
            self._owner = self._kinds[self.handovers % 2](self._path, self._clock)
        return self._owner

    def declare_queue(self, name: str, arguments: Table) -> None:
        self._next().declare_queue(name, arguments)

    def declare_exchange(self, name: str, kind: str) -> None:
        self._next().declare_exchange(name, kind)

    def bind(self, exchange: str, queue: str, key: str, arguments: Table) -> None:
        self._next().bind(exchange, queue, key, arguments)

    def set_policy(self, name: str, pattern: str, definition: Table) -> None:
        self._next().set_policy(name, pattern, definition)

    def publish(self, exchange: str, key: str, body: str, properties: Table) -> bool:
        return self._next().publish(exchange, key, body, properties)

    def get(self, queue: str) -> Received | None:
        message = self._next().get(queue)
        if message is None:
            return None
        settle_there, self._held = message.settle, self._held + 1

        def settle(how: str) -> None:
            settle_there(how)
            self._held -= 1

        message.settle = settle
        return message

    def count(self, queue: str) -> int:
        return self._next().count(queue)

    def wait(self, milliseconds: int) -> None:
        self._next().wait(milliseconds)

    def catch_up(self) -> None:
        self._owner.catch_up()

    def close(self) -> None:
        self._owner.close()


class WireQueueTarget:
    """Any AMQP broker. Time passes by itself: an observation is repeated until it is the expected one."""

    def __init__(self, port: int, set_policy: Callable[[str, str, Table], None], clear_policy: Callable[[str], None]) -> None:
        self._stack = ExitStack()
        amqp = self._stack.enter_context(Amqp(port))
        self._amqp = amqp
        self._channel: Channel = amqp.channel()
        self._publisher: Channel = amqp.channel(2)
        self._publisher.confirm()
        self._set_policy = set_policy
        self._clear_policy = clear_policy
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def declare_queue(self, name: str, arguments: Table) -> None:
        self._queues.append(name)
        method = wire.QueueDeclare(0, name, False, True, False, False, False, arguments)
        try:
            self._channel.call(method, wire.QueueDeclareOk)
        except ClosedError:
            self._channel = self._channel.reopen()
            raise

    def declare_exchange(self, name: str, kind: str) -> None:
        self._exchanges.append(name)
        self._channel.declare_exchange(name, kind, durable=True)

    def bind(self, exchange: str, queue: str, key: str, arguments: Table) -> None:
        self._channel.bind(queue, exchange, key, arguments)

    def set_policy(self, name: str, pattern: str, definition: Table) -> None:
        self._set_policy(name, pattern, definition)
        self._stack.callback(self._clear_policy, name)

    def publish(self, exchange: str, key: str, body: str, properties: Table) -> bool:
        self._publisher.publish(exchange, key, body.encode(), delivery_mode=2, **properties)
        return isinstance(self._publisher.next().method, wire.BasicAck)

    def get(self, queue: str) -> Received | None:
        event = self._channel.get(queue, no_ack=False)
        if event is None:
            return None
        tag = event.method.delivery_tag

        def settle(how: str) -> None:
            if how == "ack":
                self._channel.ack(tag)
            else:
                self._channel.reject(tag, requeue=how == "requeue")
            self._channel.settle()

        headers = event.properties.get("headers", {})
        return Received(event.body.decode(), event.method.redelivered, event.method.routing_key, headers, settle)

    def count(self, queue: str) -> int:
        return self._channel.count(queue)

    def wait(self, milliseconds: int) -> None:
        pass

    def catch_up(self) -> None:
        pass

    def close(self) -> None:
        for queue in self._queues:
            self._channel.delete(queue)
        for exchange in self._exchanges:
            self._channel.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)
        self._stack.close()
