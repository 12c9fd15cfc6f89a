"""The broker's journal: group commit without a timer.

There are three stages, and only the last one waits for the disk. Changes are collected (`add`, `remove`, …) while the
previous batch is being committed; `write` puts them into one transaction, in small steps; `commit` ends it, usually in
another thread. A message that is removed before it is written is never written.

A batch that fails, for example because the disk is full, is written again by the next `write`, together with what was
collected since. Before that, `relieve` writes what makes room: removals that nothing else in the batch depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeAlias

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.errors import StoreBusyError, StoreDefectError, StoreError, StoreFencedError, StoreLostError, StoreUnknownError
from holtmq.steps import Steps, complete
from holtmq.store.checksum import damage_of
from holtmq.store.chunk import UNWRITTEN, Chunk, LoggedMessage, Page, PageRequest, Reading
from holtmq.store.journal_port import StorableMessage
from holtmq.store.records import DueMessage, Recovered
from holtmq.store.row_port import RowPort
from holtmq.store.sql.account_store import SqlAccounts
from holtmq.store.sql.chunk_log import ChunkLog
from holtmq.store.sql.damage import report, report_chunk
from holtmq.store.sql.declarations import CHANGE, SqlDeclarations
from holtmq.store.sql.journal_batch import Batch, Purge
from holtmq.store.sql.keys import RoutingKeys
from holtmq.store.sql.recovery import recover
from holtmq.store.sql.sql_database import Connection, JournalDatabase
from holtmq.store.sql.stream_log import StreamLog
from holtmq.store.stream_chunk import StreamChunk
from holtmq.store.stream_port import StreamChange, StreamExtent
from holtmq.topology import Binding, Exchange, Parameter, Policy, Queue, Removal

MARK = """
INSERT INTO delivery_marks VALUES (?, ?, ?)
ON CONFLICT (queue_id, priority) DO UPDATE SET up_to = excluded.up_to WHERE excluded.up_to > delivery_marks.up_to
"""
NO_EXTENT = StreamExtent()
ADDED_AT_ONCE = 100
"""Queues or bindings that are added in one step."""
FREED_AT_ONCE = 1000
RELIEF_MESSAGES = 1000
"""Removals in one transaction of `relieve`: few enough to fit into the pages that the WAL has anyway."""

Addition: TypeAlias = Callable[[Sequence[tuple[Any, ...]]], None]
"""Adds many parts of a topology, each given by the arguments of the method that adds one."""


class BatchJournal:
    def __init__(self, database: JournalDatabase, rows: RowPort) -> None:
        self._database = database
        self._rows = rows
        self._declarations = SqlDeclarations(database, counts_changes=False)
        self._additions: dict[Callable[..., object], Addition] = {
            self._declarations.add_queue: self._declarations.add_queues,
            self._declarations.add_binding: self._declarations.add_bindings,
        }
        self._accounts = SqlAccounts(database)
        self._keys = RoutingKeys(database)
        self._reader = database.reader()
        """For all reads but those within a transaction. One thread at a time reads."""
        self.reads_beside = self._reader is not database.connection
        """Whether another thread can read. A database in memory has one connection."""
        self._log = ChunkLog(database, self._reader, rows)
        self._streams = StreamLog(database, self._reader)
        self._extents: dict[int, StreamExtent] = {}
        """What streams have on disk."""
        self._new_extents: dict[int, StreamExtent] = {}
        """What they have when the transaction is committed."""
        self._collecting = Batch(1)
        self._writing: Batch | None = None
        self._is_begun = False
        self._reads = False
        """Whether the gathered batch reads chunks, to compact them."""
        self._is_written = False
        """Whether the transaction has changes of the batch."""
        self._declared_batch = 0
        self._change_count = 0
        self._paged_queues: set[int] = set()
        """Queues that do not survive the broker and have messages in the file."""
        self._next_queue_id = 1
        self._last_transient_id = 0
        self._damaged = 0
        self.is_in_doubt = False
        """Whether a commit has ended without an answer."""
        database.on_rollback += (self._keys.forget, self._log.rolled_back)

    @property
    def batch(self) -> int:
        return self._collecting.number

    @property
    def has_changes(self) -> bool:
        return bool(self._collecting)

    @property
    def awaits_acks(self) -> bool:
        """Whether there is nothing to write but messages that may be acknowledged before."""
        return self._collecting.has_only_messages and self._writing is None

    @property
    def declared_batch(self) -> int:
        return self._declared_batch

    @property
    def change_count(self) -> int:
        return self._change_count

    @property
    def size(self) -> int:
        writing = self._writing  # read once: the thread that commits clears it
        return self._collecting.total_size + (writing.total_size if writing else 0)

    @property
    def writing_size(self) -> int:
        """Bytes of message bodies in the batch that is being written."""
        return self._writing.total_size if self._writing else 0

    @property
    def memory(self) -> int:
        writing = self._writing  # read once: the thread that commits clears it
        unwritten = self._collecting.overhead + (writing.overhead if writing else 0)
        return self._log.memory + self._streams.memory + unwritten

    @property
    def damaged(self) -> int:
        return self._damaged + self._streams.damaged

    @property
    def has_relief(self) -> bool:
        """Whether there is something that `relieve` can write."""
        return self._collecting.has_relief or (self._writing is not None and self._writing.has_relief)

    @property
    def unwritten(self) -> str:
        """The batch that failed, in words."""
        return str(self._writing)

    @property
    def is_begun(self) -> bool:
        """Whether a transaction has been started and waits to be written."""
        return self._is_begun

    @property
    def is_slow(self) -> bool:
        """Whether to write the gathered batch may take as long as the network or the disk, so that a thread should do it."""
        return self.is_remote or self._reads

    @property
    def is_remote(self) -> bool:
        """Whether the database is on the other side of a network."""
        return self._database.is_remote

    @property
    def is_writing(self) -> bool:
        return self._writing is not None

    def add(self, message: StorableMessage, queue_id: int, priority: int, expires_at: int | None) -> None:
        batch = self._collecting
        message.stored = UNWRITTEN
        if queue_id < 0:
            self._paged_queues.add(queue_id)
        if message.copies == 1:
            batch.alone[message.id] = (message, queue_id, priority, expires_at)
            batch.size += message.size
            return
        if message.id not in batch.shared:
            batch.shared[message.id] = (message, {})
            batch.size += message.size
        batch.shared[message.id][1][queue_id] = (priority, expires_at)

    def add_all(self, messages: Sequence[StorableMessage], queue_id: int, size: int) -> None:
        batch = self._collecting
        if messages[0].copies > 1:
            for message in messages:
                self.add(message, queue_id, 0, None)
            return
        if queue_id < 0:
            self._paged_queues.add(queue_id)
        for message in messages:
            message.stored = UNWRITTEN
        batch.alone.update([(message.id, (message, queue_id, 0, None)) for message in messages])
        batch.size += size

    def remove(self, message: StorableMessage, queue_id: int) -> None:
        batch, stored = self._collecting, message.stored
        if isinstance(stored, Chunk):
            if queue_id in stored.slices:
                batch.removed.append((stored, queue_id, message.id))
        elif batch.alone.pop(message.id, None) is not None:  # as in Batch.withdraw, without the call: every ack passes here
            batch.size -= message.size
        elif not batch.withdraw(message.id, queue_id):
            batch.unplaced.append((message, queue_id))

    @contextmanager
    def together(self) -> Iterator[None]:
        batch = self._collecting
        before = len(batch.removed)
        try:
            yield
        finally:
            batch.tied += batch.removed[before:]
            del batch.removed[before:]

    def begin_stream(
        self, queue_id: int, chunk_bytes: int, max_bytes: int | None = None, since_ms: int | None = None
    ) -> StreamChange:
        change = self._collecting.streams[queue_id] = StreamChange(chunk_bytes, max_bytes, since_ms)
        return change

    def returned(self, message: StorableMessage, queue_id: int, count: int) -> None:
        self._collecting.returned[message.id, queue_id] = (message, count)

    def delivered(self, queue_id: int, priority: int, up_to: int) -> None:
        self._collecting.mark(queue_id, priority, up_to)

    def forget_delivered(self, but: Mapping[tuple[int, int], int]) -> None:
        self._collecting.delivered.clear()
        self._change(self._forget_delivered, dict(but))

    def _forget_delivered(self, but: Mapping[tuple[int, int], int]) -> None:
        self._database.connection.execute("DELETE FROM delivery_marks")
        self._write_marks(self._database.connection, but)

    def purge(self, queue_id: int, but: Collection[StorableMessage]) -> None:
        if self._is_in_file(queue_id):
            self._collecting.purge(queue_id, but)
            self._count_change()

    def forget_queue(self, queue_id: int) -> None:
        if self._is_in_file(queue_id):
            self._collecting.forget(queue_id)
            self._count_change()
        self._paged_queues.discard(queue_id)

    def _is_in_file(self, queue_id: int) -> bool:
        return queue_id > 0 or queue_id in self._paged_queues

    def add_exchange(self, exchange: Exchange) -> None:
        self._change(self._declarations.add_exchange, exchange)

    def add_queue(self, queue: Queue) -> int:
        if not queue.outlives_broker:
            self._last_transient_id -= 1
            return self._last_transient_id
        queue_id, self._next_queue_id = self._next_queue_id, self._next_queue_id + 1
        self._change(partial(self._declarations.add_queue, queue, queue_id))
        return queue_id

    def add_binding(self, binding: Binding) -> None:
        self._change(self._declarations.add_binding, binding)

    def remove_parts(self, removal: Removal) -> None:
        self._change(self._declarations.remove, removal)

    def set_policy(self, policy: Policy) -> None:
        self._change(self._declarations.set_policy, policy)

    def remove_policy(self, vhost: str, name: str) -> None:
        self._change(self._declarations.remove_policy, vhost, name)

    def set_vhost(self, name: str, metadata: str) -> None:
        self._change(self._declarations.set_vhost, name, metadata)

    def set_parameter(self, parameter: Parameter) -> None:
        self._change(self._declarations.set_parameter, parameter)

    def remove_parameter(self, parameter: Parameter) -> None:
        self._change(self._declarations.remove_parameter, parameter)

    def remove_vhost(self, name: str) -> None:
        self._change(self._declarations.remove_vhost, name)

    def set_user(self, user: User) -> None:
        self._change(self._accounts.set_user, user)

    def remove_user(self, name: str) -> None:
        self._change(self._accounts.remove_user, name)

    def set_permission(self, permission: Permission | TopicPermission) -> None:
        self._change(self._accounts.set_permission, permission)

    def remove_permission(self, permission: Permission | TopicPermission) -> None:
        self._change(self._accounts.remove_permission, permission)

    def _change(self, change: Callable[..., object], *arguments: object) -> None:
        self._collecting.changes.append(partial(change, *arguments) if arguments else change)
        self._count_change()

    def _count_change(self) -> None:
        self._change_count += 1
        self._declared_batch = self.batch

    def begin(self, wait_s: float = 0.0) -> bool:
        """Start a transaction. Return False if another process holds SQLite's lock, also after `wait_s`."""
        assert not self._is_begun
        try:
            self._database.begin(wait_s)
        except StoreBusyError:
            return False
        self._is_begun, self._is_written = True, False
        return True

    def gather(self) -> None:
        """End the collection of a batch, which has the changes of the previous one if that failed."""
        collected, self._collecting = self._collecting, Batch(self._collecting.number + 1)
        collected.close()
        if self._writing is None:
            self._writing = collected
        else:
            self._writing.absorb(collected)
        self._writing.place()
        self._reads = self._log.settle()

    def write(self) -> Steps[None]:
        """Write the gathered batch into the transaction.

        No step takes more than a few milliseconds. Between two of them, changes are collected for the next batch. What an
        earlier call has written and nobody has committed is rolled back first: it is in the batch.
        """
        assert self._is_begun
        assert self._writing is not None
        if self._is_written:
            self._is_begun = False
            self._database.roll_back()
            if not self.begin():
                raise StoreBusyError(f"{self._database.path} is locked by another process")
        self._is_written = True
        self._new_extents = {}
        with self._giving_up_on_error():
            yield from self._write(self._database.connection, self._writing)

    def commit(self) -> int:
        """Commit the transaction, wait for the disk, and return the number of the batch.

        If the last attempt ended without an answer, find out first whether it was committed.
        """
        assert self._writing is not None
        if not self.is_in_doubt:
            self._commit()
        elif not self._database.has_committed(self._writing.number):
            self.is_in_doubt = False
            self._database.undo()
            raise StoreLostError(f"{self._database.path}: the connection was lost before the batch was committed")
        self.is_in_doubt = False
        self._extents.update(self._new_extents)
        self._log.committed()
        batch, self._writing = self._writing, None
        while batch.changes:  # one by one: to free all of them at once would hold up other threads
            del batch.changes[-FREED_AT_ONCE:]
        return batch.number

    def relieve(self, wait_s: float) -> bool:
        """Write what makes room from a batch that failed, in small transactions. Return whether anything was written.

        Messages removed here are in the file. Those of the batch itself have been dropped from it.
        """
        batch = self._writing
        if batch is None or not batch.has_relief:
            return False
        self._database.make_room()
        while batch.has_relief:
            if not self.begin(wait_s):
                return False
            some = batch.removed[:RELIEF_MESSAGES]
            with self._giving_up_on_error():
                connection = self._database.connection
                self._write_marks(connection, batch.delivered)
                complete(self._log.remove(some))
                complete(self._write_purges(connection, batch.relief_purges, batch.relief_forgotten))
            self._commit()
            self._log.committed()
            batch.delivered.clear()
            del batch.removed[: len(some)]
            batch.relief_purges.clear()
            batch.relief_forgotten.clear()
        return True

    def _commit(self) -> None:
        assert self._is_begun
        with self._giving_up_on_error():
            self._database.commit()
        self._is_begun = False

    @contextmanager
    def _giving_up_on_error(self) -> Iterator[None]:
        """Roll back the transaction if the block raises, or if nobody wants its other steps. The batch is kept."""
        try:
            yield
        except StoreUnknownError:
            self._is_begun, self.is_in_doubt = False, True
            raise
        except BaseException as error:
            self._is_begun = False
            self._database.roll_back()
            if isinstance(error, StoreError) or not isinstance(error, Exception):
                raise
            if (known := self._database.translated(error)) is not None:
                raise known from error
            # A value that the database cannot store is a defect. The batch is kept all the same.
            raise StoreDefectError(f"{self._database.path}: cannot write {error!r}") from error

    def _write(self, connection: Connection, batch: Batch) -> Steps[None]:
        if batch.changes:
            connection.execute(CHANGE)  # once: PostgreSQL would keep a version of the row for each of them
        for kind, changes in groupby(batch.changes, self._kind_of):
            if kind is not None:
                yield from self._add_many(kind, changes)
            else:
                yield from _make_each(changes)
        yield from self._write_purges(connection, batch.purges, batch.forgotten)
        for queue_id, appended in batch.streams.items():
            yield from self._streams.append(queue_id, appended.entries, appended.chunk_bytes)
            if appended.max_bytes is not None or appended.since_ms is not None:
                yield from self._streams.trim(queue_id, appended.max_bytes, appended.since_ms)
            self._new_extents[queue_id] = self._streams.extent_in(connection, queue_id)
        yield from self._log.append(batch.alone, batch.shared, batch.late.values())
        returned: dict[tuple[Chunk, int], dict[int, int]] = {}
        for (message_id, queue_id), (message, count) in batch.returned.items():
            if isinstance(message.stored, Chunk):
                returned.setdefault((message.stored, queue_id), {})[message_id] = count
        for (chunk, queue_id), counts in returned.items():
            self._log.returned(chunk, queue_id, counts)
            yield
        yield from self._log.remove((*batch.tied, *batch.removed))
        if batch.delivered:
            self._write_marks(connection, batch.delivered)
        yield from self._log.compact()
        self._database.note_batch(batch.number)

    def _kind_of(self, change: Callable[[], object]) -> Addition | None:
        """Return what adds many of the same kind as a change, if that is an addition."""
        return self._additions.get(change.func) if isinstance(change, partial) else None

    def _add_many(self, add: Addition, changes: Iterable[Callable[[], object]]) -> Steps[None]:
        """Add queues or bindings. An import has tens of thousands of them."""
        while some := [change.args for change in islice(changes, ADDED_AT_ONCE) if isinstance(change, partial)]:
            add(some)
            yield

    def _write_purges(self, connection: Connection, purges: Sequence[Purge], forgotten: Sequence[int]) -> Steps[None]:
        gone = set(forgotten)
        for queue_id, but in purges:
            if queue_id not in gone:
                yield from self._log.purge(queue_id, but)
                yield  # for each queue, even if there is nothing to remove: there may be many
        for queue_id in forgotten:
            self._extents.pop(queue_id, None)
            yield from self._log.forget(queue_id)
            yield from self._streams.forget(queue_id)
            yield
            while self._rows.forget_some(connection, queue_id):
                yield

    def _write_marks(self, connection: Connection, marks: Mapping[tuple[int, int], int]) -> None:
        connection.executemany(MARK, [(*place, up_to) for place, up_to in marks.items()])

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            yield self._reader
        except Exception as error:
            if (known := self._database.translated(error)) is not None:
                raise known from error
            raise

    def read(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> Reading:
        """Return the next messages of a queue that are on disk, in order, up to the limits or a little more."""
        return self.attach(self.fetch(self.request_page(queue_id, priority, after_id, limit, most_bytes)))

    def request_page(self, queue_id: int, priority: int, after_id: int, limit: int, most_bytes: int) -> PageRequest:
        return self._log.request(queue_id, priority, after_id, limit, most_bytes)

    def fetch(self, request: PageRequest) -> Page:
        with self._reading() as reader:
            return self._log.fetch(reader, request)

    def attach(self, page: Page) -> Reading:
        return self._log.attach(page)

    def hold(self) -> None:
        """Prepare for what another thread reads. One at a time may do so, between `hold` and `release`."""
        self._log.hold()

    def release(self) -> None:
        """Note that what was read was attached, or is not wanted."""
        self._log.release()

    def read_one(self, message: StorableMessage) -> tuple[bytes, str | None]:
        assert isinstance(message.stored, Chunk)
        with self._reading():
            return self._log.read_one(message.stored, message.id)

    def stream_chunk(self, queue_id: int, offset: int) -> StreamChunk | None:
        with self._reading():
            return self._streams.chunk(queue_id, offset)

    def recover_stream(self, queue_id: int) -> None:
        with self._reading() as reader:
            self._extents[queue_id] = self._streams.extent_in(reader, queue_id)

    def stream_extent(self, queue_id: int) -> StreamExtent:
        return self._extents.get(queue_id, NO_EXTENT)

    def stream_offset_at(self, queue_id: int, timestamp_ms: int) -> int:
        with self._reading():
            return self._streams.find(queue_id, timestamp_ms)

    def set_aside(self, queue_id: int, queue: str, message: LoggedMessage) -> None:
        self._damaged += 1
        report(message.id, queue, message.damage or "")
        self._collecting.tied.append((message.chunk, queue_id, message.id))
        exchange, key = message.origin
        self._change(lambda: self._keep(message.id, queue_id, exchange, key, message.content))

    def set_chunk_aside(self, queue_id: int, queue: str, chunk_id: int, number: int, damage: str) -> None:
        self._damaged += number
        report_chunk(number, queue, damage)
        self._change(lambda: self._log.set_chunk_aside(chunk_id, queue_id, self._keys.intern("")))

    def _keep(self, message_id: int, queue_id: int, exchange: str, key: str, content: bytes) -> None:
        key_id = self._keys.intern(key)
        self._rows.keep_damaged(self._database.connection, message_id, queue_id, exchange, key_id, content)

    def id_ahead(self, queue_id: int, priority: int, after_id: int, number: int) -> int | None:
        with self._reading():
            return self._log.id_ahead(queue_id, priority, after_id, number)

    def next_due(self, after_ms: int) -> int | None:
        with self._reading() as reader:
            return self._rows.next_due(reader, after_ms)

    def due(self, after_ms: int, now_ms: int) -> Sequence[DueMessage]:
        with self._reading() as reader:
            rows = self._rows.due(reader, after_ms, now_ms)
        return [DueMessage(queue_id, row, damage_of(row)) for queue_id, row in rows]

    def set_row_aside(self, queue_id: int, queue: str, message_id: int, damage: str) -> None:
        self._damaged += 1
        report(message_id, queue, damage)
        self._change(lambda: self._rows.set_aside(self._database.connection, message_id, queue_id))

    def take_in(self, message: StorableMessage, queue_id: int, expires_at: int | None) -> None:
        batch = self._collecting
        message.stored = UNWRITTEN
        batch.late[message.id] = (message, queue_id, 0, expires_at)
        batch.size += message.size
        self._change(lambda: self._drop_row(message.id, queue_id))

    def _drop_row(self, message_id: int, queue_id: int) -> None:
        self._rows.drop(self._database.connection, message_id, queue_id)

    def recover(self) -> Recovered:
        """Return the state of the file, after tidying it up for a start of the broker."""
        recovered = recover(self._database, self._keys, self._log, self._rows)
        self._next_queue_id = recovered.next_queue_id
        self._damaged += recovered.damaged
        return recovered

    def accounts(self) -> tuple[list[User], list[Permission | TopicPermission]]:
        return self._accounts.load()

    def is_known_to_brokers(self) -> bool:
        """Whether a broker has opened this file before."""
        return self._accounts.is_known_to_brokers()

    def mark_known(self) -> None:
        """Note that a broker has opened this file."""
        self._change(self._accounts.mark_known)

    def parameters(self) -> list[Parameter]:
        return self._declarations.parameters()

    def require_file(self) -> None:
        """Raise StoreReplacedError if the file is not where it was opened."""
        self._database.check_file(at_once=True)

    def tend(self) -> bool:
        """Check and tidy up the file between batches. Return whether there is more to tidy up."""
        self._database.check_file()
        try:
            return self._database.tidy()
        except (StoreFencedError, StoreLostError):
            raise
        except StoreError:
            return False  # the file is locked or the disk is full: the next batch will tell, or there will be another time

    def pulse(self) -> bool:
        """Show others that this broker is alive. Return whether the database is still its own."""
        return self._database.pulse()

    def cut(self) -> None:
        """Let no thread wait any more for a database that does not answer."""
        self._database.cut()

    def vacuum(self) -> Steps[None]:
        """Give all free space of the file back, in steps for the time between batches."""
        return self._database.vacuum_in_steps()

    def close(self) -> None:
        self._database.close()


def _make_each(changes: Iterable[Callable[[], object]]) -> Steps[None]:
    for change in changes:
        more = change()
        if isinstance(more, Generator):
            yield from more
        yield
