"""A broker without sockets, on a journal in memory, with a clock that the test sets."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holtmq.broker.broker import Broker
from holtmq.broker.channel import Channel
from holtmq.broker.chores import Chores
from holtmq.broker.consumer import Consumer
from holtmq.broker.containment import InternalErrors
from holtmq.broker.queued_message import QueuedMessage
from holtmq.broker.stream_row import StreamRow
from holtmq.server.startup import recover
from holtmq.steps import complete
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.store.sqlite.database import SqliteDatabase
from holtmq.store.sqlite.file_store import file_journal
from holtmq.table import FieldValue
from holtmq.wire.content import Properties, encode_properties, make_content, raw_properties_of

START_MS = 1_700_000_000_000


class Clock(Chores):
    """Chores that have time for a number of steps."""

    def __init__(self, errors: InternalErrors) -> None:
        super().__init__(errors)
        self.steps = 0

    def _has_time(self) -> bool:
        self.steps -= 1
        return self.steps >= 0

    def go_on(self, steps: int) -> None:
        """Do some steps of the chores that wait."""
        self.steps = steps
        for _ in range(len(self._waiting)):
            chore = self._waiting.popleft()
            if not self._do(chore):
                self._waiting.append(chore)


class Client:
    """The client end of a channel. It records what the broker sends."""

    def __init__(self, bench: Bench) -> None:
        self.is_writable = True
        self.deliveries: list[tuple[int, QueuedMessage, bool]] = []
        self.bodies: list[bytes] = []
        self.contents: list[bytes] = []
        """The bodies of all deliveries, and their whole content."""
        self.confirms: list[tuple[int, bool]] = []
        self.refused: list[int] = []
        self.returned: list[QueuedMessage] = []
        self.cancelled: list[str] = []
        self._bench = bench
        session = bench.broker.open_session(bench.broker.authorization.users["guest"], "/")
        self.channel: Channel = session.open_channel(1, self)

    def deliver(
        self, consumer: Consumer, first_tag: int, messages: Sequence[QueuedMessage], redelivered: Collection[int]
    ) -> None:
        for tag, message in enumerate(messages, first_tag):
            self.deliveries.append((tag, message, message.id in redelivered))
            self.bodies.append(message.body)
            self.contents.append(message.content)

    def deliver_row(self, consumer: Consumer, first_tag: int, row: StreamRow) -> None:
        for place, body in enumerate(row.bodies):
            offset = row.first_offset + place
            content = row.frames.content(offset, body)
            message = QueuedMessage(offset, row.origin, Properties(raw_properties_of(content)), content, len(body), 1)
            self.deliver(consumer, first_tag + place, [message], ())

    def confirm(self, tag: int, *, multiple: bool) -> None:
        self.confirms.append((tag, multiple))

    def refuse(self, tag: int) -> None:
        self.refused.append(tag)

    def give_back(self, message: QueuedMessage) -> None:
        self.returned.append(message)

    def cancel(self, consumer: Consumer) -> None:
        self.cancelled.append(consumer.tag)

    def fail(self) -> None:
        self.is_writable = False

    def declare(self, queue: str, *, durable: bool = False, **arguments: FieldValue) -> None:
        table: Mapping[str, FieldValue] = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        self.channel.declarer.declare_queue(
            queue, is_durable=durable, is_exclusive=False, is_auto_delete=False, arguments=table
        )

    def publish(self, exchange: str, key: str, body: bytes = b"m", *, mandatory: bool = False, **properties: Any) -> None:
        raw = encode_properties(properties)
        publication = self.channel.publication(exchange, key, is_mandatory=mandatory)
        publication.publish(raw, [make_content(raw, body)])

    def consume(self, queue: str, *, auto_ack: bool = False, **arguments: FieldValue) -> str:
        return self.channel.consume(queue, "", is_auto_ack=auto_ack, is_exclusive=False, arguments=arguments)

    def get(self, queue: str) -> bytes | None:
        fetched = self.channel.get(queue, is_auto_ack=True)
        return fetched.message.body if fetched else None


class Bench:
    """A broker with its journal and its clock."""

    def __init__(self, path: str | Path = ":memory:", now_ms: int = START_MS) -> None:
        self.journal = self._open(path)
        self.broker = Broker(self.journal)
        self.now_ms = now_ms
        self.broker.begin(self.now_ms)
        recover(self.broker, self.journal)
        self.turn()

    def _open(self, path: str | Path) -> BatchJournal:
        self.database = SqliteDatabase(path)
        return file_journal(self.database)

    def client(self) -> Client:
        return Client(self)

    def turn(self, wait_ms: int = 0) -> None:
        """End the turn, and begin the next one `wait_ms` later."""
        self.broker.end()
        self.now_ms += wait_ms
        self.broker.begin(self.now_ms)

    def to_disk(self) -> None:
        """Write and commit the collected changes."""
        self.start_commit()
        self.end_commit()

    def start_commit(self) -> None:
        self.broker.sealed()
        self.journal.gather()
        assert self.journal.begin()
        complete(self.journal.write())

    def end_commit(self) -> None:
        self.broker.committed(self.journal.commit())
        self.turn()

    def after_crash(self, copy: Path) -> Bench:
        """Return a broker that starts with what is on disk now."""
        with closing(sqlite3.connect(self.database.path)) as file, closing(sqlite3.connect(copy)) as target:
            file.backup(target)
        return Bench(copy, self.now_ms + 1000)

    def count(self, queue: str) -> int:
        return self.broker.vhosts["/"].queue(queue).message_count


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.journal.close()


@pytest.fixture
def clock(bench: Bench) -> Clock:
    clock = bench.broker.chores = Clock(bench.broker.internal_errors)
    return clock
