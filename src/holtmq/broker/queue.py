"""A queue at work: messages come in at the end and go out at the front, to consumers in turn.

Its state is what a consumer could still get. What must outlive the process goes to the journal as it happens; what does not
fit into the window in memory is left to the journal altogether and read again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple, Protocol

from holtmq.broker.consumer import Consumer
from holtmq.broker.lane import Lane
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.traffic import Outflow
from holtmq.errors import AccessRefusedError
from holtmq.queueing.rules import QueueRules, parse_expiration
from holtmq.routing.route import Entry
from holtmq.store.ports import JournalPort
from holtmq.store.records import StoredRow
from holtmq.topology import Queue

if TYPE_CHECKING:
    from holtmq.broker.session import Session

WINDOW_BYTES = 16 * 1024 * 1024
WINDOW_MESSAGES = 20_000
"""How much a queue keeps in memory of what waits; a tenth of it where the broker as a whole is short of memory."""
CROWD_MESSAGES = 5_000
CROWD_BYTES = 4 * 1024 * 1024
BUSY_MESSAGES = 20
BUSY_BYTES = 512 * 1024
BUSY_MS = 50
"""Where so many wait although consumers took so many at once not long ago, publishers are asked to step back for a moment."""
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1024 * 1024
"""How much is handed to consumers at once, before it is asked again whether they keep up."""


class Terms(NamedTuple):
    """What is particular about a message in this queue."""

    expires_at: int | None
    priority: int


class Host(Protocol):
    """What a queue needs of the vhost that it is in."""

    @property
    def journal(self) -> JournalPort: ...
    @property
    def now_ms(self) -> int: ...
    @property
    def is_short_of_memory(self) -> bool: ...
    def wake(self, queue: MessageQueue) -> None:
        """Ask for `dispatch` before the turn ends."""

    def starve(self, queue: MessageQueue) -> None:
        """Ask for `wake` when more of the journal is on disk."""

    def schedule(self, queue: MessageQueue, at_ms: int) -> None:
        """Ask for `on_time` at a time."""

    def restore(self, row: StoredRow) -> QueuedMessage: ...
    def bury(self, message: QueuedMessage, queue: MessageQueue, reason: str) -> None:
        """A message dies here: send it on to where dead letters go, if the queue says where."""

    def delete_queue(self, queue: MessageQueue) -> int:
        """Delete a queue that nobody uses any more."""

    def unsettled_ids(self, queue: MessageQueue) -> Collection[int]:
        """The ids of its messages that consumers hold."""


class MessageQueue:
    def __init__(self, declared: Queue, queue_id: int, rules: QueueRules, host: Host, owner: Session | None) -> None:
        self.declared = declared
        self.name = declared.name
        self.id = queue_id
        self.owner = owner
        """The connection that an exclusive queue belongs to."""
        self.consumers: list[Consumer] = []
        self.unsettled = 0
        self.outflow = Outflow()
        self.dropped = 0
        """How many messages died before anybody had them: too old, too many, purged."""
        self.is_awake = False
        self.is_deleted = False
        self.delivered_to = 0
        """In a file from before, messages up to this id may have been seen by a consumer."""
        self._host = host
        self._journal = host.journal
        self._is_durable = declared.durable
        self._terms: dict[int, Terms] = {}
        self._returns: dict[int, int] = {}
        """How often each message came back, for those that did."""
        self._memory = 0
        self._counted_memory = 0
        self._paged_bytes = 0
        self._recovered = 0
        self._turn = 0
        self._busy_until = 0
        self._timer: int | None = None
        self._used_at = host.now_ms
        self._is_use_watched = False
        self._lanes: list[Lane] = []
        self.apply(rules)

    def apply(self, rules: QueueRules) -> None:
        """Follow these rules from now on; the number of priorities is settled for good when the queue is declared."""
        self.rules = rules
        if not self._lanes:
            self._lanes = [Lane(priority) for priority in range(rules.max_priority, -1, -1)]
            self._ready = self._lanes[-1].ready
        self._has_rules = bool(rules.max_priority or rules.message_ttl_ms is not None or rules.limits_length)
        self._is_simple = False
        self._settle_pace()
        self._watch_use()
        self._drop_excess()

    @property
    def message_count(self) -> int:
        """Ready messages."""
        return sum(map(len, self._lanes))

    @property
    def messages_in_memory(self) -> int:
        return sum(len(lane) - lane.paged for lane in self._lanes)

    @property
    def memory(self) -> int:
        """The bytes of bodies that it keeps in memory."""
        return self._memory

    @property
    def active_tag(self) -> str | None:
        """The consumer that alone gets messages, in a queue with a single active one."""
        return self._active().tag if self.rules.is_single_active and self.consumers else None

    @property
    def acknowledged(self) -> int:
        return self.outflow.acknowledged(self.unsettled)

    @property
    def arrived(self) -> int:
        """How many messages were put here since the broker started."""
        flow = self.outflow
        gone = self.acknowledged + flow.sent + flow.fetched_for_good + flow.rejected + self.dropped
        return self.message_count + self.unsettled + gone - self._recovered

    @property
    def is_crowded(self) -> bool:
        """Whether many wait although consumers take a lot."""
        is_long = len(self._lanes[-1]) > CROWD_MESSAGES or self.message_bytes > CROWD_BYTES
        return is_long and self._host.now_ms < self._busy_until

    def uncounted_memory(self) -> int:
        """By how many bytes of bodies in memory it grew since this was last asked."""
        growth, self._counted_memory = self._memory - self._counted_memory, self._memory
        return growth

    def wake(self) -> None:
        self._host.wake(self)

    @property
    def message_bytes(self) -> int:
        return self._memory + self._paged_bytes

    def recover(self, counts: dict[int, int], bytes_in_file: int, delivered_to: int, next_expiry: int | None) -> None:
        """Take over what the file has, by priority."""
        for lane in self._lanes:
            lane.paged = counts.get(lane.priority, 0)
        self._paged_bytes, self.delivered_to, self._is_simple = bytes_in_file, delivered_to, False
        self._recovered = self.message_count
        if next_expiry is not None:
            self._set_timer(next_expiry)

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool:
        """Take a message at the end of its lane; False where the queue is full and refuses it.

        The first branch is the hot path: one lane, no rules, all in memory (benchmarks/broker.py).
        """
        if self._is_simple and entry is None and not message.properties.has_terms:
            self._ready.append(message)
            self._memory += message.size
            if self._is_durable and message.properties.is_persistent:
                self._journal.add(message, self.id, 0, None, is_paged=False)
            if not self.is_awake:
                self._host.wake(self)
            return True
        return self._put_by_rules(message, entry)

    def _put_by_rules(self, message: QueuedMessage, entry: Entry | None) -> bool:
        if self.rules.overflow != "drop-head" and self._is_full(message.size):
            self.dispatch()
            if self._is_full(message.size):
                if self.rules.overflow == "reject-publish-dlx":
                    self._host.bury(message, self, "maxlen")
                return False
        terms = self._terms_of(message, entry)
        lane = self._lanes[self.rules.max_priority - terms.priority]
        is_paged = lane.paged > 0 or self._is_window_full()
        if is_paged:
            lane.page(message)
            self._paged_bytes += message.size
        else:
            lane.ready.append(message)
            self._memory += message.size
            if terms.expires_at is not None or terms.priority:
                self._terms[message.id] = terms
        if is_paged or (self._is_durable and message.properties.is_persistent):
            self._journal.add(message, self.id, terms.priority, terms.expires_at, is_paged=is_paged)
        if terms.expires_at is not None:
            self._set_timer(terms.expires_at)
        if not self.is_awake:
            self._host.wake(self)
        if self.rules.limits_length and self._is_too_long():
            self.dispatch()
            self._drop_excess()
        return True

    def _terms_of(self, message: QueuedMessage, entry: Entry | None) -> Terms:
        """The message's own priority and time to live come before those of the binding it came by; of times to live,
        the queue's own is a limit to all."""
        properties, rules = message.properties, self.rules
        priority, ttl_ms = properties.priority, parse_expiration(properties.expiration)
        if entry is not None:
            priority = entry.priority if priority is None else priority
            ttl_ms = entry.ttl_ms if ttl_ms is None else ttl_ms
        if rules.message_ttl_ms is not None:
            ttl_ms = rules.message_ttl_ms if ttl_ms is None else min(ttl_ms, rules.message_ttl_ms)
        expires_at = None if ttl_ms is None else self._host.now_ms + ttl_ms
        return Terms(expires_at, min(priority or 0, rules.max_priority))

    def dispatch(self) -> None:
        """Hand messages to the consumers that have room, one each in turn."""
        self.is_awake = False
        handed, memory = 0, self._memory
        while ready := self._consumers_with_room():
            chunk = self._chunk()
            share = min(min(consumer.room() for consumer in ready), max(1, chunk // len(ready)))
            messages = self.take(share * len(ready))
            if not messages:
                break
            handed += len(messages)
            number, redelivered = len(ready), self._returns
            if number == 1:
                ready[0].channel.deliver(ready[0], messages, redelivered)
                continue
            first = self._turn % number
            for place, consumer in enumerate(ready[first:] + ready[:first]):
                if mine := messages[place::number]:
                    consumer.channel.deliver(consumer, mine, redelivered)
            self._turn += len(messages)
        self._settle_pace()
        if handed >= BUSY_MESSAGES or (handed and memory - self._memory >= BUSY_BYTES):
            self._busy_until = self._host.now_ms + BUSY_MS

    def take(self, limit: int) -> list[QueuedMessage]:
        """Remove up to so many messages from the front; those whose time is over go to the dead letters on the way.

        What came back from a consumer may have to be read from the file again.
        """
        taken: list[QueuedMessage] = []
        for lane in self._lanes:
            while len(taken) < limit and (lane.returned or lane.ready or self._fill(lane)):
                if lane.returned or self._terms:
                    message = self._pop_checked(lane)
                    if message is not None:
                        taken.append(self._whole(message))
                else:
                    taken += lane.pop_many(limit - len(taken))
        self._memory -= sum([message.size for message in taken])
        if self._terms and self._timer is None:
            self._watch_front()
        return taken

    def _pop_checked(self, lane: Lane) -> QueuedMessage | None:
        message = lane.pop()
        terms = self._terms.get(message.id)
        if terms is not None and terms.expires_at is not None and terms.expires_at < self._host.now_ms:
            self._memory -= message.size
            self.dropped += 1
            self._die(message, "expired")
            return None
        return message

    def let_go(self, messages: list[QueuedMessage]) -> None:
        """Consumers hold messages: the content of those that the file has need not be kept for them."""
        for message in messages:
            if message.is_restored:
                message.content = b""

    def _whole(self, message: QueuedMessage) -> QueuedMessage:
        if message.content:
            return message
        (row,) = self._journal.read_one(self.id, message.id)
        return self._host.restore(row)

    def settle(self, message: QueuedMessage) -> None:
        """A consumer is done with a message."""
        self.unsettled -= 1
        if message.stored:
            self._journal.remove(message, self.id)
        if self._terms or self._returns:
            self._forget(message)

    def sent(self, messages: list[QueuedMessage]) -> None:
        """Messages went to a consumer that does not acknowledge."""
        for message in messages:
            if message.stored:
                self._journal.remove(message, self.id)
        if self._terms or self._returns:
            for message in messages:
                self._forget(message)

    def give_back(self, messages: list[QueuedMessage]) -> None:
        """Messages that were taken and went nowhere return to their places, as if nothing had been."""
        for message in messages:
            terms = self._terms.get(message.id)
            self._lanes[self.rules.max_priority - (terms.priority if terms else 0)].take_back(message)
            self._memory += message.size
            if terms is not None and terms.expires_at is not None:
                self._set_timer(terms.expires_at)
        self._is_simple = False
        self._host.wake(self)

    def has_room(self, size: int) -> bool:
        """Whether it would take a message of this size, if need be by giving up an older one."""
        return self.rules.overflow == "drop-head" or not self._is_full(size)

    def take_back(self, message: QueuedMessage) -> None:
        """A message returns to its place, unless it came back too often."""
        self.unsettled -= 1
        if self.is_deleted:
            self._drop(message)
            return
        count = self._returns[message.id] = self._returns.get(message.id, 0) + 1
        limit = self.rules.delivery_limit
        if limit is not None and count > limit:
            self.outflow.rejected += 1
            self._die(message, "delivery_limit")
            return
        self.outflow.requeued += 1
        terms = self._terms.get(message.id)
        self._lanes[self.rules.max_priority - (terms.priority if terms else 0)].take_back(message)
        self._memory += message.size
        self._is_simple = False
        if terms is not None and terms.expires_at is not None:
            self._set_timer(terms.expires_at)
        if not self.is_awake:
            self._host.wake(self)

    def admit(self, message: QueuedMessage) -> None:
        """A message that waited in the file for its time takes its place in the order of arrival."""
        self._lanes[-1].take_back(message)
        self._memory += message.size
        self._is_simple = False
        self._host.wake(self)

    def reject(self, message: QueuedMessage) -> None:
        """A consumer does not want a message, and nobody else shall have it."""
        self.unsettled -= 1
        self.outflow.rejected += 1
        if self.is_deleted:
            self._drop(message)
        else:
            self._die(message, "rejected")

    def add_consumer(self, consumer: Consumer) -> None:
        if self.consumers and (consumer.is_exclusive or any(other.is_exclusive for other in self.consumers)):
            raise AccessRefusedError(f"queue {self.name!r} in vhost {self.declared.vhost!r} in exclusive use")
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda one: -one.priority)
        self._host.wake(self)

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self.use()
        if self.consumers:
            self._host.wake(self)  # the next in line may become the single active one
        elif self.declared.auto_delete:
            self._host.delete_queue(self)

    def use(self) -> None:
        """Somebody uses the queue, so it does not expire for a while."""
        self._used_at = self._host.now_ms
        self._watch_use()

    def _watch_use(self) -> None:
        """Come back when it may have been unused for too long."""
        if self.rules.expires_ms is not None and not self._is_use_watched:
            self._is_use_watched = True
            self._host.schedule(self, self._used_at + self.rules.expires_ms)

    def redelivered(self, message: QueuedMessage) -> bool:
        return message.id in self._returns

    def purge(self) -> int:
        """Remove all ready messages; how many there were."""
        count = self.message_count
        self.dropped += count
        unsettled = set(self._host.unsettled_ids(self))
        self._journal.purge(self.id, unsettled)
        for lane in self._lanes:
            for message in lane.in_memory():
                if message.stored:
                    self._journal.remove(message, self.id)
            lane.clear()
        self._memory = self._paged_bytes = 0
        self._terms = {key: terms for key, terms in self._terms.items() if key in unsettled}
        self._returns = {key: count for key, count in self._returns.items() if key in unsettled}
        self._settle_pace()
        self._host.wake(self)
        return count

    def on_time(self) -> None:
        """The time that was asked for has come."""
        now = self._host.now_ms
        if self._timer is not None and self._timer <= now:
            self._timer = None
            self._drop_expired()
            self._watch_front()
        if self._is_use_watched and self._used_at + (self.rules.expires_ms or 0) <= now:
            self._is_use_watched = False
            if self.rules.expires_ms is not None and not self.consumers:
                self._host.delete_queue(self)
        elif self._is_use_watched:
            self._is_use_watched = False
            self._watch_use()

    def _drop_expired(self) -> None:
        now = self._host.now_ms
        for lane in self._lanes:
            while lane.first() is not None or self._fill(lane):
                first = lane.first()
                assert first is not None
                terms = self._terms.get(first.id)
                if terms is None or terms.expires_at is None or terms.expires_at >= now:
                    break
                self._pop_checked(lane)
        self._settle_pace()

    def _watch_front(self) -> None:
        """Come back when the first message of a lane gets too old."""
        for lane in self._lanes:
            first = lane.first()
            terms = self._terms.get(first.id) if first is not None else None
            if terms is not None and terms.expires_at is not None:
                self._set_timer(terms.expires_at)

    def _set_timer(self, at_ms: int) -> None:
        """Come back after this time; up to it and in it, a message that is to live for no time can still be handed over."""
        if self._timer is None or at_ms < self._timer:
            self._timer = at_ms + 1
            self._host.schedule(self, self._timer)

    def _consumers_with_room(self) -> list[Consumer]:
        """Those whose turn it is: of the highest priority among the consumers that can take something."""
        consumers = self.consumers
        if not consumers:
            return []
        if self.rules.is_single_active or len(consumers) == 1:
            active = self._active()
            return [active] if active.room() > 0 else []
        with_room: list[Consumer] = []
        limited_channels = set()
        for consumer in consumers:
            if with_room and consumer.priority != with_room[0].priority:
                break
            if consumer.room() <= 0 or consumer.channel in limited_channels:
                continue
            if consumer.channel.prefetch:
                limited_channels.add(consumer.channel)  # its consumers share one room: one of them in each round
            with_room.append(consumer)
        return with_room

    def _active(self) -> Consumer:
        if not self.rules.is_single_active:
            return self.consumers[0]
        return min(self.consumers, key=lambda consumer: consumer.number)

    def _chunk(self) -> int:
        """How many messages are about as much as should be sent before looking again."""
        waiting = len(self._ready)
        if not waiting:
            return CHUNK_MESSAGES
        return max(1, min(CHUNK_MESSAGES, CHUNK_BYTES * waiting // (self._memory + 1)))

    def _fill(self, lane: Lane) -> bool:
        """Read the next messages of a lane from the file; False where there are none, or none on disk yet."""
        if not lane.paged:
            return False
        rows = self._journal.read(self.id, lane.priority, lane.cursor, CHUNK_MESSAGES, CHUNK_BYTES)
        for row in rows:
            lane.ready.append(self._host.restore(row))
            self._memory += len(row.body)
            self._paged_bytes -= min(len(row.body), self._paged_bytes)
            if row.expires_at is not None or lane.priority:
                self._terms[row.id] = Terms(row.expires_at, lane.priority)
            if row.attempts or row.id <= self.delivered_to:
                self._returns[row.id] = row.attempts or 1
        if not rows:
            self._host.starve(self)
        else:
            lane.cursor = rows[-1].id
            lane.paged -= len(rows)
        return bool(rows)

    def _is_window_full(self) -> bool:
        scale = 10 if self._host.is_short_of_memory else 1
        return self._memory > WINDOW_BYTES // scale or len(self._ready) > WINDOW_MESSAGES // scale

    def _settle_pace(self) -> None:
        """Whether the next message can take the hot path."""
        self._is_simple = not self._has_rules and not self._lanes[-1].paged and not self._is_window_full()

    def _is_full(self, size: int) -> bool:
        rules = self.rules
        return (rules.max_length is not None and self.message_count >= rules.max_length) or (
            rules.max_length_bytes is not None and self.message_bytes + size > rules.max_length_bytes
        )

    def _is_too_long(self) -> bool:
        rules = self.rules
        return (rules.max_length is not None and self.message_count > rules.max_length) or (
            rules.max_length_bytes is not None and self.message_bytes > rules.max_length_bytes
        )

    def _drop_excess(self) -> None:
        """Give up messages at the front until the queue is as short as it must be."""
        while self._is_too_long():
            messages = self.take(1)
            if not messages:
                break
            self.dropped += 1
            self._die(messages[0], "maxlen")

    def _die(self, message: QueuedMessage, reason: str) -> None:
        self._host.bury(self._whole(message), self, reason)
        self._drop(message)

    def _drop(self, message: QueuedMessage) -> None:
        if message.stored:
            self._journal.remove(message, self.id)
        self._forget(message)

    def _forget(self, message: QueuedMessage) -> None:
        self._terms.pop(message.id, None)
        self._returns.pop(message.id, None)
