"""A stream in a running broker: messages are appended to the file, and each consumer reads them at its own place.

Nothing is kept in memory but the places of the consumers. A message is read from the file when it is on disk, in chunks that
all consumers share. Acknowledgements give credit and remove nothing; retention removes the oldest chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from holtmq.broker.chores import Chore
from holtmq.broker.memory import MESSAGE_BYTES, UNACKNOWLEDGED_BYTES
from holtmq.broker.ports import QueueHost
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.traffic import Outflow
from holtmq.errors import NotImplementedByBrokerError, PreconditionFailedError, ResourceError, StoreError
from holtmq.queueing.damage_report import damage_report, wants_reports
from holtmq.queueing.offset_header import offset_header
from holtmq.queueing.publishing_id import numbered_by
from holtmq.queueing.stream_filter import StreamFilter
from holtmq.queueing.stream_offset import OFFSET_ARGUMENT, parse_start
from holtmq.queueing.stream_rules import StreamRules
from holtmq.routing.route import Entry
from holtmq.steps import Steps
from holtmq.store.chunk import UNWRITTEN
from holtmq.store.records import QueueState
from holtmq.store.stream_chunk import StreamChunk
from holtmq.store.stream_port import StreamChange, StreamEntry, StreamExtent, StreamMessage
from holtmq.table import FieldValue
from holtmq.topology import Queue
from holtmq.wire.content import Properties

if TYPE_CHECKING:
    from holtmq.broker.consumer import Consumer

ROUND_MESSAGES = 500
"""What is looked at for a consumer in one step, of one chunk, before it is the turn of the next one."""
ROUNDS = 20
"""Steps after which others have their turn. There may be as many steps as the stream has chunks, and consumers."""
REFUSED_ARGUMENTS = ("x-priority", "x-cancel-on-ha-failover")
"""Arguments of consumers of other queues."""
READ_AGAIN_MS = 1000
"""Pause after the file could not be read."""
LONGEST_TRIM_MS, SHORTEST_TRIM_MS = 60_000, 1000
"""How often the age of the first chunk is checked while nothing is published: a tenth of the maximum age, within these."""
NO_PROPERTIES = Properties(bytes(2))
"""Stands for the properties of a delivery, which are in its content, and which nobody looks at again."""
NOT_NUMBERED = (None, 0)
_as_entry: Callable[[tuple[object, ...]], StreamEntry] = partial(tuple.__new__, StreamEntry)
"""Makes an entry of its values in half the time of its constructor."""


class StreamReader:
    """A consumer and its place in the stream."""

    __slots__ = ("consumer", "filter", "next_offset", "reported", "wants_reports")

    def __init__(self, consumer: Consumer, next_offset: int, wanted: StreamFilter | None) -> None:
        self.consumer = consumer
        self.next_offset = next_offset
        self.filter = wanted
        self.wants_reports = wants_reports(consumer.arguments)
        self.reported: set[int] = set()
        """Offsets of the reports of damage among the messages that were taken last."""


class StreamQueue:
    def __init__(self, declared: Queue, queue_id: int, rules: StreamRules, host: QueueHost) -> None:
        self.declared = declared
        self.name = declared.name
        self.id = queue_id
        self.owner = None
        self.consumers: list[Consumer] = []
        self.unsettled = 0
        """Always 0, as in RabbitMQ: messages without an acknowledgement are among those of the stream."""
        self._held = 0
        """Deliveries that are not acknowledged."""
        self.outflow = Outflow()
        self.arrived = 0
        """Messages that were appended since the broker started, duplicates included."""
        self.is_awake = False
        self.is_suspended = False
        """Whether an internal error has stopped deliveries until the next attempt."""
        self.is_deleted = False
        self.must_go = False
        self.is_crowded = False
        self.memory = 0
        self.messages_in_memory = 0
        self.active_tag = None
        self._host = host
        self._journal = host.journal
        self._readers: dict[Consumer, StreamReader] = {}
        """The consumers in the order in which it is their turn."""
        self._serving: Chore | None = None
        self._extent = StreamExtent()
        self._change = StreamChange(is_open=False)
        """What the journal's batch appends, while it is open."""
        self._batch = 0
        """The last batch of the journal that changes the stream."""
        self._is_stale = True
        """Whether the extent may have changed since it was read."""
        self._cannot_read = False
        self._counted_memory = 0
        self._trim_at: int | None = None
        self.rules = rules
        self._watch_age()

    def apply(self, rules: StreamRules) -> None:
        """Apply new rules of retention."""
        if rules == self.rules:
            return
        self.rules = rules
        self._watch_age()
        if self._has_excess():
            self._trim()

    def recover(self, state: QueueState, last_id: int) -> None:
        """Do nothing: what the stream has is read when somebody asks for it."""

    @property
    def extent(self) -> StreamExtent:
        """What the stream has on disk. If the file cannot be read, what it had."""
        if self._is_stale:
            try:
                self._refresh()
            except StoreError as error:
                self._read_later(error)
        return self._extent

    def _refresh(self) -> None:
        self._extent = self._journal.stream_extent(self.id)
        self._is_stale = not self._host.is_committed(self._batch)

    @property
    def message_count(self) -> int:
        return self.extent.number

    @property
    def message_bytes(self) -> int:
        return self.extent.size

    @property
    def acknowledged(self) -> int:
        return self.outflow.acknowledged(self._held)

    @property
    def is_doomed(self) -> bool:
        return self.must_go

    def uncounted_memory(self) -> int:
        """Return by how many bytes the memory for messages has grown since the previous call."""
        counted, self._counted_memory = self._counted_memory, (MESSAGE_BYTES + UNACKNOWLEDGED_BYTES) * self._held
        return self._counted_memory - counted

    def save_memory(self) -> None:
        """Do nothing: it holds no messages."""

    def has_room(self, size: int) -> bool:
        """Return whether the stream accepts a message of this size: it always does."""
        return True

    def wake(self) -> None:
        self._host.wake(self)

    def put(self, message: QueuedMessage, entry: Entry | None = None) -> bool:
        """Append a message. Whatever it says about persistence, it is on disk before it is confirmed or delivered."""
        self.put_all((message,), message.size)
        return True

    def takes_all(self, properties: Properties) -> bool:
        return True

    def put_all(self, messages: Sequence[QueuedMessage], size: int) -> None:
        """Append messages. On the hot path: see benchmarks/streams.py."""
        first, number, change, now = messages[0], len(messages), self._change, self._host.now_ms
        origin, properties = first.origin, first.properties
        if not change.is_open:
            change = self._begin_batch()
        numbered = (numbered_by(properties) if properties.has_headers else None) or NOT_NUMBERED
        exchange, key, raw = origin.exchange, origin.routing_key, properties.raw
        change.entries += [_as_entry((exchange, key, raw, message.body, now, *numbered)) for message in messages]
        change.size += size
        if not properties.is_light:
            change.heavy += number * len(raw)
        for message in messages:
            message.stored = message.stored or UNWRITTEN  # a publisher's confirm waits for the batch
        self.arrived += number

    def _begin_batch(self) -> StreamChange:
        """Let the journal's batch change the stream, and continue the consumers when it is on disk."""
        if self.is_deleted:
            return StreamChange()  # a transaction that began before
        self._change = self._journal.begin_stream(self.id, self.rules.chunk_bytes, *self._limits())
        self._batch, self._is_stale = self._journal.batch, True
        self._host.starve(self)
        return self._change

    def dispatch(self) -> None:
        """Deliver messages to the consumers that have credit, each from its place on."""
        if not self.consumers:
            return
        try:
            if self._is_stale:
                self._refresh()
        except StoreError as error:
            self._read_later(error)
            return
        if self._is_stale or self._host.memory.is_exhausted:
            self._host.starve(self)
        if self._serving is None or self._serving.is_done:
            self._serving = self._host.deliver_in_steps(self, self._serve)

    def _serve(self) -> Steps[None]:
        """Give the consumers that have credit something in turn. Between two steps, consumers and the stream may go away."""
        rounds = 0
        while ready := [reader for reader in self._readers.values() if self._is_behind(reader)]:
            for reader in ready:
                if self.is_deleted or self._host.memory.is_exhausted:
                    return
                if rounds == ROUNDS:
                    self._host.schedule(self, self._host.now_ms)
                    return
                consumer = reader.consumer
                room = consumer.room()  # consumers may share a connection that becomes full
                if room <= 0 or self._readers.pop(consumer, None) is None:
                    continue
                self._readers[consumer] = reader  # next time, it is the last one
                try:
                    if not self._advance(reader, min(room, ROUND_MESSAGES)):
                        return
                except StoreError as error:
                    self._read_later(error)
                    return
                self._host.memory.queues += self.uncounted_memory()
                rounds += 1
                yield

    def _is_behind(self, reader: StreamReader) -> bool:
        return reader.next_offset < self._extent.next_offset and reader.consumer.room() > 0

    def _advance(self, reader: StreamReader, limit: int) -> bool:
        """Deliver the next messages of one chunk to a consumer. Return whether it got any further."""
        chunk = self._journal.stream_chunk(self.id, reader.next_offset)
        if chunk is None:
            return False
        self._cannot_read = False
        reader.reported = set()
        messages = self._take(reader, chunk, limit)
        if messages:
            try:
                reader.consumer.channel.deliver(reader.consumer, messages, reader.reported)
            except Exception:  # noqa: BLE001  # contained: it is reported
                self._host.delivery_failed(reader.consumer)
        return True

    def _take(self, reader: StreamReader, chunk: StreamChunk, limit: int) -> list[QueuedMessage]:
        """Return the next messages of a chunk that a consumer wants, and move its place behind them."""
        if reader.filter is None and chunk.is_plain:
            return self._take_plain(reader, chunk, limit)
        first, offset = chunk.first_offset, max(reader.next_offset, chunk.first_offset)
        wanted, number = reader.filter, reader.consumer.channel.number
        messages: list[QueuedMessage] = []
        if chunk.damage is not None:
            return self._take_reports(reader, chunk, chunk.damage, limit)
        if wanted is not None and not self._may_have_any(chunk, wanted):
            reader.next_offset = chunk.next_offset
            return messages
        end = min(chunk.number, offset - first + ROUND_MESSAGES)
        for place in range(offset - first, end):
            if len(messages) == limit:
                break
            offset = first + place + 1
            header = offset_header(chunk.raw_properties(place))
            if wanted is not None and not wanted.admits(header.filter_value):
                continue
            if not chunk.is_intact and (damage := chunk.damage_of(place)) is not None:
                if reader.wants_reports:
                    messages.append(self._report(reader, offset - 1, damage))
                continue
            body = chunk.body(place)
            content = header.frames(len(body), number).content(offset - 1, body)
            origin = self._host.origin(chunk.origin(place))
            messages.append(QueuedMessage(offset - 1, origin, NO_PROPERTIES, content, len(body), 1))
        else:
            offset = first + end
        reader.next_offset = offset
        return messages

    def _take_reports(self, reader: StreamReader, chunk: StreamChunk, damage: str, limit: int) -> list[QueuedMessage]:
        """Pass a chunk of which nothing can be read."""
        start, end = max(reader.next_offset, chunk.first_offset), chunk.next_offset
        if reader.wants_reports:
            end = min(end, start + limit)
        reader.next_offset = end
        return [self._report(reader, offset, damage) for offset in range(start, end)] if reader.wants_reports else []

    def _report(self, reader: StreamReader, offset: int, damage: str) -> QueuedMessage:
        """Return a message that stands for a damaged one."""
        reader.reported.add(offset)
        content = damage_report(offset, damage, reader.consumer.channel.number)
        return QueuedMessage(offset, self._host.origin(("", self.name)), NO_PROPERTIES, content, 0, 1)

    def _may_have_any(self, chunk: StreamChunk, wanted: StreamFilter) -> bool:
        """Return False if a filter admits no message of a chunk whose messages share their properties with others."""
        if len(chunk.properties) > ROUND_MESSAGES:
            return True
        return any(wanted.admits(offset_header(raw).filter_value) for raw in chunk.properties)

    def _take_plain(self, reader: StreamReader, chunk: StreamChunk, limit: int) -> list[QueuedMessage]:
        """Do the same for messages that share all but their bodies. On the hot path: see benchmarks/streams.py."""
        offset = max(reader.next_offset, chunk.first_offset)
        bodies = chunk.bodies(offset - chunk.first_offset, limit)
        header, origin = offset_header(chunk.properties[0]), self._host.origin(chunk.origins[0])
        number = reader.consumer.channel.number
        messages: list[QueuedMessage] = []
        for size, group in groupby(bodies, len):
            contents = header.frames(size, number).contents(offset, list(group))
            messages += [
                QueuedMessage(place, origin, NO_PROPERTIES, content, size, 1) for place, content in enumerate(contents, offset)
            ]
            offset += len(contents)
        reader.next_offset = offset
        return messages

    def _read_later(self, error: StoreError) -> None:
        self._host.read_failed(self, error, is_new=not self._cannot_read)
        self._cannot_read = True
        self._host.schedule(self, self._host.now_ms + READ_AGAIN_MS)

    def as_delivered(self, messages: list[QueuedMessage]) -> list[QueuedMessage]:
        """Return the messages as consumers see them."""
        return messages

    def hold(self, messages: list[QueuedMessage]) -> None:
        """Note that messages are unacknowledged, and release their content, which is never needed again."""
        self._held += len(messages)
        for message in messages:
            message.content = b""

    def sent(self, messages: list[QueuedMessage]) -> None:
        """Do nothing: delivered messages stay."""

    def settle(self, message: QueuedMessage) -> None:
        """Note that a message was acknowledged. This gives its consumer credit."""
        self._held -= 1

    def take_back(self, message: QueuedMessage) -> None:
        """Note that a message was requeued, which is an acknowledgement like any other."""
        self._held -= 1
        self.outflow.requeued += 1

    def reject(self, message: QueuedMessage) -> None:
        """Note that a message was rejected, which is an acknowledgement like any other."""
        self._held -= 1
        self.outflow.rejected += 1

    def add_consumer(self, consumer: Consumer) -> None:
        """Start a consumer. As in RabbitMQ, an exclusive one is not alone."""
        what = f"stream {self.name!r} in vhost {self.declared.vhost!r}"
        for name in REFUSED_ARGUMENTS:
            if name in consumer.arguments:
                raise PreconditionFailedError(f"invalid arg {name!r} for consumer of {what}: expected none, it has no effect")
        if not consumer.prefetch:
            raise PreconditionFailedError(f"consumer prefetch count is not set for {what}: expected basic.qos before")
        if consumer.channel.prefetch:
            raise NotImplementedByBrokerError(f"{what} does not support a global prefetch: expected one for each consumer")
        if consumer.is_auto_ack:
            raise NotImplementedByBrokerError(f"{what} does not support no_ack: expected a consumer that acknowledges")
        wanted = StreamFilter.of(consumer.arguments)
        try:
            offset = self._find(consumer.arguments.get(OFFSET_ARGUMENT))
        except StoreError as error:
            raise ResourceError(f"{what} cannot be read: {error}") from error
        self._readers[consumer] = StreamReader(consumer, offset, wanted)
        self.consumers.append(consumer)
        self._host.wake(self)

    def _find(self, place: FieldValue) -> int:
        start = parse_start(place, self._host.now_ms)
        return start.offset(self.extent, lambda time: self._journal.stream_offset_at(self.id, time))

    def read(self, place: FieldValue, limit: int, most_bytes: int) -> Iterator[StreamMessage]:
        """Yield messages from a place on, up to the limits or a little more."""
        offset = self._find(place)
        while (chunk := self._journal.stream_chunk(self.id, offset)) is not None:
            for message in chunk.messages(offset):
                if limit <= 0 or most_bytes <= 0:
                    return
                limit -= 1
                most_bytes -= len(message.body)
                yield message
            offset = chunk.next_offset

    def remove_consumer(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        del self._readers[consumer]

    def next_offset_of(self, consumer: Consumer) -> int:
        """Return the offset of the next message for a consumer."""
        return self._readers[consumer].next_offset

    def lag_of(self, consumer: Consumer) -> int:
        """Return how many messages are stored from a consumer's place on."""
        return max(0, self.extent.next_offset - self.next_offset_of(consumer))

    def use(self) -> None:
        """Do nothing: a stream does not expire."""

    def purge(self) -> int:
        """Return 0, as RabbitMQ does when a stream is deleted. The journal removes its messages when it forgets the queue."""
        return 0

    def on_time(self) -> None:
        """Continue after a pause, and remove what is too old."""
        now = self._host.now_ms
        if self._trim_at is not None and self._trim_at <= now:
            self._trim_at = None
            self._watch_age()
            if self._has_excess():
                self._trim()
        self._host.wake(self)

    def _has_excess(self) -> bool:
        """Return whether retention may remove the first chunk. The last one stays, however old or large it is."""
        extent, rules = self.extent, self.rules
        if extent.chunks < 2 or extent.first_at is None:
            return False
        is_old = rules.max_age_ms is not None and extent.first_at < self._host.now_ms - rules.max_age_ms
        return is_old or (rules.max_bytes is not None and extent.size > rules.max_bytes)

    def _trim(self) -> None:
        """Let the journal's batch remove what is too much or too old."""
        if self._change.is_open:
            self._change.max_bytes, self._change.since_ms = self._limits()
        else:
            self._begin_batch()

    def _limits(self) -> tuple[int | None, int | None]:
        """Return the largest size and the oldest time that retention leaves."""
        max_age_ms = self.rules.max_age_ms
        return self.rules.max_bytes, None if max_age_ms is None else self._host.now_ms - max_age_ms

    def _watch_age(self) -> None:
        """Schedule the next check of the first chunk's age."""
        if self.rules.max_age_ms is not None and self._trim_at is None:
            pause_ms = max(SHORTEST_TRIM_MS, min(LONGEST_TRIM_MS, self.rules.max_age_ms // 10))
            self._trim_at = self._host.now_ms + pause_ms
            self._host.schedule(self, self._trim_at)
