"""A stream in a running broker: messages are appended to the file, and each consumer reads them at its own place.

Nothing is kept in memory but the places of the consumers. A message is read from the file when it is on disk, in chunks that
all consumers share. Acknowledgements give credit and remove nothing; retention removes the oldest chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import ref

from holtmq.broker.chores import Chore
from holtmq.broker.memory import MESSAGE_BYTES, UNACKNOWLEDGED_BYTES
from holtmq.broker.ports import QueueHost
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.stream_row import StreamRow
from holtmq.broker.traffic import Outflow
from holtmq.errors import NotImplementedByBrokerError, PreconditionFailedError, StoreError
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
from holtmq.store.stream_port import StreamChange, StreamEntry, StreamExtent
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

    __slots__ = (
        "_chunk",
        "_known",
        "consumer",
        "filter",
        "is_reading",
        "next_offset",
        "reported",
        "sought_ms",
        "wants_reports",
    )

    def __init__(self, consumer: Consumer, next_offset: int, wanted: StreamFilter | None) -> None:
        self.consumer = consumer
        self.next_offset = next_offset
        self.filter = wanted
        self.wants_reports = wants_reports(consumer.arguments)
        self.reported: set[int] = set()
        """Offsets of the reports of damage among the messages that were taken last."""
        self.is_reading = False
        """Whether the chunk at its place, or the place itself, is being read."""
        self.sought_ms: int | None = None
        """The time of the first message, if it could not be looked up and will be again."""
        self._chunk: StreamChunk | None = None
        self._known: ref[StreamChunk] | None = None
        """The chunk that was used last. The journal keeps it for as long as it has room."""

    def give_chunk(self, chunk: StreamChunk) -> None:
        self._chunk = chunk

    def take_chunk(self, first_offset: int) -> StreamChunk | None:
        """Return the chunk with the next messages, if it is in memory and retention has not removed it."""
        chunk, self._chunk = self._chunk, None
        if chunk is None and self._known is not None:
            chunk = self._known()
            if chunk is not None and not max(chunk.first_offset, first_offset) <= self.next_offset < chunk.next_offset:
                chunk = None
        self._known = ref(chunk) if chunk is not None else None
        return chunk


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
        self._asking: StreamReader | None = None
        """The consumer for which a chunk is just being asked for."""
        self._change = StreamChange(is_open=False)
        """What the journal's batch appends, while it is open."""
        self._batch = 0
        """The last batch of the journal that changes the stream."""
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
        """Start with what the stream has in the file."""
        self._journal.recover_stream(self.id)

    @property
    def extent(self) -> StreamExtent:
        """What the stream has on disk."""
        return self._journal.stream_extent(self.id)

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
        self._batch = self._journal.batch
        self._host.starve(self)
        return self._change

    def dispatch(self) -> None:
        """Deliver messages to the consumers that have credit, each from its place on."""
        if not self.consumers:
            return
        if not self._host.is_committed(self._batch) or self._host.memory.is_exhausted:
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
                chunk = reader.take_chunk(self.extent.first_offset) or self._read_chunk(reader)
                if chunk is None:
                    if reader.is_reading:
                        continue
                    return  # it cannot be read, or has gone
                self._advance(reader, chunk, min(room, ROUND_MESSAGES))
                self._host.memory.queues += self.uncounted_memory()
                rounds += 1
                yield

    def _is_behind(self, reader: StreamReader) -> bool:
        return not reader.is_reading and reader.next_offset < self.extent.next_offset and reader.consumer.room() > 0

    def _read_chunk(self, reader: StreamReader) -> StreamChunk | None:
        """Ask for the chunk at the place of a consumer. Return it if it is there at once. If not, the stream is woken then."""
        self._asking, reader.is_reading = reader, True
        self.read_chunk(reader.next_offset, partial(self._chunk_read, reader))
        self._asking = None
        return reader.take_chunk(self.extent.first_offset)

    def _chunk_read(self, reader: StreamReader, answer: StreamChunk | StoreError | None) -> None:
        reader.is_reading = False
        if isinstance(answer, StoreError):
            self._read_later(answer)
        elif answer is not None:
            self._cannot_read = False
            if reader.consumer.room() > 0:  # a client that reads slowly keeps no chunk in memory
                reader.give_chunk(answer)
            if self._asking is not reader:
                self._host.wake(self)

    def _find_place(self, reader: StreamReader, timestamp_ms: int) -> None:
        """Look up where a consumer begins that asks for a time."""
        reader.is_reading, reader.sought_ms = True, None
        read = partial(self._journal.stream_offset_at, self.id, timestamp_ms)
        self._host.ask(read, partial(self._place_found, reader, timestamp_ms))

    def _place_found(self, reader: StreamReader, timestamp_ms: int, answer: int | StoreError) -> None:
        if isinstance(answer, StoreError):
            reader.sought_ms = timestamp_ms
            self._read_later(answer)
            return
        self._cannot_read = False
        reader.is_reading, reader.next_offset = False, answer
        self._host.wake(self)

    def _advance(self, reader: StreamReader, chunk: StreamChunk, limit: int) -> None:
        """Deliver the next messages of a chunk to a consumer."""
        consumer, channel = reader.consumer, reader.consumer.channel
        reader.reported = set()
        row = self._take_row(reader, chunk, limit) if reader.filter is None and chunk.is_plain else None
        messages = self._take(reader, chunk, limit) if row is None else []
        try:
            if row is not None:
                channel.deliver_row(consumer, row)
            elif messages:
                channel.deliver(consumer, messages, reader.reported)
        except Exception:  # noqa: BLE001  # contained: it is reported
            self._host.delivery_failed(consumer)

    def _take(self, reader: StreamReader, chunk: StreamChunk, limit: int) -> list[QueuedMessage]:
        """Return the next messages of a chunk that a consumer wants, and move its place behind them."""
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

    def _take_row(self, reader: StreamReader, chunk: StreamChunk, limit: int) -> StreamRow | None:
        """Return the next messages of a chunk that share all but their bodies, and move the consumer's place behind them.

        Return None if their bodies are of several lengths.
        """
        offset = max(reader.next_offset, chunk.first_offset)
        bodies = chunk.bodies_of_one_length(offset - chunk.first_offset, limit)
        if bodies is None:
            return None
        reader.next_offset = offset + len(bodies)
        frames = offset_header(chunk.properties[0]).frames(len(bodies[0]), reader.consumer.channel.number)
        return StreamRow(self._host.origin(chunk.origins[0]), frames, offset, bodies)

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

    def hold_row(self, number: int) -> None:
        """Note that messages are unacknowledged."""
        self._held += number

    def sent(self, messages: list[QueuedMessage]) -> None:
        """Do nothing: delivered messages stay."""

    def settle(self, message: QueuedMessage) -> None:
        """Note that a message was acknowledged. This gives its consumer credit."""
        self._held -= 1

    def settle_row(self, number: int) -> None:
        """Note that messages were acknowledged."""
        self._held -= number

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
        start = parse_start(consumer.arguments.get(OFFSET_ARGUMENT), self._host.now_ms)
        reader = StreamReader(consumer, start.offset(self.extent, lambda _: self.extent.next_offset), wanted)
        self._readers[consumer] = reader
        self.consumers.append(consumer)
        if start.kind == "time":
            self._find_place(reader, start.value)
        self._host.wake(self)

    def find(self, place: FieldValue, then: Callable[[int | StoreError], None]) -> None:
        """Look up the offset of a place, which is one of a consumer's."""
        start = parse_start(place, self._host.now_ms)
        if start.kind == "time":
            self._host.ask(partial(self._journal.stream_offset_at, self.id, start.value), then)
        else:
            then(start.offset(self.extent, int))

    def read_chunk(self, offset: int, then: Callable[[StreamChunk | StoreError | None], None]) -> None:
        """Read the chunk with an offset, or the first one after it, and pass it on, or None if there is none."""
        self._host.ask(partial(self._journal.stream_chunk, self.id, offset), then)

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

    def wake_waiting(self) -> None:
        """Do nothing: nobody waits for a message but consumers."""

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
        for reader in self._readers.values():
            if reader.sought_ms is not None:
                self._find_place(reader, reader.sought_ms)
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
