"""A virtual host of a running broker: its exchanges, queues and bindings, and the messages routed through them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from holtmq.broker.fan_out import FanOut
from holtmq.broker.letter_way import LetterWay
from holtmq.broker.memory import MemoryBudget, memory_of
from holtmq.broker.queue import MessageQueue
from holtmq.broker.queued_message import Origin, QueuedMessage, known_properties
from holtmq.broker.reply import ReplyDestination
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.stream_queue import StreamQueue
from holtmq.broker.traffic import Inflow, Outflow, Traffic
from holtmq.errors import NotFoundError, StoreError
from holtmq.queueing.dead_letter import DeadLetter, DeathReason, dead_letter
from holtmq.queueing.letter_chain import Consequences, LetterChain
from holtmq.queueing.publishing_id import PUBLISHER, unnumbered
from holtmq.queueing.rules import QueueRules
from holtmq.queueing.stream_rules import StreamRules, rules_of
from holtmq.routing import Route, Router
from holtmq.steps import Steps, complete, one_by_one
from holtmq.store.chunk import LoggedMessage
from holtmq.store.records import StoredRow
from holtmq.topology import Binding, DestinationType, Exchange, Policy, Queue, Removal, Topology
from holtmq.wire.content import Properties, make_content

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker
    from holtmq.broker.channel import Channel
    from holtmq.broker.chores import Chore
    from holtmq.broker.consumer import Consumer
    from holtmq.broker.lane import Lane
    from holtmq.broker.session import Session
    from holtmq.store.journal_port import JournalPort

T = TypeVar("T")
Buried: TypeAlias = tuple[QueuedMessage, Callable[[], None]]
"""A message that has died, and what is to be done when its dead letter is in all its queues."""
Burial: TypeAlias = tuple[FanOut, Consequences, Callable[[], None]]
ENDS = attrgetter("vhost", "source", "destination_type", "destination")
FREED_AT_ONCE = 2000
"""Messages of a purged queue that are freed in one step."""
SWEPT_AT_ONCE = 100
"""Bindings that are freed in one step, or together with what they belonged to."""


class VirtualHost:
    def __init__(self, name: str, broker: Broker, topology: Topology) -> None:
        self.name = name
        self.broker = broker
        self.router = Router(topology, name, strict_unbind=broker.strict_unbind)
        registry = self.router.registry
        broker.memory.topology += memory_of(registry.exchanges.values(), registry.queues.values(), topology.bindings)
        self.metadata: dict[str, Any] = {}
        """Description, tags and the like."""
        self.queues: dict[str, ServedQueue] = {}
        self.replies: dict[str, ReplyDestination] = {}
        self.sessions: set[Session] = set()
        self._closed_traffic, self._closed_inflow, self._closed_outflow = Traffic(), Inflow(), Outflow()
        self._closed_acknowledged = 0
        self.generation = 0
        """Grows with every change of topology or permissions; cached routes of earlier generations are stale."""
        self.dead_letters: LetterChain[Buried] = LetterChain()
        self._burials: deque[Burial] = deque()
        """Dead letters that are entering many queues in steps, and those that follow them."""
        self._letter_way: LetterWay | None = None
        """That of the last dead letter."""

    @property
    def journal(self) -> JournalPort:
        return self.broker.journal

    @property
    def now_ms(self) -> int:
        return self.broker.now_ms

    @property
    def memory(self) -> MemoryBudget:
        return self.broker.memory

    def find(self, name: str) -> ServedQueue | None:
        """Return the queue with this name, if there is one. A doomed one is deleted first."""
        queue = self.queues.get(name)
        if queue is None or not queue.is_doomed:
            return queue
        self.delete_queue(queue)
        return None

    def queue(self, name: str) -> ServedQueue:
        queue = self.find(name)
        if queue is None:
            raise NotFoundError(f"no queue {name!r} in vhost {self.name!r}")
        return queue

    def is_topic(self, exchange: str) -> bool:
        declared = self.router.registry.exchanges.get(exchange)
        return declared is not None and declared.type == "topic"

    def has_topic_permission(self, user: str, exchange: str) -> bool:
        """Whether a topic permission of the user says with which routing keys to publish to an exchange."""
        return self.is_topic(exchange) and (user, self.name, exchange) in self.broker.authorization.topic_permissions

    def destinations(self, route: Route) -> Sequence[ServedQueue]:
        """Return the queues of a route."""
        return tuple(map(self.queues.__getitem__, route.queues))  # half the time of a comprehension if there are many

    def reply_destinations(self, routing_key: str) -> Sequence[ReplyDestination]:
        """Return the destination of a direct reply, if it is still there."""
        reply = self.replies.get(routing_key)
        return (reply,) if reply is not None else ()

    def declare_exchange(self, exchange: Exchange) -> None:
        self.memory.require_room_for_topology()
        if self.router.declare_exchange(exchange):
            self.memory.topology += memory_of((exchange,), (), ())
            self.generation += 1
            if exchange.durable:
                self.journal.add_exchange(exchange)

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> None:
        self._removed(self.router.delete_exchange(name, if_unused=if_unused, is_swept=False))

    def declare_queue(self, declared: Queue, *, owner: Session | None = None, is_named_by_server: bool = False) -> ServedQueue:
        existing = self.find(declared.name)
        self.broker.churn.queues_declared += 1
        if existing is not None:
            self.router.declare_queue(declared)  # raises if it is not equivalent
            existing.use()
            return existing
        self.memory.require_room_for_topology()
        rules = rules_of(declared, self.router.registry.queue_policy(declared.name))
        if is_named_by_server:
            self.router.adopt_queue(declared)
        else:
            self.router.declare_queue(declared)
        self.generation += 1
        self.memory.topology += memory_of((), (declared,), ())
        self.broker.churn.queues_created += 1
        return self.open_queue(declared, self.journal.add_queue(declared), rules, owner)

    def open_queue(
        self, declared: Queue, queue_id: int, rules: QueueRules | StreamRules, owner: Session | None = None
    ) -> ServedQueue:
        """Start a declared queue."""
        if isinstance(rules, StreamRules):
            stream = self.queues[declared.name] = StreamQueue(declared, queue_id, rules, self)
            return stream
        queue = self.queues[declared.name] = MessageQueue(declared, queue_id, rules, self, owner)
        if owner is not None:
            owner.exclusive_queues[declared.name] = queue
        return queue

    def doom(self, queue: ServedQueue) -> None:
        """Delete a queue that nobody needs any more. If that fails, it is tried again."""
        queue.must_go = True
        self.broker.chores.add("deleting a queue", f"queue {queue.name!r}", lambda: self._delete_doomed(queue))

    def _delete_doomed(self, queue: ServedQueue) -> Steps[None]:
        self.delete_queue(queue)
        yield

    def delete_queue(self, queue: ServedQueue) -> int:
        """Delete a queue, cancel its consumers, and return the number of ready messages that were in it.

        Do nothing if it was deleted before: another queue may have its name.
        """
        if self.queues.get(queue.name) is not queue:
            return 0
        try:
            return self._empty(queue)
        finally:  # whatever fails, no queue stays behind that nobody owns, and nobody waits for its messages
            self.queues.pop(queue.name, None)
            if queue.owner is not None:
                queue.owner.exclusive_queues.pop(queue.name, None)
            self._removed(self.router.delete_queue(queue.name, is_swept=False))
            queue.wake_waiting()

    def _empty(self, queue: ServedQueue) -> int:
        queue.is_deleted = True
        self.broker.churn.queues_deleted += 1
        count = queue.purge()
        for message in self.unsettled(queue):
            if message.stored:
                self.journal.remove(message, queue.id)
        self.memory.queues += queue.uncounted_memory()
        consumers, queue.consumers = queue.consumers, []
        for consumer in consumers:
            if consumer.channel.consumers.pop(consumer.tag, None) is not None:
                consumer.channel.session.consumers -= consumer.memory
            consumer.channel.outlet.cancel(consumer)
        self.journal.forget_queue(queue.id)
        return count

    def bind(self, binding: Binding) -> None:
        """Add a binding, and record the time unless the binding carries one."""
        if binding.created_at is None:
            binding = replace(binding, created_at=datetime.fromtimestamp(self.now_ms / 1000, UTC))
        self.memory.require_room_for_topology()
        if self.router.bind(binding):
            self.memory.topology += memory_of((), (), (binding,))
            self.generation += 1
            if self._is_durable(binding):
                self.journal.add_binding(binding)

    def unbind(self, binding: Binding) -> None:
        self._removed(self.router.unbind(binding, is_swept=False))

    def set_policies(self, policies: Sequence[Policy]) -> Steps[None]:
        """Set new policies. The returned steps apply them to the queues that exist."""
        self.router.set_policies(policies)
        self.generation += 1
        return self._apply_policies()

    def _apply_policies(self) -> Steps[None]:
        registry = self.router.registry
        for queue in one_by_one(self.queues.values()):
            policy = registry.queue_policy(queue.name)
            if queue.is_deleted:
                pass
            elif isinstance(queue, StreamQueue):
                queue.apply(StreamRules.of(queue.declared, policy))
            elif (rules := QueueRules.of(queue.declared, policy)) != queue.rules:
                queue.apply(rules)
            yield

    def _is_durable(self, binding: Binding) -> bool:
        """Return whether both ends of a binding survive a restart."""
        registry = self.router.registry
        if not registry.exchanges[binding.source].durable:
            return False
        if binding.destination_type == "exchange":
            return registry.exchanges[binding.destination].durable
        return registry.queues[binding.destination].outlives_broker

    def _removed(self, removal: Removal) -> None:
        """Record a removal in the file, and free its bindings in steps."""
        if not removal:
            return
        self.generation += 1
        filed = self._filed(removal)
        if filed:
            self.journal.remove_parts(filed)
        if len(removal.bindings) <= SWEPT_AT_ONCE:
            complete(self.router.sweep(removal))
            self.memory.topology -= memory_of(removal.exchanges, removal.queues, removal.bindings)
        else:
            self.memory.topology -= memory_of(removal.exchanges, removal.queues, ())
            self.broker.chores.add("removing bindings", f"vhost {self.name!r}", lambda: self._sweep(removal))

    def _filed(self, removal: Removal) -> Removal:
        """Return the removed parts that survive a restart, so that they are in the file."""
        registry = self.router.registry
        gone_exchanges = {part.name: part for part in removal.exchanges}
        gone_queues = {part.name: part for part in removal.queues}

        def is_filed(_: str, source: str, destination_type: DestinationType, name: str) -> bool:
            """Return whether both ends of a binding survive a restart. They may be among the parts just removed."""
            if source in gone_exchanges or not registry.exchanges[source].durable:
                return False  # the bindings of a removed exchange leave the file with it
            if destination_type == "exchange":
                return (gone_exchanges.get(name) or registry.exchanges[name]).durable
            return (gone_queues.get(name) or registry.queues[name]).outlives_broker

        return Removal(
            [each for each in removal.bindings if is_filed(*ENDS(each))] if removal.is_unbinding else [],
            [exchange for exchange in removal.exchanges if exchange.durable],
            [queue for queue in removal.queues if queue.outlives_broker],
            [ends for ends in removal.ends if is_filed(*ends)],
        )

    def _sweep(self, removal: Removal) -> Steps[None]:
        yield from self.router.sweep(removal)
        while some := removal.bindings[-SWEPT_AT_ONCE:]:
            del removal.bindings[-SWEPT_AT_ONCE:]
            self.memory.topology -= memory_of((), (), some)
            yield

    def wake(self, queue: ServedQueue) -> None:
        if not queue.is_awake and not queue.is_suspended:
            queue.is_awake = True
            self.broker.awake.append(queue)

    def dispatch(self, queue: ServedQueue) -> None:
        self.broker.dispatch(queue)

    def deliver_in_steps(self, queue: ServedQueue, begin: Callable[[], Steps[None]]) -> Chore:
        return self.broker.chores.add("delivering messages", f"queue {queue.name!r}", begin)

    def free_in_steps(self, queue: MessageQueue, messages: deque[QueuedMessage]) -> None:
        if len(messages) > FREED_AT_ONCE:
            self.broker.chores.add("freeing messages", f"queue {queue.name!r}", partial(_free, messages))

    def delivery_failed(self, consumer: Consumer) -> None:
        session = consumer.channel.session
        self.broker.internal_errors.report("delivering to a consumer", f"consumer {consumer.tag!r} of {session.user.name!r}")
        consumer.channel.outlet.fail()

    def schedule(self, queue: ServedQueue, at_ms: int) -> None:
        self.broker.schedule(queue, at_ms)

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        self.broker.reads.ask(read, then)

    def read_failed(self, queue: ServedQueue, error: StoreError, *, is_new: bool) -> None:
        self.broker.read_failed(f"messages of queue {queue.name!r} in vhost {self.name!r}", error, is_new=is_new)

    def is_committed(self, batch: int) -> bool:
        return self.broker.is_committed(batch)

    def restore(self, logged: LoggedMessage) -> QueuedMessage:
        return self.broker.restorer.restore(logged)

    def restore_all(self, logged: Sequence[LoggedMessage]) -> list[QueuedMessage]:
        return self.broker.restorer.restore_all(logged)

    def origin(self, names: tuple[str, str]) -> Origin:
        return self.broker.restorer.origin(names)

    def restore_row(self, row: StoredRow) -> QueuedMessage:
        return self.broker.restorer.restore_row(row)

    @property
    def is_burying(self) -> bool:
        return bool(self._burials) and not self.dead_letters.is_publishing

    def bury(self, message: QueuedMessage, queue: MessageQueue, reason: DeathReason, then: Callable[[], None]) -> None:
        origin = message.origin
        make = partial(
            dead_letter, message.properties, origin.exchange, origin.routing_key,
            queue=queue.name, rules=queue.rules, exchanges=self.router.registry.exchanges, reason=reason, now_ms=self.now_ms,
        )  # fmt: skip
        if not self.dead_letters.add(make, (message, then), self._publish_dead_letter):
            then()

    def _publish_dead_letter(self, letter: DeadLetter, buried: Buried) -> None:
        message, then = buried
        try:
            fan_out = self._route_dead_letter(letter, message)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self.broker.internal_errors.report("publishing a dead letter", f"exchange {letter.exchange!r}")
            fan_out = None
        if fan_out is None:
            then()
            return
        self._burials.append((fan_out, self.dead_letters.consequences, then))
        self.memory.queues += fan_out.memory
        if len(self._burials) == 1:
            self.broker.chores.add("publishing dead letters", f"vhost {self.name!r}", self._bury_all)

    def _route_dead_letter(self, letter: DeadLetter, message: QueuedMessage) -> FanOut | None:
        """Publish a dead letter. Return what is to be done in steps, if it has many queues or follows one that has."""
        way = self._letter_way
        if way is None or not way.serves(letter, self.generation):
            way = self._letter_way = self._way_of(letter)
        destinations, entries, properties = way.destinations, way.entries, way.properties
        content, copies = way.content(message.body), len(destinations)
        if self._burials or (copies > 1 and not self.broker.at_once(copies, 1)):
            return FanOut(self.broker, way.origin, properties, [content], destinations, entries, _ignore)
        if copies > 1:
            self.broker.expect(destinations, properties, message.size)
        self.broker.last_id += 1
        dead = QueuedMessage(self.broker.last_id, way.origin, properties, content, message.size, copies)
        for target in destinations:
            target.put(dead, entries.get(target.name) if entries else None)
        return None

    def _way_of(self, letter: DeadLetter) -> LetterWay:
        route = self.router.resolve_unpublished(letter.exchange, letter.routing_keys, letter.headers)
        return LetterWay(
            letter,
            self.generation,
            self.broker.restorer.origin((letter.exchange, letter.routing_keys[0])),
            known_properties(letter.raw_properties, self.broker.properties),
            [target for target in self.destinations(route) if not letter.is_cycle(target.name)],
            route.entries,
        )

    def _bury_all(self) -> Steps[None]:
        """Put dead letters into their queues. A message leaves the queue in which it died when all of them have its letter."""
        while self._burials:
            fan_out, consequences, then = self._burials[0]
            while fan_out.has_more:
                self.dead_letters.go_on(consequences, fan_out.put_some, self._publish_dead_letter)
                yield
            self._burials.popleft()
            self.memory.queues -= fan_out.memory
            then()

    def move(self, source: MessageQueue, target: ServedQueue, limit: int) -> int:
        """Move messages from the head of a queue to the tail of another and return their number.

        The move ends early when the target is full. Messages keep their exchange and routing key. A stream takes them all,
        whatever numbers their publisher gave them. Both ends of the move are in one batch of the journal.
        """
        messages, moved = source.take(limit), 0
        is_stream = isinstance(target, StreamQueue)
        with self.journal.together():
            try:
                for message in messages:
                    if not target.has_room(message.size):
                        break
                    properties, content = message.properties, message.content
                    if is_stream and PUBLISHER in properties.raw:
                        properties = Properties(unnumbered(properties.raw))
                        content = make_content(properties.raw, message.body)
                    self.broker.last_id += 1
                    target.put(QueuedMessage(self.broker.last_id, message.origin, properties, content, message.size, 1))
                    moved += 1
            finally:
                source.give_back(messages[moved:])
                source.sent(messages[:moved])
                source.outflow.fetched_for_good += moved
        return moved

    def count_closed(self, channel: Channel) -> None:
        """Keep the counters of a channel that closes."""
        for tally in channel.ways.tallies:
            self._closed_traffic.add(tally)
        self._closed_traffic.forget(self.router.registry.exchanges, self.queues)
        self._closed_inflow.add(channel.inflow)
        self._closed_outflow.add(channel.outflow)
        self._closed_acknowledged += channel.outflow.acknowledged(0)

    @property
    def channels(self) -> list[Channel]:
        return [channel for session in self.sessions for channel in session.channels.values()]

    def traffic(self) -> Steps[Traffic]:
        """Return the traffic of all exchanges so far."""
        traffic = self._closed_traffic.copy()
        for channel in self.channels:
            for tally in list(channel.ways.tallies):
                traffic.add(tally)
                yield
        return traffic

    def flows(self) -> Steps[tuple[Inflow, Outflow, int]]:
        """Return what was published, what was delivered, and the number of acknowledged messages."""
        inflow, outflow, acknowledged = Inflow(), Outflow(), self._closed_acknowledged
        inflow.add(self._closed_inflow)
        outflow.add(self._closed_outflow)
        for channel in self.channels:
            inflow.add(channel.inflow)
            outflow.add(channel.outflow)
            acknowledged += channel.outflow.acknowledged(channel.unsettled_count)
            yield
        return inflow, outflow, acknowledged

    @property
    def on_disk_id(self) -> int:
        return self.broker.on_disk_id

    @property
    def sealed_id(self) -> int:
        return self.broker.sealed_id

    def mark_later(self, queue: MessageQueue, lane: Lane) -> None:
        self.broker.marking.append((queue, lane))

    def mark_wanted(self, lane: Lane) -> None:
        self.broker.wanted_marks.append(lane)

    def starve(self, queue: ServedQueue) -> None:
        self.broker.starved[queue] = None

    def unsettled(self, queue: ServedQueue) -> list[QueuedMessage]:
        if not queue.unsettled:
            return []
        return [message for channel in self.channels for message in channel.messages_of(queue)]


def _ignore(*_: bool) -> None:
    """Do nothing: nobody waits for the confirm of a dead letter."""


def _free(messages: deque[QueuedMessage]) -> Steps[None]:
    while messages:
        for _ in range(min(FREED_AT_ONCE, len(messages))):
            messages.pop()
        yield
