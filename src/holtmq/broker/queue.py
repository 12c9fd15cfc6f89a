"""A queue in a running broker: messages enter at the tail and leave at the head, to consumers in turn.

Its state is what consumers can still receive. Changes that must survive the process go to the journal as they happen.
Messages that do not fit into the window in memory are left to the journal and read again when their turn comes.
What a queue does with a message (limits, expiry, dead letters) is defined in `queueing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from holtmq.broker.alike import AlikeMessages
from holtmq.broker.consumer import Consumer, active_consumer, consumers_with_room
from holtmq.broker.dying import Contents, DyingMessages, contents_of
from holtmq.broker.lane import Lane
from holtmq.broker.memory import ALIKE_BYTES, MESSAGE_BYTES, UNACKNOWLEDGED_BYTES
from holtmq.broker.ports import QueueHost
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.traffic import Outflow
from holtmq.errors import AccessRefusedError, StoreError
from holtmq.queueing.dead_letter import DeathReason
from holtmq.queueing.delivery_count import with_delivery_count
from holtmq.queueing.overflow import is_full, is_too_long
from holtmq.queueing.rules import QueueRules
from holtmq.queueing.terms import PLAIN_TERMS, Terms, is_expired, parse_expiration, terms_of
from holtmq.routing.route import Entry
from holtmq.store.chunk import Chunk, LoggedMessage, Page, Reading
from holtmq.store.records import QueueState, StoredRow
from holtmq.topology import Queue
from holtmq.wire.content import LIGHT_BYTES, Properties

if TYPE_CHECKING:
    from holtmq.broker.session import Session

CROWD_MESSAGES = 5_000
CROWD_BYTES = 4 * 1024 * 1024
BUSY_MESSAGES = 20
BUSY_BYTES = 512 * 1024
BUSY_MS = 50
"""A queue is crowded if more messages wait than CROWD_* although consumers took BUSY_* at once within the last BUSY_MS.
Publishers are then paused for a moment."""
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 1024 * 1024
"""Messages handed to consumers at once, before the queue checks again whether they keep up."""
SHORT_CHUNK_BYTES = 64 * 1024
"""Bytes read from the file at once during a memory alarm."""
DROPPED_AT_ONCE = 1000
"""Messages removed in one turn because they have expired or are too many. The rest follows in the next turns."""
READ_AGAIN_SOON_MS, READ_AGAIN_MS = 50, 1000
"""Pauses after the store could not be read: the first one, since a connection that was lost is replaced, and the others."""


class MessageQueue:
    def __init__(self, declared: Queue, queue_id: int, rules: QueueRules, host: QueueHost, owner: Session | None) -> None:
        self.declared = declared
        self.name = declared.name
        self.id = queue_id
        self.owner = owner
        """The connection that declared the queue, if it is exclusive."""
        self.consumers: list[Consumer] = []
        self.unsettled = 0
        self.outflow = Outflow()
        self.dropped = 0
        """Messages removed before delivery: expired, dropped by a length limit, purged."""
        self.is_awake = False
        self.is_suspended = False
        """Whether an internal error has stopped deliveries until the next attempt."""
        self.is_deleted = False
        self.must_go = False
        """Whether the queue is deleted as soon as possible: it has expired, or lost its last consumer."""
        self._host = host
        self._journal = host.journal
        self._is_durable = declared.outlives_broker
        self._newest_stored = 0
        """The newest message that survives the broker, if any does."""
        self._terms: dict[int, Terms] = {}
        self._returns: dict[int, int] = {}
        """Number of times that a message has returned to the queue, for redelivered ones: 0 if only a crash may have
        interrupted its delivery."""
        self._memory = 0
        """Bytes of the bodies of ready messages in memory."""
        self._held = 0
        """Bytes of the bodies of unacknowledged messages in memory."""
        self._heavy: dict[int, int] = {}
        """Bytes of large properties of messages in memory, by id."""
        self._heavy_bytes = 0
        self._counted_memory = 0
        self._paged_bytes = 0
        self._admitted: set[int] = set()
        """Delayed messages in memory that reading the paged part of a lane will find again."""
        self._dying: DyingMessages | None = None
        """Made when the first message dies: there may be tens of thousands of queues."""
        self._waiting: list[Callable[[], None]] = []
        """Those who wait for the next message, which is being read."""
        self._cannot_read = False
        self._read_again_at: int | None = None
        self._recovered = 0
        self._turn = 0
        self._busy_until = 0
        self._is_beyond_window = False
        """Whether a persistent message would be left to the file."""
        self._timer: int | None = None
        self._used_at = host.now_ms
        self._use_timer: int | None = None
        """When to check next whether the queue has been idle for too long."""
        self._lanes: list[Lane] = []
        self._alike: AlikeMessages | None = None
        """Made when the first of them come: there may be tens of thousands of queues."""
        self.apply(rules)

    def apply(self, rules: QueueRules) -> None:
        """Apply new rules. The number of priorities is fixed when the queue is declared."""
        self.rules = rules
        if not self._lanes:
            self._lanes = [Lane(priority) for priority in range(rules.max_priority, -1, -1)]
            self._lane = self._lanes[-1]
            self._has_priorities = rules.max_priority > 0
        self._limits_length = rules.limits_length
        rejects = self._limits_length and rules.overflow != "drop-head"
        self._has_rules = bool(rules.max_priority or rules.message_ttl_ms is not None or rejects)
        self._is_simple = False
        self._settle_pace()
        self._watch_use()
        self._drop_excess()

    @property
    def message_count(self) -> int:
        """Ready messages."""
        if self._has_priorities:
            return sum(map(len, self._lanes))
        lane = self._lane
        return len(lane.returned) + len(lane.ready) + lane.paged

    @property
    def messages_in_memory(self) -> int:
        if self._has_priorities:
            return sum(len(lane) - lane.paged for lane in self._lanes)
        return len(self._lane.returned) + len(self._lane.ready)

    @property
    def _has_paged(self) -> bool:
        return any(lane.paged for lane in self._lanes) if self._has_priorities else self._lane.paged > 0

    @property
    def memory(self) -> int:
        """Bytes of message bodies in memory."""
        return self._memory

    @property
    def active_tag(self) -> str | None:
        """The tag of the single active consumer, if the queue has one."""
        if not self.rules.is_single_active or not self.consumers:
            return None
        return active_consumer(self.consumers, is_single_active=True).tag

    @property
    def acknowledged(self) -> int:
        return self.outflow.acknowledged(self.unsettled)

    @property
    def arrived(self) -> int:
        """Messages that entered the queue since the broker started."""
        flow = self.outflow
        gone = self.acknowledged + flow.sent + flow.fetched_for_good + flow.rejected + self.dropped
        return self.message_count + self.unsettled + gone - self._recovered

    @property
    def is_crowded(self) -> bool:
        """Whether many messages wait although consumers are busy."""
        is_long = len(self._lanes[-1]) > CROWD_MESSAGES or self.message_bytes > CROWD_BYTES
        return is_long and self._host.now_ms < self._busy_until

    @property
    def is_doomed(self) -> bool:
        """Whether the queue only waits to be deleted. Whoever looks for it must not find it."""
        return self.must_go or (self.owner is not None and self.owner.is_closed)

    def uncounted_memory(self) -> int:
        """Return by how many bytes the memory for messages has grown since the previous call."""
        bodies = self._memory + self._held + self._heavy_bytes
        overhead = MESSAGE_BYTES * self.messages_in_memory + (MESSAGE_BYTES + UNACKNOWLEDGED_BYTES) * self.unsettled
        if self._alike is not None:
            overhead -= (MESSAGE_BYTES - ALIKE_BYTES) * self._alike.among(self._lane.ready)
        counted, self._counted_memory = self._counted_memory, bodies + overhead
        return self._counted_memory - counted

    def wake(self) -> None:
        self._host.wake(self)

    @property
    def message_bytes(self) -> int:
        return self._memory + self._paged_bytes

    def recover(self, state: QueueState, last_id: int) -> None:
        """Start with the messages in the file, none of which is newer than `last_id`."""
        for lane in self._lanes:
            lane.paged = state.counts.get(lane.priority, 0)
            lane.recovered_mark = lane.marked = lane.sealed_mark = lane.wanted = state.delivered_to.get(lane.priority, 0)
        self._newest_stored, self._paged_bytes, self._is_simple = last_id, state.size, False
        self._recovered = self.message_count
        if self.rules.limits_length:
            self._host.wake(self)  # a policy or a requeue may have left it longer than it may be
        if state.next_expiry is not None:
            self._set_timer(state.next_expiry)

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool:
        """Add a message at the tail. Return False if the queue is full and rejects it.

        The hot path has no rules and no terms: the message enters the memory, or follows others that were left to the file
        (benchmarks/broker.py).
        """
        if self._has_rules or entry is not None or message.properties.has_terms:
            return self._put_by_rules(message, entry)
        is_persistent = self._is_durable and message.properties.is_persistent
        lane = self._lane
        if self._is_simple and not (is_persistent and self._is_beyond_window):
            if not (message.properties.is_light and message.origin.is_light):
                self._count_heavy(message)
            lane.ready.append(message)
            self._memory += message.size
        elif lane.paged:
            lane.paged += 1
            self._paged_bytes += message.size
        else:
            return self._put_by_rules(message, entry)
        if is_persistent or lane.paged:
            if is_persistent:
                self._newest_stored = message.id
            self._journal.add(message, self.id, 0, None)
        if not self.is_awake:
            self._host.wake(self)
        if self._limits_length and self._is_too_long():
            self._make_room()
        return True

    def takes_all(self, properties: Properties) -> bool:
        """Return whether the hot path of `put` takes messages with these properties, however many they are."""
        if self._has_rules or self._limits_length or properties.has_terms:
            return False
        if self._is_simple:
            return not (self._is_beyond_window and self._is_durable and properties.is_persistent)
        return self._lane.paged > 0

    def put_all(self, messages: Sequence[QueuedMessage], size: int) -> None:
        """Add messages at the tail like `put`, on its hot path: see `takes_all`."""
        first, lane = messages[0], self._lane
        is_persistent = self._is_durable and first.properties.is_persistent
        if self._is_simple:
            if not first.properties.is_light:
                for message in messages:
                    self._count_heavy(message)
            elif not first.origin.is_light:
                self._count_heavy(first)
            lane.ready.extend(messages)
            self._memory += size
            if self._alike is None:
                self._alike = AlikeMessages()
            self._alike.add(first.id, messages[-1].id)
        else:
            lane.paged += len(messages)
            self._paged_bytes += size
        if is_persistent or lane.paged:
            if is_persistent:
                self._newest_stored = messages[-1].id
            self._journal.add_all(messages, self.id, size)
        if not self.is_awake:
            self._host.wake(self)

    def save_memory(self) -> None:
        """Keep the next messages off the hot path, which does not look at the window."""
        self._is_simple = False

    def _put_by_rules(self, message: QueuedMessage, entry: Entry | None) -> bool:
        if self.rules.overflow != "drop-head" and self._is_full(message.size) and self._refuses(message):
            return False
        properties = message.properties
        ttl_ms = parse_expiration(properties.expiration)
        terms = terms_of(self.rules, properties.priority, ttl_ms, entry, self._host.now_ms)
        lane = self._lanes[self.rules.max_priority - terms.priority]
        is_persistent = self._is_durable and properties.is_persistent
        is_paged = lane.paged > 0 or self._must_page(message.size + len(properties.raw), is_persistent=is_persistent)
        if is_paged:
            lane.page(message)
            self._paged_bytes += message.size
            self._is_simple = False  # no later message may overtake it in memory
        else:
            lane.ready.append(message)
            self._memory += message.size
            if not (properties.is_light and message.origin.is_light):
                self._count_heavy(message)
            if terms.expires_at is not None or terms.priority:
                self._terms[message.id] = terms
        if is_persistent:
            self._newest_stored = message.id
        if is_persistent or is_paged:
            self._journal.add(message, self.id, terms.priority, terms.expires_at)
        if terms.expires_at is not None:
            self._set_timer(terms.expires_at)
        if not self.is_awake:
            self._host.wake(self)
        if self._limits_length and self._is_too_long():
            self._make_room()
        return True

    def _make_room(self) -> None:
        if self.consumers or self.rules.dead_letter_exchange is not None:
            self._host.dispatch(self)
        else:
            self._drop_head()

    def _refuses(self, message: QueuedMessage) -> bool:
        """Make room in a full queue if possible. Return whether it must reject the message."""
        self._drop_expired()
        self._host.dispatch(self)
        if not self._is_full(message.size):
            return False
        if self.rules.overflow == "reject-publish-dlx" and self.rules.dead_letter_exchange is not None:
            self._host.bury(message, self, "maxlen", _nothing)
        return True

    @property
    def is_reading(self) -> bool:
        """Whether a message is being read from the store, or will be read again after an error."""
        if self._read_again_at is not None and self.message_count:
            return True
        return any(lane.is_reading or lane.is_recalling for lane in self._lanes)

    def when_read(self, call: Callable[[], None]) -> None:
        """Call a function when it may be worth another attempt to take a message."""
        self._waiting.append(call)

    def wake_waiting(self) -> None:
        """Call those who wait for a message, in their order. Those who still get none wait again."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def dispatch(self) -> None:
        """Serve those who wait for a message, then the consumers."""
        if self._waiting and not (self.is_reading and self.message_count):
            self.wake_waiting()
        self._deliver_all()

    def _deliver_all(self) -> None:
        """Deliver messages to the consumers with free prefetch, in turn."""
        handed, memory = 0, self._memory
        while ready := consumers_with_room(self.consumers, is_single_active=self.rules.is_single_active):
            chunk = self._chunk()
            share = min(min(consumer.room() for consumer in ready), max(1, chunk // len(ready)))
            messages = self.take(share * len(ready), is_delivery=True)
            if not messages:
                break
            handed += len(messages)
            number = len(ready)
            if number == 1:
                self._deliver(ready[0], messages)
                continue
            first = self._turn % number
            for place, consumer in enumerate(ready[first:] + ready[:first]):
                if mine := messages[place::number]:
                    self._deliver(consumer, mine)
            self._turn += len(messages)
        self._settle_pace()
        if handed and self._has_paged:
            self._read_ahead()
        if self.consumers and self._host.memory.is_short and self.message_count:
            self._host.starve(self)  # consumers that may have to acknowledge something first
        if self._limits_length:
            self._drop_excess()  # what was too new to be read from the file when it came may be there now
        if handed >= BUSY_MESSAGES or (handed and memory - self._memory >= BUSY_BYTES):
            self._busy_until = self._host.now_ms + BUSY_MS

    def _deliver(self, consumer: Consumer, messages: list[QueuedMessage]) -> None:
        channel = consumer.channel
        try:
            channel.deliver(consumer, messages, self._returns)
        except Exception:  # noqa: BLE001  # contained: it is reported
            recorded = {id(message) for message, _, _ in channel.unsettled.values()}
            self.give_back([message for message in messages if id(message) not in recorded])
            self._host.delivery_failed(consumer)

    def take(self, limit: int, *, is_delivery: bool = False) -> list[QueuedMessage]:
        """Remove and return up to `limit` messages from the head; expired ones are dead-lettered on the way.

        Only messages in memory are taken. If the next one is not there, it is read, and the queue is woken then. For a
        delivery, only messages are taken that are redelivered after a crash as such. If anything fails, all messages stay
        in the queue.
        """
        taken: list[QueuedMessage] = []
        try:
            for lane in self._lanes:
                before = len(taken)
                has_stopped = self._take_from(lane, limit, taken, is_delivery=is_delivery)
                if is_delivery and self._newest_stored and len(taken) > before:
                    self._note_delivery(lane, taken[-1].id, len(taken) - before)
                if len(lane) and (taken or has_stopped):
                    break  # what is left in this lane comes before the next one
            if self._terms:
                self._watch_front()
        except Exception:
            self._memory -= sum([message.size for message in taken])
            self.give_back(taken)
            raise
        self._memory -= sum([message.size for message in taken])
        return taken

    def _take_from(self, lane: Lane, limit: int, taken: list[QueuedMessage], *, is_delivery: bool) -> bool:
        """Take messages from one lane. Return whether it stops before the limit although the lane has more.

        Messages that are not on disk yet, or for which there is no memory, do not count.
        """
        checks, room = DROPPED_AT_ONCE, CHUNK_BYTES - sum([message.size for message in taken])
        while len(taken) < limit and room > 0 and (lane.returned or lane.ready or (not taken and self._fill(lane))):
            free = limit - len(taken)
            if is_delivery and self._newest_stored > lane.marked:
                free = lane.free_to_leave(free, self._host.on_disk_id, self._host.sealed_id)
                if not free:
                    self._want_mark(lane)
                    return True
            if not (lane.returned or self._terms):
                taken += lane.pop_many(free)
                continue
            first = lane.first()
            assert first is not None
            if not (first.content or self._has_expired(first)):
                self._recall_contents(lane)
                if lane.first() is first and not first.content:
                    return True
                continue
            message = self._pop_checked(lane)
            if message is not None:
                taken.append(message)
                room -= message.size
            elif (checks := checks - 1) == 0 or self._host.is_burying:
                self._set_timer(self._host.now_ms)
                return True
        return lane.is_reading

    def _recall_contents(self, lane: Lane) -> None:
        """Read the contents of the next requeued messages that were released while a consumer held them."""
        if not lane.is_recalling:
            lane.is_recalling = True
            messages = lane.released(CHUNK_MESSAGES, CHUNK_BYTES)
            self._host.ask(partial(contents_of, self._journal, messages), partial(self._contents_recalled, lane, messages))

    def _contents_recalled(self, lane: Lane, messages: list[QueuedMessage], answer: Contents | StoreError) -> None:
        lane.is_recalling = False
        contents, error = ([], answer) if isinstance(answer, StoreError) else answer
        for message, (content, damage) in zip(messages, contents, strict=False):
            if damage is None:
                message.content = content
            elif lane.withdraw(message):
                self._memory -= message.size
                self._lose_damaged(message, content, damage)
        has_failed = error is not None and lane.has_returned(messages[len(contents)])
        self._read_ended(error if has_failed else None, has_read=bool(contents))
        if not has_failed:
            self._host.wake(self)

    def _read_ended(self, error: StoreError | None, *, has_read: bool) -> None:
        """Note that contents of messages could be read, or not."""
        if has_read:
            self._cannot_read = False
        if error is not None:
            self._read_later(error)

    def _note_delivery(self, lane: Lane, message_id: int, number: int) -> None:
        lane.delivered = max(lane.delivered, message_id)
        lane.taken += number
        if not lane.is_marking:
            lane.is_marking = True
            self._host.mark_later(self, lane)

    def _want_mark(self, lane: Lane) -> None:
        """Ask for a mark that lets the next message leave, and for a wake-up when it is on disk."""
        first = lane.first()
        if first is not None and first.id > lane.wanted:
            lane.delivered = max(lane.delivered, first.id)
            self.mark(lane)
        self._host.starve(self)

    def mark(self, lane: Lane) -> None:
        """Let the journal record how far messages may have been delivered, some way ahead of the consumers."""
        lane.is_marking = False
        place = lane.place_ahead()
        if place is None:
            return
        newest, further = place
        if further:
            read = partial(self._journal.id_ahead, self.id, lane.priority, lane.cursor, further)
            self._host.ask(read, partial(self._mark_further, lane))
        self._mark_up_to(lane, newest)

    def _mark_further(self, lane: Lane, answer: int | StoreError | None) -> None:
        if isinstance(answer, int) and not self.is_deleted:  # reading the messages will report an error
            self._mark_up_to(lane, answer)

    def _mark_up_to(self, lane: Lane, newest: int) -> None:
        if newest > lane.wanted and self._newest_stored > lane.wanted:
            self._journal.delivered(self.id, lane.priority, newest)
            self._host.mark_wanted(lane)
            lane.wanted, lane.wanted_batch = newest, self._journal.batch

    def fetched(self, message: QueuedMessage) -> int:
        """Note that a message was taken by `get`. Return the batch whose marks must be on disk before it is sent, or 0."""
        lane = self._lane_of(message)
        if not message.stored or not self._newest_stored:
            return 0
        self._note_delivery(lane, message.id, 1)
        if lane.is_free(message.id, self._host.on_disk_id, self._host.sealed_id):
            return 0
        if message.id > lane.wanted:
            self.mark(lane)
        return lane.wanted_batch

    def marks(self) -> dict[tuple[int, int], int]:
        """Return the marks to keep when all messages were requeued: those of messages delivered in an earlier life."""
        return {(self.id, lane.priority): lane.recovered_mark for lane in self._lanes if lane.recovered_mark and len(lane)}

    def _lane_of(self, message: QueuedMessage) -> Lane:
        return self._lanes[self.rules.max_priority - self._terms.get(message.id, PLAIN_TERMS).priority]

    def _pop_checked(self, lane: Lane) -> QueuedMessage | None:
        message = lane.first()
        assert message is not None
        if self._has_expired(message):
            self._expire(lane, message)
            return None
        lane.pop()
        return message

    def _expire(self, lane: Lane, first: QueuedMessage) -> None:
        lane.pop()
        self._memory -= first.size
        self._die(first, "expired")
        self.dropped += 1

    def _has_expired(self, message: QueuedMessage) -> bool:
        return is_expired(self._terms.get(message.id, PLAIN_TERMS).expires_at, self._host.now_ms)

    def hold(self, messages: list[QueuedMessage]) -> None:
        """Note that messages are unacknowledged, and release the content of those that can be read from the file again."""
        self.unsettled += len(messages)
        held = [message.size for message in messages if not message.is_restored]
        self._held += sum(held)
        if len(held) < len(messages):
            for message in messages:
                if message.is_restored:
                    message.content = b""

    def must_read(self, message: QueuedMessage, *, is_requeued: bool) -> bool:
        """Return whether settling an unacknowledged message may dead-letter it, but its content must be read before."""
        may_die = not is_requeued or self.rules.delivery_limit is not None
        return not message.content and may_die and self.rules.dead_letter_exchange is not None

    def _released(self, message: QueuedMessage) -> None:
        """Note that a message is no longer unacknowledged."""
        self.unsettled -= 1
        if not message.is_restored:
            self._held -= message.size

    def _lose_damaged(self, message: QueuedMessage, content: bytes, damage: str) -> None:
        """Go on without a message that has left its lane because it is damaged."""
        assert isinstance(message.stored, Chunk)
        self._set_aside(LoggedMessage(message.id, message.origin.names, content, message.size, None, 0, message.stored, damage))
        self._forget(message)

    def _set_aside(self, logged: LoggedMessage) -> None:
        """Leave a damaged message in the file, and go on without it."""
        self._journal.set_aside(self.id, self.name, logged)
        self.dropped += 1

    def _read_later(self, error: StoreError) -> None:
        """Leave messages that cannot be read in the file, and try again later."""
        self._host.read_failed(self, error, is_new=not self._cannot_read)
        self._read_again_at = self._host.now_ms + (READ_AGAIN_MS if self._cannot_read else READ_AGAIN_SOON_MS)
        self._cannot_read = True
        self._host.schedule(self, self._read_again_at)

    def settle(self, message: QueuedMessage) -> None:
        """Remove an acknowledged message. On the hot path: see benchmarks/broker.py."""
        self.unsettled -= 1
        if not message.is_restored:
            self._held -= message.size
        if message.stored:
            self._journal.remove(message, self.id)
        if self._terms or self._returns or self._heavy:
            self._forget(message)

    def sent(self, messages: list[QueuedMessage]) -> None:
        """Remove messages delivered without acknowledgement."""
        for message in messages:
            if message.stored:
                self._journal.remove(message, self.id)
        if self._terms or self._returns or self._heavy:
            for message in messages:
                self._forget(message)

    def give_back(self, messages: list[QueuedMessage]) -> None:
        """Put messages that were taken but not delivered back in their places."""
        for message in messages:
            self._put_back(message)
        self._host.wake(self)

    def has_room(self, size: int) -> bool:
        """Return whether the queue accepts a message of this size, by dropping an older one if it must."""
        return self.rules.overflow == "drop-head" or not self._is_full(size)

    def take_back(self, message: QueuedMessage) -> None:
        """Requeue a message in its original place, unless it has reached the delivery limit."""
        self._released(message)
        if self.is_deleted:
            self._drop(message)
            return
        count = self._returns[message.id] = self._returns.get(message.id, 0) + 1
        if self.rules.is_exhausted(count):
            self._die(message, "delivery_limit")
            self.outflow.rejected += 1
            return
        self.outflow.requeued += 1
        if message.stored:
            self._journal.returned(message, self.id, count)
        self._put_back(message)
        if not self.is_awake:
            self._host.wake(self)

    def _put_back(self, message: QueuedMessage) -> None:
        terms = self._terms.get(message.id, PLAIN_TERMS)
        self._lane_of(message).take_back(message)
        self._memory += message.size
        self._is_simple = False
        if terms.expires_at is not None:
            self._set_timer(terms.expires_at)

    def admit(self, row: StoredRow) -> None:
        """Add a delayed message that has become available, in the order of its arrival."""
        message = self._host.restore_row(row)
        self._journal.take_in(message, self.id, row.expires_at)
        self._newest_stored = max(self._newest_stored, message.id)
        if row.expires_at is not None:
            self._terms[message.id] = Terms(row.expires_at, 0)
        self._lanes[-1].take_back(message)
        if self._has_paged:
            self._admitted.add(message.id)
        self._memory += message.size
        self._count_heavy(message)
        self._is_simple = False
        self._host.wake(self)

    def reject(self, message: QueuedMessage) -> None:
        """Dead-letter a message that a consumer rejected without requeueing it."""
        self._released(message)
        if self.is_deleted:
            self._drop(message)
        else:
            self._die(message, "rejected")
        self.outflow.rejected += 1

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
            self._host.wake(self)  # another consumer may become the single active one
        elif self.declared.auto_delete:
            self._host.doom(self)

    def use(self) -> None:
        """Restart the idle time after which the queue expires."""
        self._used_at = self._host.now_ms
        self._watch_use()

    def _watch_use(self) -> None:
        """Schedule a check for when the queue may have been idle for too long."""
        if self.rules.expires_ms is None:
            return
        at_ms = self._used_at + self.rules.expires_ms
        if self._use_timer is None or at_ms < self._use_timer:
            self._use_timer = at_ms
            self._host.schedule(self, at_ms)

    def redelivered(self, message: QueuedMessage) -> bool:
        return message.id in self._returns

    def as_delivered(self, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Return the messages as consumers see them: a quorum queue adds `x-delivery-count` to redeliveries."""
        if not self._returns or not self.rules.is_quorum:
            return messages
        return [self._counted(message) if self._returns.get(message.id) else message for message in messages]

    def _counted(self, message: QueuedMessage) -> QueuedMessage:
        return message.with_properties(with_delivery_count(message.properties, self._returns[message.id]))

    def purge(self) -> int:
        """Remove all ready messages and return their number."""
        count = self.message_count
        self.dropped += count
        kept = self._host.unsettled(self)
        unsettled = {message.id for message in kept}
        self._journal.purge(self.id, kept)
        for lane in self._lanes:
            self._host.free_in_steps(self, lane.clear())
        if self._dying is not None:
            self._dying.clear()
        self._memory = self._paged_bytes = 0
        self._terms = {key: terms for key, terms in self._terms.items() if key in unsettled}
        self._returns = {key: count for key, count in self._returns.items() if key in unsettled}
        self._heavy = {key: size for key, size in self._heavy.items() if key in unsettled}
        self._heavy_bytes = sum(self._heavy.values())
        self._settle_pace()
        self._host.wake(self)
        return count

    def on_time(self) -> None:
        """Handle the timers that are due: message expiry and queue expiry."""
        now = self._host.now_ms
        if self._read_again_at is not None and self._read_again_at <= now:
            self._read_again_at = None
            self._host.wake(self)
            if self._dying is not None:
                self._dying.go_on()
        if self._timer is not None and self._timer <= now:
            self._timer = None
            self._drop_expired()
            self._watch_front()
            self._host.wake(self)
        if self._use_timer is not None and self._use_timer <= now:
            self._use_timer = None
            if self.rules.expires_ms is not None and not self.consumers and self._used_at + self.rules.expires_ms <= now:
                self._host.doom(self)
            elif not self.consumers:  # when the last one leaves, the queue is used
                self._watch_use()

    def _drop_expired(self) -> None:
        checks = DROPPED_AT_ONCE
        for lane in self._lanes:
            while lane.first() is not None or self._fill(lane):
                first = lane.first()
                assert first is not None
                if not self._has_expired(first):
                    break
                if not checks or self._host.is_burying:
                    self._set_timer(self._host.now_ms)
                    return
                checks -= 1
                self._expire(lane, first)
        self._settle_pace()

    def _watch_front(self) -> None:
        """Schedule a check for when the first message of a lane expires."""
        for lane in self._lanes:
            first = lane.first()
            terms = self._terms.get(first.id) if first is not None else None
            if terms is not None and terms.expires_at is not None:
                self._set_timer(terms.expires_at)

    def _set_timer(self, at_ms: int) -> None:
        """Schedule a check just after this time: at exactly its TTL a message can still be delivered."""
        if self._timer is None or at_ms + 1 < self._timer:
            self._timer = at_ms + 1
            self._host.schedule(self, self._timer)

    def _chunk(self) -> int:
        """Return the number of messages to deliver before checking the consumers again."""
        waiting = len(self._lane.ready)
        if not waiting:
            return CHUNK_MESSAGES
        return max(1, min(CHUNK_MESSAGES, CHUNK_BYTES * waiting // (self._memory + 1)))

    def _fill(self, lane: Lane) -> bool:
        """Read the next messages of a lane from the store. Return False if none is there yet: the queue is woken then."""
        while lane.paged and not (lane.ready or lane.is_reading) and self._can_read(lane):
            cursor = lane.cursor
            self._read_page(lane)
            if lane.cursor == cursor:
                break  # they come later, or are not on disk yet, or cannot be read
        return bool(lane.ready)

    def _can_read(self, lane: Lane) -> bool:
        """Return whether the next messages can be read, or wait for memory, or for the disk."""
        if self._host.memory.is_exhausted or not self._host.is_committed(lane.paged_batch):
            self._host.starve(self)
            return False
        return True

    def _next_page(self, lane: Lane) -> tuple[int, int, int, int, int]:
        """Return what to read next."""
        room = SHORT_CHUNK_BYTES if self._host.memory.is_alarmed else CHUNK_BYTES
        return self.id, lane.priority, lane.cursor, CHUNK_MESSAGES, room

    def _read_page(self, lane: Lane) -> None:
        """Ask for the next page. Its messages join those in memory."""
        lane.is_reading = True
        request = self._journal.request_page(*self._next_page(lane))
        self._host.ask(partial(self._journal.fetch, request), partial(self._page_read, lane))

    def _page_read(self, lane: Lane, answer: Page | StoreError) -> None:
        lane.is_reading = False
        if isinstance(answer, StoreError):
            self._read_later(answer)
        elif self.is_deleted or not lane.paged or answer.request.after_id != lane.cursor:
            self._host.wake(self)  # the queue was purged, or has read the page meanwhile
        elif self._attach(lane, self._journal.attach(answer)):
            if self._terms:
                self._watch_front()
            self._host.wake(self)

    def _read_ahead(self) -> None:
        """Ask for the next page before the consumers have received all that is in memory."""
        lane = self._lane
        if self._cannot_read or lane.is_reading or len(lane.ready) >= CHUNK_MESSAGES:
            return
        if lane.paged and self._can_read(lane):
            self._read_page(lane)

    def _attach(self, lane: Lane, reading: Reading) -> bool:
        """Add messages to those in memory. Return False if there are none, because they are not on disk yet."""
        self._cannot_read = False
        if reading.end_id == lane.cursor:
            self._host.starve(self)
            return False
        self._recall_all(lane, reading)
        return True

    def _recall_all(self, lane: Lane, reading: Reading) -> None:
        """Add messages from the file to those in memory."""
        lane.cursor = reading.end_id
        for chunk_id, _, number, damage in reading.lost:
            self._journal.set_chunk_aside(self.id, self.name, chunk_id, number, damage)
            self.dropped += number
            lane.paged -= number
        if reading.is_plain and not (lane.priority or self._admitted or lane.recovered_mark > reading.after_id):
            self._recall_plain(lane, reading.messages)
            return
        for logged in reading.messages:
            if logged.id not in self._admitted:
                self._recall(lane, logged)

    def _recall_plain(self, lane: Lane, logged: Sequence[LoggedMessage]) -> None:
        """Do the same as `_recall` for messages of which there is nothing to note. On the hot path of a backlog."""
        messages = self._host.restore_all(logged)
        size = sum([message.size for message in messages])
        lane.paged -= len(messages)
        self._paged_bytes -= size
        self._memory += size
        lane.ready.extend(messages)
        for message in messages:
            self._count_heavy(message)

    def _recall(self, lane: Lane, logged: LoggedMessage) -> None:
        lane.paged -= 1
        self._paged_bytes -= logged.size
        if logged.damage is not None:
            self._set_aside(logged)
            return
        message = self._host.restore(logged)
        if logged.expires_at is not None or lane.priority:
            self._terms[logged.id] = Terms(logged.expires_at, lane.priority)
        if logged.attempts or logged.id <= lane.recovered_mark:
            self._returns[logged.id] = logged.attempts
        if self.rules.is_exhausted(logged.attempts):
            self._die(message, "delivery_limit")
            self.dropped += 1
            return
        lane.ready.append(message)
        self._memory += message.size
        self._count_heavy(message)

    def _count_heavy(self, message: QueuedMessage) -> None:
        """Count the memory that large properties and long names take. It has both of them twice, decoded and encoded."""
        properties, names = len(message.properties.raw), len(message.origin.address)
        size = 2 * ((properties if properties > LIGHT_BYTES else 0) + (names if names > LIGHT_BYTES else 0))
        if size and message.id not in self._heavy:
            self._heavy[message.id] = size
            self._heavy_bytes += size

    def _must_page(self, size: int = 0, *, is_persistent: bool) -> bool:
        """Return whether a message of this size must be left to the file. A large one may enter an empty window.

        A persistent message is in the file anyway, so few of them are kept in memory, too. Others are paged only if the
        broker is short of memory.
        """
        memory, used = self._host.memory, self._memory + self._heavy_bytes
        if memory.is_short:
            used += size
        elif not is_persistent:
            return False
        return used > memory.window_bytes or len(self._lane.ready) > memory.window_messages

    def _settle_pace(self) -> None:
        """Decide whether the next message can take the hot path."""
        if self._admitted and not self._has_paged:
            self._admitted.clear()
        self._is_simple = not self._has_rules and not self._lanes[-1].paged and not self._host.memory.is_short
        self._is_beyond_window = self._must_page(is_persistent=True)

    def page_out(self, limit: int, most_bytes: int) -> bool:
        """Leave the last messages in memory to the file. Return whether there was any."""
        lane = next((lane for lane in reversed(self._lanes) if lane.ready), None)
        if lane is None:
            return False
        messages: list[QueuedMessage] = []
        size = 0
        while lane.ready and len(messages) < limit and size < most_bytes:
            message = lane.ready.pop()
            messages.append(message)
            size += message.size
        lane.cursor = messages[-1].id - 1
        lane.paged += len(messages)
        lane.paged_batch = self._journal.batch
        self._memory -= size
        self._paged_bytes += size
        self._is_simple = False
        for message in reversed(messages):
            terms = self._terms.get(message.id, PLAIN_TERMS)
            is_stored = message.is_restored or (self._is_durable and message.properties.is_persistent)
            if not is_stored:
                own = message.copy() if message.copies > 1 else message
                self._journal.add(own, self.id, terms.priority, terms.expires_at)
            self._forget(message)
        self._host.wake(self)  # to count the memory
        return True

    def _is_full(self, size: int) -> bool:
        return is_full(self.rules, self.message_count, self.message_bytes, size)

    def _is_too_long(self) -> bool:
        return is_too_long(self.rules, self.message_count, self.message_bytes)

    def _drop_excess(self) -> None:
        if self._is_too_long():
            self._drop_head()

    def _drop_head(self) -> None:
        """Drop messages from the head until the queue is within its limits. If a policy leaves many, it takes several turns."""
        if self._terms or self._has_paged:
            self._drop_expired()
            if not self._is_too_long():
                return
        for _ in range(DROPPED_AT_ONCE):
            if self._host.is_burying:
                break
            messages = self.take(1)
            if not messages:
                return
            self._die(messages[0], "maxlen")
            self.dropped += 1
            if not self._is_too_long():
                return
        self._set_timer(self._host.now_ms)

    def _die(self, message: QueuedMessage, reason: DeathReason) -> None:
        """Remove a message that has left its lane, and dead-letter it if the queue has a dead-letter exchange.

        If that fails, it returns to its lane, and nothing is lost.
        """
        if self.rules.dead_letter_exchange is None:
            self._drop(message)
            return
        if self._dying is None:
            self._dying = DyingMessages(self._host, self._bury, self._lose_damaged, self._read_ended)
        self._dying.add(message, reason)

    def _bury(self, message: QueuedMessage, reason: DeathReason) -> None:
        try:
            self._host.bury(message, self, reason, partial(self._drop_buried, message))
        except Exception:
            self.give_back([message])
            raise

    def _drop_buried(self, message: QueuedMessage) -> None:
        """Remove a message whose dead letter is in all its queues: from the file not before the letter is there."""
        if message.stored:
            with self._journal.together():
                self._drop(message)
        else:
            self._drop(message)
        if not self.is_awake:
            self._host.wake(self)  # to count the memory

    def _drop(self, message: QueuedMessage) -> None:
        if message.stored:
            self._journal.remove(message, self.id)
        self._forget(message)

    def _forget(self, message: QueuedMessage) -> None:
        self._terms.pop(message.id, None)
        self._returns.pop(message.id, None)
        self._heavy_bytes -= self._heavy.pop(message.id, 0)


def _nothing() -> None:
    """Do nothing: the message was in no queue."""
