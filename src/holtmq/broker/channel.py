"""What a client does with messages on one channel: publish, consume, acknowledge; with confirms or in transactions."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, count, repeat, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from holtmq.broker.chores import Chore
from holtmq.broker.confirms import Confirms
from holtmq.broker.consumer import Consumer
from holtmq.broker.declarer import Declarer
from holtmq.broker.dying import READ_BYTES, Contents, contents_of
from holtmq.broker.fan_out import FanOut
from holtmq.broker.ports import NoOutlet, Outlet
from holtmq.broker.publication import Destination, Publication
from holtmq.broker.queue import MessageQueue
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.broker.reply import REPLY_QUEUE, ReplyDestination
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.settlement import ACK, REJECT, REQUEUE, Settlement
from holtmq.broker.stream_queue import StreamQueue
from holtmq.broker.stream_row import StreamRow
from holtmq.broker.traffic import Inflow, Outflow, Way
from holtmq.broker.transaction import Transaction
from holtmq.broker.ways import Ways
from holtmq.errors import (
    NotAllowedError,
    NotImplementedByBrokerError,
    PreconditionFailedError,
    StoreError,
)
from holtmq.queueing.terms import parse_expiration
from holtmq.routing.route import Entry
from holtmq.steps import Steps, complete, nothing
from holtmq.table import FieldValue, describe
from holtmq.wire.content import OVERHEAD_WITHOUT_PROPERTIES, Content, Properties, encode_properties, sizes_of
from holtmq.wire.tables import drop_field

if TYPE_CHECKING:
    from holtmq.broker.session import Session


Delivery: TypeAlias = tuple[QueuedMessage, ServedQueue, Consumer | None]
"""An unacknowledged message: without a consumer if it was fetched by `get`."""
NOWHERE = NoOutlet()
ANY_OF_STREAM = QueuedMessage(0, Origin("", ""), Properties(bytes(2)), b"", 0, 1)
"""Stands for an unacknowledged message of a stream: acknowledging one gives credit, whichever it is."""
SETTLED_AT_ONCE = 100
"""Messages that a client can requeue or reject together without waiting for a chore."""
COMMITTED_AT_ONCE = 1000
"""Messages and acknowledgements of a transaction that is committed without a chore."""


class Fetched(NamedTuple):
    """The result of `get`."""

    tag: int
    message: QueuedMessage
    is_redelivered: bool
    remaining: int


class Channel:
    def __init__(self, session: Session, number: int, outlet: Outlet) -> None:
        self.session = session
        self.number = number
        self.subject = f"channel {number} of {session.user.name!r}"
        """The channel in words, for the log."""
        self.outlet = outlet
        self.vhost = session.vhost
        self.broker = session.broker
        self.declarer = Declarer(session)
        self.consumers: dict[str, Consumer] = {}
        self.unsettled: dict[int, Delivery] = {}
        self._settling: deque[tuple[Delivery, Settlement]] = deque()
        """Messages that are being settled in steps."""
        self._fan_outs: deque[FanOut] = deque()
        """Messages that are entering many queues in steps."""
        self._unfinished: deque[Callable[[], Steps[None]]] = deque()
        """What takes long, and the client must wait for."""
        self._chore: Chore | None = None
        self.prefetch = 0
        """Maximum number of unacknowledged messages of all consumers together; 0 means unlimited."""
        self.in_flight = 0
        self.confirms = Confirms(outlet)
        self._is_confirming = False
        self._has_rejected = False
        """Whether a full queue rejected a message of the current transaction."""
        self.ways = Ways(session, self.subject)
        self.outflow = Outflow()
        self.returned = 0
        """Mandatory messages that were returned as unroutable."""
        self._next_tag = 1
        self.consumer_prefetch = 0
        """The prefetch of consumers added from now on; 0 means unlimited."""
        self.transaction: Transaction | None = None
        self._reply: ReplyDestination | None = None
        self._is_counted = False
        """Whether the vhost has the counters of this channel, which is closed."""
        self.known_properties = session.broker.properties
        """Decoded properties by their bytes, shared by all channels."""

    def publication(self, exchange: str, routing_key: str, *, is_mandatory: bool) -> Publication:
        """Return a handle for publishing with this exchange and key, after a check of the user's permissions."""
        publication = Publication(self, Origin(exchange, routing_key), is_mandatory=is_mandatory)
        self.ways.resolve(publication)
        return publication

    def put(self, publication: Publication, properties: Properties, contents: Sequence[Content], way: Way) -> None:
        """Put messages into their queues and count them. On the hot path: see benchmarks/broker.py."""
        broker, (destinations, entries, tally) = self.broker, way
        tally.count += len(contents)
        origin, copies, is_confirming = publication.origin, len(destinations), self._is_confirming
        only = destinations[0] if copies == 1 and not entries else None
        later: Sequence[Content] = ()
        if only is None and (now := broker.at_once(copies, len(contents))) < len(contents):
            contents, later = contents[:now], contents[now:]
        if len(contents) > 1 and self._put_together(origin, properties, contents, way):
            contents = ()
        overhead = OVERHEAD_WITHOUT_PROPERTIES + len(properties.raw)
        for content in contents:
            broker.last_id = message_id = broker.last_id + 1
            size = len(content) - overhead
            message = QueuedMessage(message_id, origin, properties, content, max(0, size), copies)
            if only is not None:
                is_taken = only.put(message)
            elif destinations:
                is_taken = self._put_into(destinations, message, entries)
            else:
                is_taken = True
                if publication.is_mandatory:
                    self.returned += 1
                    self.outlet.give_back(message)
            if is_confirming:
                self._await_confirms(1, is_taken=is_taken, is_stored=message.stored is not None)
            elif not is_taken:
                self._has_rejected = True
        if later:
            self._fan_out(FanOut(broker, origin, properties, later, destinations, entries, self._fanned_out))

    def _put_into(self, destinations: Sequence[Destination], message: QueuedMessage, entries: Mapping[str, Entry]) -> bool:
        """Put a message into several queues. Return whether all of them took it."""
        self.broker.expect(destinations, message.properties, message.size)
        is_taken = True
        for destination in destinations:
            is_taken &= destination.put(message, entries.get(destination.name))
        return is_taken

    def _put_together(self, origin: Origin, properties: Properties, contents: Sequence[Content], way: Way) -> bool:
        """Put messages into queues that take all of them without a decision for each. Return False if there is another one.

        With rules, a message may cause others with newer ids, so that each must be in its queues before the next gets its id.
        """
        broker, destinations, number = self.broker, way.destinations, len(contents)
        copies = len(destinations)
        if way.entries or not copies or not _take_all(destinations, properties):
            return False
        sizes = sizes_of(properties.raw, contents)
        size = sum(sizes)
        if copies > 1 and broker.expect(destinations, properties, size, number) and not _take_all(destinations, properties):
            return False
        messages = [
            QueuedMessage(message_id, origin, properties, content, size_of_one, copies)
            for message_id, content, size_of_one in zip(count(broker.last_id + 1), contents, sizes, strict=False)
        ]
        broker.last_id += number
        for destination in destinations:
            destination.put_all(messages, size)
        if self._is_confirming:
            self._await_confirms(number, is_taken=True, is_stored=messages[0].stored is not None)
        return True

    def put_committed(self, publication: Publication, properties: Properties, contents: Sequence[Content], way: Way) -> None:
        """Put messages of a transaction into those of their queues that still exist."""
        left = [destination for destination in way.destinations if not destination.is_deleted]
        if len(left) < len(way.destinations):
            way = self.ways.tallied(publication.origin.exchange, left, way.entries)
        self.put(publication, properties, contents, way)

    def _fan_out(self, fan_out: FanOut) -> None:
        self._fan_outs.append(fan_out)
        self.session.fanning_out += fan_out.memory
        self._do_in_steps("publishing to many queues", self._fan_out_all)

    def _fan_out_all(self) -> Steps[None]:
        while self._fan_outs:
            fan_out = self._fan_outs[0]
            yield from fan_out.go_on()
            if self._fan_outs and self._fan_outs[0] is fan_out:
                self._fan_outs.popleft()
                self.session.fanning_out -= fan_out.memory

    def _fanned_out(self, is_taken: bool, is_stored: bool) -> None:  # noqa: FBT001
        if self._is_confirming:
            self._await_confirms(1, is_taken=is_taken, is_stored=is_stored)
        elif not is_taken:
            self._has_rejected = True

    def _await_confirms(self, number: int, *, is_taken: bool, is_stored: bool) -> None:
        confirms = self.confirms
        confirms.published += number
        if not is_taken:
            confirms.refuse()
        elif is_stored:
            confirms.journal_batch = self.broker.journal.batch
        if not confirms.is_waiting:
            confirms.is_waiting = True
            self.broker.unconfirmed.append(confirms)

    def look_closer(self, publication: Publication, properties: Properties) -> tuple[Properties, Way]:
        """Handle the properties that affect routing: user_id, expiration, CC and BCC headers, reply_to.

        Return the properties that consumers are to see, and the way of the message.
        """
        parse_expiration(properties.expiration)
        user = self.session.user
        if properties.user_id and properties.user_id != user.name and "impersonator" not in user.tags:
            raise PreconditionFailedError(
                f"user_id property set to {properties.user_id!r} but authenticated user was {user.name!r}"
            )
        way = self.ways.with_headers(publication, properties)
        changes: dict[str, object] = {}
        if properties.adds_keys and "BCC" in properties.headers:
            changes["headers"] = drop_field(properties.raw_headers(), "BCC")
        if properties.reply_to == REPLY_QUEUE:
            changes["reply_to"] = self._require_reply().name
        if changes:
            headers = properties.raw_headers() if properties.has_headers else None
            properties = Properties(encode_properties({**properties.without_headers(), "headers": headers, **changes}))
        return properties, way

    def _require_reply(self) -> ReplyDestination:
        if self._reply is None or self._reply.consumer is None:
            raise PreconditionFailedError("fast reply consumer does not exist: expected a consumer of amq.rabbitmq.reply-to")
        return self._reply

    def select_confirms(self) -> None:
        if self.transaction is not None:
            raise PreconditionFailedError("cannot switch from tx to confirm mode")
        self.confirms.is_selected = self._is_confirming = True

    def set_prefetch(self, count: int, *, is_global: bool) -> None:
        if not is_global:
            self.consumer_prefetch = count
            return
        self.prefetch = count
        self.resume()

    def resume(self) -> None:
        """Resume deliveries after the client's credit has grown."""
        for consumer in self.consumers.values():
            if not isinstance(consumer.queue, ReplyDestination):
                self.vhost.wake(consumer.queue)

    def consume(
        self,
        queue_name: str,
        tag: str,
        *,
        is_auto_ack: bool,
        is_exclusive: bool,
        arguments: Mapping[str, FieldValue],
    ) -> str:
        """Start a consumer and return its tag."""
        if tag in self.consumers:
            raise NotAllowedError(f"attempt to reuse consumer tag {tag!r}")
        tag = tag or f"amq.ctag-{secrets.token_urlsafe(16)}"
        if queue_name == REPLY_QUEUE:
            return self._consume_replies(tag, is_auto_ack=is_auto_ack)
        queue = self.declarer.readable_queue(queue_name)
        priority = arguments.get("x-priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise PreconditionFailedError(
                f"invalid arg 'x-priority' for consumer: expected an integer, got {describe(priority)}"
            )
        consumer = Consumer(
            self.broker.next_number(),
            tag,
            self,
            queue,
            is_auto_ack=is_auto_ack,
            is_exclusive=is_exclusive,
            priority=priority,
            prefetch=self.consumer_prefetch,
            arguments=arguments,
        )
        queue.add_consumer(consumer)
        self.consumers[tag] = consumer
        self.session.consumers += consumer.memory
        return tag

    def _consume_replies(self, tag: str, *, is_auto_ack: bool) -> str:
        if not is_auto_ack:
            raise PreconditionFailedError("reply consumer cannot acknowledge: expected no_ack")
        if self._reply is not None and self._reply.consumer is not None:
            raise PreconditionFailedError("reply consumer already set")
        if self._reply is None:
            self._reply = ReplyDestination(f"{REPLY_QUEUE}.{secrets.token_urlsafe(24)}")
            self.vhost.replies[self._reply.name] = self._reply
        consumer = self._reply.consumer = self.consumers[tag] = Consumer(
            self.broker.next_number(), tag, self, self._reply,
            is_auto_ack=True, is_exclusive=False, priority=0, prefetch=0,
        )  # fmt: skip
        self.session.consumers += consumer.memory
        return tag

    def cancel(self, tag: str) -> None:
        """Cancel a consumer. Its unacknowledged messages stay unacknowledged. An unknown tag is ignored."""
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        self.session.consumers -= consumer.memory
        if isinstance(consumer.queue, ReplyDestination):
            consumer.queue.consumer = None
        else:
            consumer.queue.remove_consumer(consumer)

    def deliver(self, consumer: Consumer, messages: list[QueuedMessage], redelivered: Collection[int]) -> None:
        """Deliver messages of a queue to a consumer of this channel."""
        first, queue, number = self._next_tag, consumer.queue, len(messages)
        assert not isinstance(queue, ReplyDestination)
        self._next_tag += number
        self.outlet.deliver(consumer, first, queue.as_delivered(messages), redelivered)
        if redelivered:
            again = sum(message.id in redelivered for message in messages)
            self.outflow.redelivered += again
            queue.outflow.redelivered += again
        if consumer.is_auto_ack:
            self.outflow.sent += number
            queue.outflow.sent += number
            queue.sent(messages)
            return
        queue.hold(messages)
        self.outflow.delivered += number
        queue.outflow.delivered += number
        deliveries = zip(messages, repeat(queue), repeat(consumer), strict=False)
        self.unsettled.update(zip(range(first, self._next_tag), deliveries, strict=False))
        consumer.in_flight += number
        self.in_flight += number

    def deliver_row(self, consumer: Consumer, row: StreamRow) -> None:
        """Deliver messages of a stream to a consumer of this channel. On the hot path: see benchmarks/streams.py."""
        first, queue, number = self._next_tag, consumer.queue, len(row.bodies)
        assert isinstance(queue, StreamQueue)
        self._next_tag += number
        self.outlet.deliver_row(consumer, first, row)
        queue.hold_row(number)
        self.outflow.delivered += number
        queue.outflow.delivered += number
        self.unsettled.update(zip(range(first, self._next_tag), repeat((ANY_OF_STREAM, queue, consumer)), strict=False))
        consumer.in_flight += number
        self.in_flight += number

    def send_reply(self, consumer: Consumer, message: QueuedMessage) -> None:
        self.outlet.deliver(consumer, self._next_tag, (message,), ())
        self.outflow.sent += 1
        self._next_tag += 1

    def get(self, queue_name: str, *, is_auto_ack: bool) -> Fetched | None:
        """Return the next message of a queue, or None if there is none, or if it is being read from the store.

        In the latter case, the queue `is_reading`, and `when_read` says when to try again.
        """
        queue = self.declarer.readable_messages(queue_name, "basic.get")
        queue.use()
        messages = queue.take(1)
        self.vhost.wake(queue)
        flows = (self.outflow, queue.outflow)
        if not messages:
            if queue.is_reading:
                return None
            for flow in flows:
                flow.fetched_in_vain += 1
            return None
        message, tag = messages[0], self._next_tag
        self._next_tag += 1
        (shown,) = queue.as_delivered([message.copy()] if message.is_restored else messages)
        fetched = Fetched(tag, shown, queue.redelivered(message), queue.message_count)
        for flow in flows:
            flow.fetched += not is_auto_ack
            flow.fetched_for_good += is_auto_ack
            flow.redelivered += fetched.is_redelivered
        self.session.needs_marks = max(self.session.needs_marks, queue.fetched(message))
        if is_auto_ack:
            queue.sent(messages)
        else:
            self.unsettled[tag] = (message, queue, None)
            queue.hold(messages)
        return fetched

    def is_reading(self, queue_name: str) -> bool:
        """Return whether the next message of a queue is being read from the store."""
        return self.declarer.readable_messages(queue_name, "basic.get").is_reading

    def when_read(self, queue_name: str, call: Callable[[], None]) -> None:
        """Call a function when another `get` may return a message, unless the channel is closed. The client waits meanwhile."""
        chore = Chore("getting a message", self.subject, nothing)
        outlet = self.outlet

        def go_on() -> None:
            with self.broker.internal_errors.contain(chore.name, chore.subject):
                if self.outlet is outlet:
                    call()
            chore.finish()  # if it waits again, the client has not been read in between

        self.declarer.readable_messages(queue_name, "basic.get").when_read(go_on)
        self.session.wait_for(chore)

    def stream(self, queue_name: str) -> StreamQueue:
        """Return a stream to read from, after a check of the user's permissions."""
        queue = self.declarer.readable_queue(queue_name)
        if not isinstance(queue, StreamQueue):
            raise PreconditionFailedError(
                f"queue {queue.name!r} in vhost {self.vhost.name!r} has no offsets: expected a stream"
            )
        return queue

    def move(self, source_name: str, target_name: str, limit: int) -> int:
        """Move messages between queues, after a check of the user's permissions. Return their number."""
        source, target = self.declarer.readable_messages(source_name, "moving messages"), self.declarer.queue(target_name)
        self.session.require("write", "queue", target.name)
        return self.vhost.move(source, target, limit)

    def ack(self, tag: int, *, multiple: bool) -> None:
        if not multiple:
            self.ack_each((tag,))
            return
        deliveries = self._take_unsettled(tag, multiple=True)
        if self.transaction is not None or not self._ack_row(list(deliveries.values())):
            self._settle(deliveries, ACK)

    def _ack_row(self, deliveries: list[Delivery]) -> bool:
        """Acknowledge messages that one consumer has received from a stream, in one go. Return whether they are such messages.

        On the hot path: see benchmarks/streams.py.
        """
        number = len(deliveries)
        if not number or deliveries[0][0] is not ANY_OF_STREAM or deliveries.count(deliveries[0]) < number:
            return False
        _, queue, consumer = deliveries[0]
        assert isinstance(queue, StreamQueue)
        assert consumer is not None
        queue.settle_row(number)
        consumer.in_flight -= number
        self.in_flight -= number
        if not queue.is_awake:
            self.vhost.wake(queue)
        return True

    def ack_each(self, tags: Sequence[int]) -> None:
        """Acknowledge several deliveries. On the hot path: see benchmarks/broker.py."""
        if self.transaction is not None:
            for tag in tags:
                self._settle(self._take_unsettled(tag, multiple=False), ACK)
            return
        unsettled = self.unsettled
        for tag in tags:
            delivery = unsettled.pop(tag, None)
            if delivery is None:
                raise _unknown(tag)
            message, queue, consumer = delivery
            queue.settle(message)
            if consumer is not None:
                consumer.in_flight -= 1
                self.in_flight -= 1
                if not queue.is_awake:
                    self.vhost.wake(queue)

    def reject(self, tag: int, *, multiple: bool, requeue: bool) -> None:
        """Requeue messages, or dead-letter them."""
        settlement = REQUEUE if requeue else REJECT
        self._settle(self._take_unsettled(tag, multiple=multiple), settlement)

    @property
    def unsettled_count(self) -> int:
        return (
            len(self.unsettled) + len(self._settling) + (self.transaction.settled_count if self.transaction is not None else 0)
        )

    @property
    def is_transactional(self) -> bool:
        return self.transaction is not None

    @property
    def has_uncommitted(self) -> bool:
        """Whether anything was published or settled in the current transaction."""
        return self.transaction is not None and bool(self.transaction.publishes or self.transaction.settlements)

    @property
    def uncommitted(self) -> int:
        """Messages published in the current transaction."""
        return self.transaction.published if self.transaction is not None else 0

    @property
    def inflow(self) -> Inflow:
        """Counters of the messages published on this channel."""
        unroutable = sum(tally.count for tally in self.ways.tallies if not tally.copies)
        published = sum(tally.count for tally in self.ways.tallies)
        return Inflow(published, self.confirms.confirmed, self.returned, unroutable - self.returned)

    def recover(self, *, requeue: bool) -> None:
        """Requeue all unacknowledged messages."""
        if not requeue:
            raise NotImplementedByBrokerError("basic.recover without requeue: expected requeue")
        unsettled, self.unsettled = self.unsettled, {}
        self._apply_in_steps(unsettled, REQUEUE)

    def _take_unsettled(self, tag: int, *, multiple: bool) -> dict[int, Delivery]:
        if multiple and tag == 0:
            taken, self.unsettled = self.unsettled, {}
            return taken
        if tag not in self.unsettled:
            raise _unknown(tag)
        if not multiple:
            return {tag: self.unsettled.pop(tag)}
        take = self.unsettled.pop
        return {one: take(one) for one in list(takewhile(tag.__ge__, self.unsettled))}  # in the order of their tags

    def _settle(self, deliveries: dict[int, Delivery], settlement: Settlement) -> None:
        if self.transaction is None:
            self._apply_in_steps(deliveries, settlement)
        else:
            self.transaction.settlements.append((deliveries, settlement))

    def _apply_in_steps(self, deliveries: dict[int, Delivery], settlement: Settlement) -> None:
        """Settle messages, in steps if they are many. The client must wait for the chore before it goes on.

        If they are few and may die, but must be read before, they are settled when that is done.
        """
        if len(deliveries) <= SETTLED_AT_ONCE:
            if released := self._to_be_read([(deliveries, settlement)]):
                self._settling.extend((delivery, settlement) for delivery in deliveries.values())
                self._do_when_read(released, "settling messages", self._settle_all)
            else:
                self._apply(deliveries, settlement)
            return
        self._settling.extend((delivery, settlement) for delivery in deliveries.values())
        self._do_in_steps("settling messages", self._settle_all)

    def _settle_all(self) -> Steps[None]:
        while self._settling:  # those in it still count as unacknowledged
            self._settle_one(*self._settling.popleft())
            yield

    def _do_in_steps(self, what: str, begin: Callable[[], Steps[None]]) -> None:
        """Do something that takes long after whatever is unfinished. The client must wait for it.

        `begin` returns the steps that are left, also when others have done some of them.
        """
        self._unfinished.append(begin)
        if len(self._unfinished) > 1:
            return
        self._chore = self.broker.chores.add(what, self.subject, self.finish)
        if not self._chore.is_done:
            self.session.wait_for(self._chore)

    @property
    def chore(self) -> Chore | None:
        """What the client must wait for, if there is anything."""
        return self._chore if self._unfinished else None

    def finish(self) -> Steps[None]:
        """Do the rest of what the client must wait for."""
        while self._unfinished:
            begin = self._unfinished[0]
            yield from begin()
            if self._unfinished and self._unfinished[0] is begin:
                self._unfinished.popleft()

    def _apply(self, deliveries: dict[int, Delivery], settlement: Settlement) -> None:
        """Settle messages. If that fails for one of them, the rest stays unacknowledged."""
        left = iter(deliveries.items())
        try:
            for _, delivery in left:
                self._settle_one(delivery, settlement)
        except Exception:
            self.unsettled = dict(sorted({**dict(left), **self.unsettled}.items()))
            raise

    def _settle_one(self, delivery: Delivery, settlement: Settlement) -> None:
        message, queue, consumer = delivery
        if consumer is not None:
            consumer.in_flight -= 1
            self.in_flight -= 1
        if settlement is ACK:
            queue.settle(message)
        elif settlement is REQUEUE:
            queue.take_back(message)
            self.outflow.requeued += 1
        else:
            queue.reject(message)
            self.outflow.rejected += 1
        if not queue.is_awake:
            self.vhost.wake(queue)

    def messages_of(self, queue: ServedQueue) -> list[QueuedMessage]:
        """Return the unacknowledged messages of a queue."""
        settled = self.transaction.settled if self.transaction is not None else {}
        settling = (delivery for delivery, _ in self._settling)
        deliveries = chain(self.unsettled.values(), settled.values(), settling)
        return [message for message, its_queue, _ in deliveries if its_queue is queue]

    def select_transactions(self) -> None:
        if self.confirms.is_selected:
            raise PreconditionFailedError("cannot switch from confirm to tx mode")
        self.transaction = self.transaction or Transaction()

    def commit(self) -> None:
        """Apply the transaction in one batch of the journal, which is written to disk as a whole.

        A large one is applied in steps. If messages are rejected whose contents must be read, it is applied when that is
        done, unless they are large: their dead letters then follow in later batches. In both cases, the caller must call
        `require_committed` when there is no `chore` any more.
        """
        transaction = self._require_transaction()
        self._has_rejected = False
        if released := self._to_be_read(transaction.settlements):
            self.count_uncommitted(sum([message.size for message in released]))
            self._do_when_read(released, "committing a transaction", self._commit_all)
        elif transaction.copies + transaction.settled_count > COMMITTED_AT_ONCE:
            self._do_in_steps("committing a transaction", self._commit_all)
        else:
            self._unfinished.append(self._commit_all)
            complete(self.finish())
        if self.chore is None:
            self.require_committed()

    def _to_be_read(self, settlements: Iterable[tuple[dict[int, Delivery], Settlement]]) -> list[QueuedMessage]:
        """Return the messages that may die when they are settled, and whose contents must be read before.

        If they are too large to be held in memory together, return none: their queues read them piece by piece.
        """
        if self._unfinished:
            return []
        released = [
            message
            for deliveries, settlement in settlements
            if settlement is not ACK
            for message, queue, _ in deliveries.values()
            if isinstance(queue, MessageQueue) and queue.must_read(message, is_requeued=settlement is REQUEUE)
        ]
        return released if sum([message.size for message in released]) <= READ_BYTES else []

    def _do_when_read(self, released: list[QueuedMessage], what: str, begin: Callable[[], Steps[None]]) -> None:
        """Read messages, and do something then. Their dead letters are in the same batch, and the client finds them."""
        self._unfinished.append(begin)
        chore = self._chore = Chore(what, self.subject, self.finish)

        def go_on(answer: Contents | StoreError) -> None:
            contents = [] if isinstance(answer, StoreError) else answer[0]
            for message, (content, damage) in zip(released, contents, strict=False):
                if damage is None:  # its queue handles damage, and what cannot be read
                    message.content = content
            self.broker.chores.start(chore)

        self.broker.reads.ask(partial(contents_of, self.broker.journal, released), go_on)
        if not chore.is_done:
            self.session.wait_for(chore)

    def _commit_all(self) -> Steps[None]:
        transaction = self._require_transaction()
        self.broker.committing.add(transaction)  # the journal's batch must not end before it is applied
        try:
            yield from self._apply_all(transaction)
        except Exception:
            self.broker.committing.discard(transaction)  # other clients wait for the batch
            raise
        self._end_transaction()

    def _apply_all(self, transaction: Transaction) -> Steps[None]:
        journal = self.broker.journal
        yield from self._fan_out_all()
        while transaction.publishes:
            with journal.together():
                transaction.publishes.popleft()()
            yield from self._fan_out_all()
            yield
        while transaction.settlements:
            deliveries, settle = transaction.settlements.popleft()
            self._settling.extend((delivery, settle) for delivery in deliveries.values())
        while self._settling:
            with journal.together():
                self._settle_one(*self._settling.popleft())
            yield

    def require_committed(self) -> None:
        """Raise if a queue has rejected a message of the last transaction. The rest of it is done, as in RabbitMQ."""
        if self._has_rejected:
            raise PreconditionFailedError("partial tx completion: a full queue rejected a message")

    def _end_transaction(self) -> None:
        assert self.transaction is not None
        self.broker.committing.discard(self.transaction)
        self.count_uncommitted(-self.transaction.size)
        self.transaction = Transaction()

    def roll_back(self) -> None:
        """Discard the transaction. Messages acknowledged in it become unacknowledged again."""
        transaction = self._require_transaction()
        self.unsettled = dict(sorted({**transaction.settled, **self.unsettled}.items()))
        self._end_transaction()

    def count_uncommitted(self, size: int) -> None:
        """Count the bytes that the transaction takes."""
        assert self.transaction is not None
        self.transaction.size += size
        self.session.uncommitted += size

    def _require_transaction(self) -> Transaction:
        if self.transaction is None:
            raise PreconditionFailedError("channel is not transactional: expected tx.select before")
        return self.transaction

    def shut(self) -> None:
        """Send nothing more to the client."""
        self.outlet = self.confirms.outlet = NOWHERE

    def close(self) -> Steps[None]:
        """Cancel all consumers and requeue all unacknowledged messages, oldest first, whatever fails on the way."""
        errors = self.broker.internal_errors
        yield from self.finish()
        if self.transaction is not None:
            self.roll_back()
        for tag in list(self.consumers):
            with errors.contain("cancelling a consumer", f"consumer {tag!r}"):
                self.cancel(tag)
            yield
        self.unsettled = dict(reversed(self.unsettled.items()))
        while self.unsettled:  # a message leaves it when it is requeued: those in it still count as unacknowledged
            _, delivery = self.unsettled.popitem()
            try:
                self._settle_one(delivery, REQUEUE)
            except Exception:  # noqa: BLE001  # contained: it is reported
                errors.report("requeueing a message", f"queue {delivery[1].name!r}")
            yield
        if self._reply is not None:
            self.vhost.replies.pop(self._reply.name, None)
        if not self._is_counted:
            self._is_counted = True
            self.vhost.count_closed(self)
            self.ways.close()


def _take_all(destinations: Sequence[Destination], properties: Properties) -> bool:
    return all(destination.takes_all(properties) for destination in destinations)


def _unknown(tag: int) -> PreconditionFailedError:
    return PreconditionFailedError(f"unknown delivery tag {tag}")
