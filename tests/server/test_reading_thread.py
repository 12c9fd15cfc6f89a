"""A slow disk or database: reading keeps nobody waiting but those who need what is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holtmq
from holtmq.broker import memory as memory_module
from holtmq.errors import StoreError
from holtmq.store import chunk
from holtmq.store.chunk import Page, PageRequest
from holtmq.store.records import DueMessage
from holtmq.store.sql import chunk_log
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.testing import TestBroker, running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel
from tests.deadline import PATIENCE_S, eventually
from tests.management.http import Http
from tests.peers.peer import POSTGRES
from tests.server.test_disk_faults import wait_for_confirms

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres

MESSAGES = 3000


class SlowDisk:
    """Lets a page or delayed messages be read when it is free, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_free = threading.Event()
        self.is_asked = threading.Event()
        self.failures = 0
        fetch, due = BatchJournal.fetch, BatchJournal.due

        def fetch_slowly(journal: BatchJournal, request: PageRequest) -> Page:
            self._serve()
            return fetch(journal, request)

        def due_slowly(journal: BatchJournal, after_ms: int, now_ms: int) -> Sequence[DueMessage]:
            self._serve()
            return due(journal, after_ms, now_ms)

        monkeypatch.setattr(BatchJournal, "fetch", fetch_slowly)
        monkeypatch.setattr(BatchJournal, "due", due_slowly)

    def _serve(self) -> None:
        self.is_asked.set()
        assert self.is_free.wait(PATIENCE_S)
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk reported an error")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 50)
    return SlowDisk(monkeypatch)


@pytest.fixture
def broker(tmp_path: Path, disk: SlowDisk) -> Iterator[TestBroker]:
    with running_broker(data=str(tmp_path / "b.db"), durability="off", http_port=0) as broker:
        yield broker
        disk.is_free.set()


def serve_bystander(port: int) -> None:
    """Do what needs nothing from the store. Each call would time out if it were held up."""
    with Amqp(port) as amqp:
        channel = amqp.channel()
        name = channel.declare("", exclusive=True).queue
        channel.put(name, b"alive")
        assert channel.drain(name) == [b"alive"]


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[Channel]:
    """A channel to a broker with a backlog in `q`."""
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        for number in range(MESSAGES):
            channel.publish("", "q", b"%d" % number, delivery_mode=2)
            if number == 100:
                channel.settle()  # the broker looks at the window between two turns
        channel.settle()
        yield channel


def test_other_clients_go_on_while_a_page_is_read(broker: TestBroker, channel: Channel, disk: SlowDisk) -> None:
    with Amqp(broker.port) as other:
        channel.consume("q", no_ack=True)
        assert disk.is_asked.wait(PATIENCE_S)
        bystander = other.channel()
        bystander.declare("mine", durable=True)
        bystander.publish("", "mine", b"alive", delivery_mode=2)
        bystander.consume("mine", no_ack=True)
        assert [event.body for event in bystander.deliveries(1)] == [b"alive"]
        disk.is_free.set()
        assert [int(event.body) for event in channel.deliveries(MESSAGES)] == list(range(MESSAGES))


def test_a_page_that_cannot_be_read_is_read_again(channel: Channel, disk: SlowDisk) -> None:
    disk.failures = 1
    disk.is_free.set()
    channel.consume("q", no_ack=True)
    assert [int(event.body) for event in channel.deliveries(MESSAGES)] == list(range(MESSAGES))


def test_a_page_of_a_queue_that_was_purged_meanwhile_is_dropped(broker: TestBroker, channel: Channel, disk: SlowDisk) -> None:
    with Amqp(broker.port) as other:
        channel.consume("q", no_ack=True)
        assert disk.is_asked.wait(PATIENCE_S)
        delivered = MESSAGES - other.channel().call(wire.QueuePurge(0, "q"), wire.QueuePurgeOk).message_count
        assert [int(event.body) for event in channel.deliveries(delivered)] == list(range(delivered))
        channel.publish("", "q", b"-1", delivery_mode=2)
        disk.is_free.set()
        assert [int(event.body) for event in channel.deliveries(1)] == [-1]


def get_from_memory(channel: Channel, disk: SlowDisk, *, no_ack: bool = True) -> int:
    """Send one basic.get after the other until a message must be read. Return the number of those that were not."""
    for number in range(MESSAGES):
        channel.send(wire.BasicGet(0, "q", no_ack))
        event = None
        while event is None and not disk.is_asked.is_set():
            with suppress(TimeoutError):
                event = channel.next(0.05)
        if event is None:
            return number
        assert int(event.body) == number, (event, number)
    raise AssertionError("no message was read")


def test_a_get_waits_for_its_message_and_keeps_nobody_else_waiting(
    broker: TestBroker, channel: Channel, disk: SlowDisk
) -> None:
    channel.declare("last", durable=True)  # when this is on disk, the messages are there, too
    number = get_from_memory(channel, disk)
    channel.send(wire.QueueDeclare(0, "q", True, False, False, False, False, {}))
    serve_bystander(broker.port)
    disk.is_free.set()
    assert int(channel.next().body) == number
    assert isinstance(channel.next().method, wire.QueueDeclareOk)
    assert [int(body) for body in channel.drain("q")] == list(range(number + 1, MESSAGES))


def test_a_message_for_a_client_that_left_while_its_get_waited_returns(
    broker: TestBroker, channel: Channel, disk: SlowDisk
) -> None:
    channel.declare("last", durable=True)
    with Amqp(broker.port) as other:
        get_from_memory(other.channel(), disk, no_ack=False)
        other.drop()
    disk.is_free.set()
    eventually(lambda: channel.count("q") == MESSAGES, "all messages to be back")
    assert [int(body) for body in channel.drain("q")] == list(range(MESSAGES))


