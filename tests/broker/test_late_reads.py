"""A store that answers late: whoever needs a message from it waits, and nobody else does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

import holtmq
from holtmq.broker import channel as channel_module
from holtmq.broker import memory as memory_module
from holtmq.broker.chores import Chore
from holtmq.broker.queue import READ_AGAIN_MS
from holtmq.broker.store_reads import StoreReads
from holtmq.errors import AmqpError, NotFoundError, StoreError
from holtmq.steps import complete
from tests.broker.conftest import Bench, Client, Clock

T = TypeVar("T")
Answer = bytes | AmqpError | None
BODIES = [b"%03d" % number for number in range(100)]


class LateReads(StoreReads):
    """Answers when the test says so."""

    def __init__(self) -> None:
        self._asked: list[Callable[[], None]] = []
        self.error: StoreError | None = None

    def ask(self, read: Callable[[], T], then: Callable[[T | StoreError], None]) -> None:
        self._asked.append(lambda: StoreReads.ask(self, self._failing if self.error else read, then))

    def _failing(self) -> T:  # type: ignore[type-var]  # it returns nothing
        assert self.error is not None
        raise self.error

    @property
    def number(self) -> int:
        return len(self._asked)

    def answer(self, bench: Bench) -> None:
        """Answer what was asked for so far, and end the turn."""
        asked, self._asked = self._asked, []
        for answer in asked:
            answer()
        bench.turn()

    def answer_all(self, bench: Bench) -> None:
        while self._asked:
            self.answer(bench)


class Getter:
    """Gets messages as the server does for basic.get, and notes the answers."""

    def __init__(self, client: Client) -> None:
        self.answers: list[Answer] = []
        self._channel = client.channel

    def get(self, queue: str = "q") -> None:
        try:
            fetched = self._channel.get(queue, is_auto_ack=True)
            if fetched is None and self._channel.is_reading(queue):
                self._channel.when_read(queue, lambda: self.get(queue))
                return
        except AmqpError as error:
            self.answers.append(error)
            return
        self.answers.append(None if fetched is None else fetched.message.body)


@pytest.fixture
def client(bench: Bench) -> Client:
    """A client of a queue all of whose messages are in the file."""
    client = bench.client()
    client.declare("q", durable=True)
    publish(bench, client, BODIES)
    return client


@pytest.fixture
def reads(bench: Bench, client: Client) -> LateReads:
    reads = bench.broker.reads = LateReads()
    return reads


@pytest.fixture(autouse=True)
def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", -1)


def publish(bench: Bench, client: Client, bodies: list[bytes], queue: str = "q", **properties: Any) -> None:
    bench.turn()
    for body in bodies:
        client.publish("", queue, body, delivery_mode=2, **properties)
    bench.turn()
    bench.to_disk()


def test_gets_wait_for_a_page_and_are_answered_in_their_order(bench: Bench, client: Client, reads: LateReads) -> None:
    getter = Getter(client)
    getter.get()
    getter.get()
    bench.turn()
    assert (getter.answers, reads.number) == ([], 1)
    reads.answer(bench)
    assert getter.answers == BODIES[:2]
    assert bench.count("q") == 98


def test_a_get_waits_until_the_store_can_be_read_again(bench: Bench, client: Client, reads: LateReads) -> None:
    getter = Getter(client)
    getter.get()
    reads.error = StoreError("the disk reported an error")
    reads.answer(bench)
    assert getter.answers == []
    reads.error = None
    bench.turn(READ_AGAIN_MS)
    reads.answer_all(bench)
    bench.turn()
    reads.answer_all(bench)
    assert getter.answers == BODIES[:1]


def test_a_get_from_a_queue_that_is_purged_meanwhile_finds_it_empty(bench: Bench, client: Client, reads: LateReads) -> None:
    getter = Getter(client)
    getter.get()
    assert client.channel.declarer.purge_queue("q") == 100
    bench.turn()
    reads.answer(bench)
    assert getter.answers == [None]


def test_a_get_from_a_queue_that_is_deleted_meanwhile_is_refused(bench: Bench, client: Client, reads: LateReads) -> None:
    getter = Getter(client)
    getter.get()
    client.channel.declarer.delete_queue("q", if_unused=False, if_empty=False)
    (error,) = getter.answers
    assert isinstance(error, NotFoundError)
    reads.answer(bench)
    assert len(getter.answers) == 1


def test_a_get_of_a_client_that_has_left_takes_nothing(bench: Bench, client: Client, reads: LateReads) -> None:
    other = bench.client()
    getter = Getter(other)
    getter.get()
    complete(other.channel.session.close())
    reads.answer(bench)
    assert (getter.answers, bench.count("q")) == ([], 100)


def test_messages_that_expire_while_they_are_read_are_passed(bench: Bench, client: Client, reads: LateReads) -> None:
    client.declare("t", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead")
    publish(bench, client, [b"0", b"1"], "t", expiration="1000")
    publish(bench, client, [b"2"], "t")
    getter = Getter(client)
    getter.get("t")
    bench.turn(1001)
    reads.answer_all(bench)
    assert getter.answers == [b"2"]
    assert [client.get("dead"), client.get("dead"), client.get("dead")] == [b"0", b"1", None]


def test_a_message_of_low_priority_does_not_overtake_one_that_is_being_read(
    bench: Bench, client: Client, reads: LateReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.declare("ranked", durable=True, max_priority=2)
    publish(bench, client, [b"high"], "ranked", priority=2)
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 1000)
    bench.turn()
    publish(bench, client, [b"low"], "ranked", priority=1)
    getter = Getter(client)
    getter.get("ranked")
    getter.get("ranked")
    assert getter.answers == []
    reads.answer_all(bench)
    assert getter.answers == [b"high", b"low"]


def test_requeued_messages_are_read_again_before_anything_else(bench: Bench, client: Client, reads: LateReads) -> None:
    held = bench.client()
    held.channel.set_prefetch(10, is_global=False)
    tag = held.consume("q")
    for _ in range(3):
        bench.turn()
        reads.answer_all(bench)
        bench.to_disk()
    assert held.bodies == BODIES[:10]
    held.channel.cancel(tag)
    held.channel.reject(0, multiple=True, requeue=True)
    getter = Getter(client)
    getter.get()
    getter.get()
    assert (getter.answers, reads.number) == ([], 1)
    reads.answer(bench)
    assert getter.answers == BODIES[:2]
    client.consume("q", auto_ack=True)
    for _ in range(3):
        bench.turn()
        reads.answer_all(bench)
        bench.to_disk()
    assert client.bodies == BODIES[2:]


@pytest.mark.parametrize("is_purged", [False, True])
def test_rejected_messages_are_dead_lettered_in_order_when_they_are_read(
    bench: Bench, client: Client, reads: LateReads, monkeypatch: pytest.MonkeyPatch, *, is_purged: bool
) -> None:
    monkeypatch.setattr(channel_module, "SETTLED_AT_ONCE", 0)  # as many messages as a client need not wait for
    client.declare("mortal", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead")
    publish(bench, client, BODIES[:5], "mortal")
    client.consume("mortal")
    for _ in range(3):
        bench.turn()
        reads.answer_all(bench)
        bench.to_disk()
    assert client.bodies == BODIES[:5]
    client.channel.reject(0, multiple=True, requeue=False)
    bench.turn()
    assert (reads.number, bench.count("dead")) == (1, 0)
    if is_purged:
        client.channel.declarer.purge_queue("mortal")
    reads.answer_all(bench)
    letters = [client.get("dead") for _ in range(6)]
    assert letters == ([None] * 6 if is_purged else [*BODIES[:5], None])


def test_a_client_that_rejects_a_message_finds_its_dead_letter(bench: Bench, client: Client, reads: LateReads) -> None:
    client.declare("mortal", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead")
    publish(bench, client, BODIES[:2], "mortal")
    client.consume("mortal")
    for _ in range(3):
        bench.turn()
        reads.answer_all(bench)
        bench.to_disk()
    waiting: list[Chore] = []
    client.channel.session.wait_for = waiting.append
    client.channel.reject(1, multiple=False, requeue=False)
    (chore,) = waiting
    assert (chore.is_done, bench.count("dead")) == (False, 0)
    reads.answer(bench)
    assert (chore.is_done, client.get("dead")) == (True, BODIES[0])


def test_a_transaction_that_rejects_messages_is_applied_when_they_are_read(
    bench: Bench, client: Client, reads: LateReads
) -> None:
    client.declare("mortal", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.declare("dead")
    publish(bench, client, BODIES[:3], "mortal")
    client.channel.select_transactions()
    client.consume("mortal")
    for _ in range(3):
        bench.turn()
        reads.answer_all(bench)
        bench.to_disk()
    client.channel.reject(0, multiple=True, requeue=False)
    client.publish("", "dead", b"published")
    client.channel.commit()
    chore = client.channel.chore
    assert chore is not None
    assert bench.count("dead") == 0
    reads.answer(bench)
    assert chore.is_done
    assert [client.get("dead") for _ in range(5)] == [b"published", *BODIES[:3], None]


def read_stream(client: Client, offset: str) -> str:
    client.channel.set_prefetch(40, is_global=False)
    arguments = {"x-stream-offset": offset}
    return client.channel.consume("s", "", is_auto_ack=False, is_exclusive=False, arguments=arguments)


def test_consumers_of_a_stream_wait_for_chunks_and_share_them(bench: Bench, client: Client, reads: LateReads) -> None:
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, BODIES, "s")
    assert bench.count("s") == 100
    others = [bench.client(), bench.client()]
    for other in others:
        read_stream(other, "first")
    bench.turn()
    assert ([other.bodies for other in others], reads.number) == ([[], []], 2)
    reads.answer(bench)
    assert [other.bodies for other in others] == [BODIES[:40]] * 2
    others[0].channel.ack(40, multiple=True)
    bench.turn()
    assert (others[0].bodies, reads.number) == (BODIES[:80], 0)


def test_a_client_that_stops_reading_while_a_chunk_is_read_keeps_none_in_memory(
    bench: Bench, client: Client, reads: LateReads
) -> None:
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, BODIES, "s")
    read_stream(client, "first")
    bench.turn()
    client.is_writable = False
    reads.answer(bench)
    client.is_writable = True
    bench.broker.vhosts["/"].queue("s").wake()
    bench.turn()
    assert (client.bodies, reads.number) == ([], 1), "the chunk is read again"
    reads.answer(bench)
    assert client.bodies == BODIES[:40]


def test_a_stream_that_is_deleted_while_it_is_read_delivers_nothing(bench: Bench, client: Client, reads: LateReads) -> None:
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, BODIES, "s")
    tag = read_stream(client, "1h")
    bench.turn()
    client.channel.declarer.delete_queue("s", if_unused=False, if_empty=False)
    reads.answer(bench)
    assert (client.bodies, client.cancelled, reads.number) == ([], [tag], 0)


def test_a_consumer_that_asks_for_a_time_gets_what_is_published_meanwhile(
    bench: Bench, client: Client, reads: LateReads
) -> None:
    client.declare("s", durable=True, queue_type="stream")
    publish(bench, client, BODIES[:3], "s")
    read_stream(client, "1h")
    bench.turn()
    publish(bench, client, BODIES[3:5], "s")
    reads.answer_all(bench)
    assert client.bodies == BODIES[:5]


@pytest.fixture
def delaying(tmp_path: Path) -> Iterator[Bench]:
    """A broker that has found delayed messages in its file: three in `q`, and one in `gone`."""
    with holtmq.open(tmp_path / "a.db") as mq:
        for body in BODIES[:3]:
            mq.queue("q").put(body, delay_s=1)
        mq.queue("gone").put(b"gone", delay_s=1)
    delaying = Bench(tmp_path / "a.db", round(time.time() * 1000))
    with closing(delaying.journal):
        delaying.broker.reads = LateReads()
        yield delaying


def test_delayed_messages_are_read_once_and_enter_their_queues_then(delaying: Bench) -> None:
    reads, client = delaying.broker.reads, delaying.client()
    assert isinstance(reads, LateReads)
    client.consume("q", auto_ack=True)
    for _ in range(3):
        delaying.turn(5000)
    assert (client.bodies, reads.number) == ([], 1)
    client.channel.declarer.delete_queue("gone", if_unused=False, if_empty=False)
    reads.answer(delaying)
    delaying.to_disk()
    delaying.turn(5000)
    assert (client.bodies, reads.number) == (BODIES[:3], 0)
    assert delaying.broker.next_timer is None


def test_delayed_messages_that_cannot_be_read_are_read_later(delaying: Bench) -> None:
    reads = delaying.broker.reads
    assert isinstance(reads, LateReads)
    reads.error = StoreError("the disk reported an error")
    delaying.turn(5000)
    reads.answer(delaying)
    delaying.turn()
    assert (delaying.count("q"), reads.number, delaying.broker.read_errors) == (0, 0, 1)
    reads.error = None
    delaying.turn(READ_AGAIN_MS)
    reads.answer(delaying)
    assert (delaying.count("q"), delaying.count("gone")) == (3, 1)


def test_delayed_messages_enter_their_queues_a_few_at_a_time(delaying: Bench) -> None:
    reads, clock = delaying.broker.reads, Clock(delaying.broker.internal_errors)
    assert isinstance(reads, LateReads)
    delaying.broker.chores = clock
    delaying.turn(5000)
    clock.steps = 2
    reads.answer(delaying)
    assert delaying.count("q") + delaying.count("gone") == 2
    clock.go_on(10)
    assert (delaying.count("q"), delaying.count("gone")) == (3, 1)


def test_a_delayed_message_that_causes_an_internal_error_keeps_no_other_from_its_queue(delaying: Bench) -> None:
    reads, broker = delaying.broker.reads, delaying.broker
    assert isinstance(reads, LateReads)
    delaying.database.connection.execute("UPDATE messages SET properties = '{', checksum = NULL WHERE body = ?", (BODIES[1],))
    delaying.turn(5000)
    reads.answer(delaying)
    broker.chores.retry()
    assert broker.internal_errors.counts == {"releasing delayed messages": 1}
    assert (delaying.count("q"), delaying.count("gone"), reads.number) == (2, 1, 0)