def test_a_request_for_messages_waits_for_them(broker: TestBroker, channel: Channel, disk: SlowDisk) -> None:
    assert broker.http_url is not None
    channel.declare("last", durable=True)
    http = Http(broker.http_url)
    answers: list[list[int]] = []

    def get() -> None:
        body = {"count": 500, "ackmode": "ack_requeue_false", "encoding": "auto"}
        answers.append([int(each["payload"]) for each in http.call("POST", "/api/queues/%2F/q/get", body).body])

    request = threading.Thread(target=get)
    request.start()
    assert disk.is_asked.wait(PATIENCE_S)
    serve_bystander(broker.port)
    assert answers == []
    disk.is_free.set()
    request.join(PATIENCE_S)
    assert answers == [list(range(500))]


def delay_messages(place: str | Path) -> None:
    """Leave messages for a broker that become available at once."""
    with holtmq.open(place) as mq:
        mq.declare_queue("q")
        for body in ("0", "1"):
            mq.queue("q").put(body, delay_s=0.001)


@pytest.mark.parametrize("failures", [0, 1])
def test_other_clients_go_on_while_delayed_messages_are_read(tmp_path: Path, disk: SlowDisk, failures: int) -> None:
    path = tmp_path / "b.db"
    delay_messages(path)
    disk.failures = failures
    with running_broker(data=path) as broker:
        try:
            assert disk.is_asked.wait(PATIENCE_S)
            serve_bystander(broker.port)
        finally:
            disk.is_free.set()
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.consume("q", no_ack=True)
            assert sorted(channel.bodies(2)) == [b"0", b"1"]
            assert channel.is_silent()


@pytest.mark.peer(POSTGRES)
def test_a_database_that_does_not_answer_for_delayed_messages_stops_nobody_else(postgres: Postgres, disk: SlowDisk) -> None:
    from psycopg.sql import SQL, Identifier

    url = postgres.url()
    delay_messages(url)
    with running_broker(data=url) as broker:
        deliveries = SQL("{}.deliveries").format(Identifier(url.partition("schema=")[2]))
        with postgres.connect() as connection, connection.transaction():
            connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(deliveries))
            disk.is_free.set()
            waiting = "SELECT 1 FROM pg_locks WHERE relation = %s::regclass AND NOT granted"
            eventually(lambda: connection.execute(waiting, [deliveries.as_string()]).fetchall(), "the broker to wait")
            serve_bystander(broker.port)
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.consume("q", no_ack=True)
            assert sorted(channel.bodies(2)) == [b"0", b"1"]


@pytest.mark.peer(POSTGRES)
def test_a_database_that_does_not_answer_a_read_stops_nobody_else(postgres: Postgres, disk: SlowDisk) -> None:
    from psycopg.sql import SQL, Identifier

    disk.is_free.set()
    with running_broker(data=postgres.url()) as broker, Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, reader = amqp.channel(), other.channel()
        channel.declare("s", durable=True, queue_type="stream")
        channel.declare("q", durable=True)
        for number in range(200):
            channel.publish("", "q", b"%d" % number, delivery_mode=2)
            channel.publish("", "s", b"%d" % number)
            if number == 100:
                channel.settle()  # the broker looks at the window between two turns
        channel.declare("last", durable=True)
        schema = broker.data.partition("schema=")[2]
        with postgres.connect() as connection, connection.transaction():
            tables = [SQL("{}.{}").format(Identifier(schema), Identifier(name)) for name in ("log_chunks", "stream_contents")]
            connection.execute(SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(SQL(", ").join(tables)))
            number = get_from_memory(channel, disk)
            reader.qos(100)
            reader.consume("s", arguments={"x-stream-offset": "first"})
            serve_bystander(broker.port)
        assert int(channel.next(PATIENCE_S).body) == number
        assert [int(event.body) for event in reader.deliveries(100)] == list(range(100))


def test_chunks_are_compacted_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SETTLED_S": 0.0, "LEAST_COMPACTED_BYTES": 0}.items():
        monkeypatch.setattr(chunk_log, name, value)
    threads: list[str] = []
    repack_chunk = chunk.UnpackedChunk.repack

    def repack(unpacked: chunk.UnpackedChunk, places: Sequence[int]) -> tuple[bytes, bytes]:
        threads.append(threading.current_thread().name)
        return repack_chunk(unpacked, places)

    monkeypatch.setattr(chunk.UnpackedChunk, "repack", repack)
    with running_broker(data=str(tmp_path / "b.db"), durability="off") as broker, Amqp(broker.port) as amqp:
        publisher = amqp.channel()
        publisher.declare("q", durable=True)
        publisher.declare("other", durable=True)
        publisher.confirm()
        for number in range(MESSAGES):
            publisher.publish("", "q", b"%d" % number, delivery_mode=2)
        wait_for_confirms(publisher, MESSAGES)
        consumer = amqp.channel(2)
        consumer.consume("q")
        for event in consumer.deliveries(MESSAGES):
            if int(event.body) % 20:
                consumer.ack(event.method.delivery_tag)

        def compacted() -> list[str]:
            publisher.publish("", "other", b"another batch", delivery_mode=2)
            publisher.next()
            return threads

        assert set(eventually(compacted, "a chunk to be compacted")) == {"holtmq-disk"}
