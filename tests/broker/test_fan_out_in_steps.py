"""A message to many queues enters them in steps. Others are served in between, and each queue has one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from holtmq.broker import broker, channel, fan_out
from holtmq.broker.queue import MessageQueue
from holtmq.broker.queued_message import QueuedMessage
from holtmq.errors import PreconditionFailedError
from holtmq.routing.route import Entry
from holtmq.topology import Binding, Exchange
from tests.broker.conftest import Bench, Client, Clock

QUEUES = 20
NAMES = [f"q{number:02}" for number in range(QUEUES)]
FIRST, MIDDLE, LAST = NAMES[0], NAMES[QUEUES // 2], NAMES[-1]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "COPIES_AT_ONCE", QUEUES // 2)
    monkeypatch.setattr(broker, "MANY_QUEUES", QUEUES // 2)
    monkeypatch.setattr(channel, "COMMITTED_AT_ONCE", QUEUES // 2)
    monkeypatch.setattr(fan_out, "COPIES_IN_STEP", 2)


@pytest.fixture
def client(bench: Bench, clock: Clock) -> Client:
    """A client of many queues behind one exchange, in a broker that does nothing in steps by itself."""
    client = bench.client()
    for name in NAMES:
        client.declare(name, durable=True)
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", name))
    bench.to_disk()
    clock.steps = 0
    return client


def counts(bench: Bench) -> list[int]:
    return [bench.count(name) for name in NAMES]


def test_others_are_served_between_two_steps_and_every_queue_has_one_order(bench: Bench, clock: Clock, client: Client) -> None:
    other = bench.client()
    client.publish("amq.fanout", "", b"to all")
    clock.go_on(QUEUES // 4)
    assert 0 < sum(counts(bench)) < QUEUES
    for queue in (FIRST, LAST):
        other.publish("", queue, b"to one")
    bench.turn()
    clock.go_on(QUEUES)
    assert not clock.has_work
    assert [other.get(FIRST) for _ in range(3)] == [b"to all", b"to one", None]
    other.consume(LAST)
    bench.turn()
    assert other.bodies == [b"to one", b"to all"]
    ids = [message.id for _, message, _ in other.deliveries]
    assert ids == sorted(ids)
    assert [other.get(MIDDLE) for _ in range(2)] == [b"to all", None]


def test_no_step_touches_more_than_some_queues(
    bench: Bench, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[str] = []
    put = MessageQueue.put

    def counted(queue: MessageQueue, message: QueuedMessage, entry: Entry | None = None) -> bool:
        touched.append(queue.name)
        return put(queue, message, entry)

    monkeypatch.setattr(MessageQueue, "put", counted)
    client.publish("amq.fanout", "")
    client.publish("amq.fanout", "")
    while clock.has_work:
        before = len(touched)
        clock.go_on(1)
        assert len(touched) - before <= 2 * fan_out.COPIES_IN_STEP
    assert touched == NAMES * 2


def test_it_is_confirmed_when_all_queues_have_it_on_disk(bench: Bench, clock: Clock, client: Client) -> None:
    client.channel.select_confirms()
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    for _ in range(3):
        clock.go_on(2)
        bench.to_disk()
    assert clock.has_work
    assert not client.confirms
    clock.go_on(QUEUES)
    bench.turn()
    assert not client.confirms
    bench.to_disk()
    assert client.confirms == [(1, False)]


def test_it_is_confirmed_after_an_earlier_step_although_the_last_queues_do_not_store_it(
    bench: Bench, clock: Clock, client: Client
) -> None:
    for number in range(4):
        client.declare(f"transient{number}")
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", f"transient{number}"))
    bench.to_disk()
    client.channel.select_confirms()
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    clock.go_on(2 * QUEUES)
    assert not clock.has_work
    bench.turn()
    assert not client.confirms
    bench.to_disk()
    assert client.confirms == [(1, False)]


def test_what_is_on_disk_after_a_crash_in_the_middle_is_in_its_queues_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "b.db")
    clock = bench.broker.chores = Clock(bench.broker.internal_errors)
    client = bench.client()
    for name in NAMES:
        client.declare(name, durable=True)
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", name))
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    clock.go_on(3)
    bench.to_disk()
    entered = counts(bench)
    assert 0 < sum(entered) < QUEUES
    clock.go_on(2)
    crashed = bench.after_crash(tmp_path / "crashed.db")
    assert counts(crashed) == entered
    clock.go_on(QUEUES)
    bench.to_disk()
    whole = bench.after_crash(tmp_path / "whole.db")
    reader = whole.client()
    assert [reader.get(name) for name in NAMES] == [b"to all"] * QUEUES
    whole.to_disk()
    assert counts(whole.after_crash(tmp_path / "read.db")) == [0] * QUEUES


def test_consumers_of_the_first_queues_acknowledge_it_before_the_last_ones_have_it(
    bench: Bench, clock: Clock, client: Client
) -> None:
    reader = bench.client()
    reader.consume(FIRST)
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    clock.go_on(2)
    bench.turn()
    bench.to_disk()
    reader.channel.ack(reader.deliveries[0][0], multiple=False)
    clock.go_on(QUEUES)
    bench.to_disk()
    bench.to_disk()
    rows = bench.database.connection.execute("SELECT count(*), count(DISTINCT queue_id) FROM log_slices").fetchone()
    assert rows == (QUEUES - 1, QUEUES - 1)


def test_a_queue_that_is_deleted_in_the_middle_is_left_out(bench: Bench, clock: Clock, client: Client) -> None:
    memory = bench.broker.memory
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    clock.go_on(2)
    for queue in (FIRST, LAST):
        client.channel.declarer.delete_queue(queue, if_unused=False, if_empty=False)
    client.declare(LAST, durable=True)
    clock.go_on(QUEUES)
    bench.to_disk()
    assert bench.count(LAST) == 0
    assert bench.count(MIDDLE) == 1
    assert bench.database.connection.execute("SELECT count(*) FROM log_slices").fetchone() == (QUEUES - 2,)
    bench.turn()
    one = memory.queues // (QUEUES - 2)
    client.get(MIDDLE)
    bench.turn()
    assert memory.queues == one * (QUEUES - 3)


def test_it_enters_all_queues_although_the_client_has_left(bench: Bench, clock: Clock, client: Client) -> None:
    session = client.channel.session
    client.channel.select_confirms()
    client.publish("amq.fanout", "", b"to all")
    assert session.fanning_out > 0
    clock.go_on(2)
    bench.broker.chores.add("closing a session", "a test", session.close)
    while clock.has_work:
        clock.go_on(3)
        bench.turn()
    assert counts(bench) == [1] * QUEUES
    assert session not in bench.broker.vhosts["/"].sessions
    assert session.fanning_out == 0


def test_a_full_queue_rejects_it_for_its_publisher(bench: Bench, clock: Clock, client: Client) -> None:
    client.declare("full", max_length=0, overflow="reject-publish")
    bench.broker.vhosts["/"].bind(Binding("amq.fanout", "full"))
    client.channel.select_confirms()
    client.publish("amq.fanout", "")
    assert not client.refused
    clock.go_on(2 * QUEUES)
    assert client.refused == [1]
    assert counts(bench) == [1] * QUEUES


def test_an_internal_error_of_one_queue_is_contained(
    bench: Bench, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise ValueError("an injected error")

    monkeypatch.setattr(bench.broker.vhosts["/"].queue(MIDDLE), "put", fail)
    client.channel.select_confirms()
    client.publish("amq.fanout", "")
    clock.go_on(QUEUES)
    assert sum(counts(bench)) == QUEUES - 1
    assert client.refused == [1]
    assert bench.broker.internal_errors.counts == {"publishing to many queues": 1}


def test_a_mandatory_message_that_an_alternate_exchange_sends_to_many_queues_is_not_returned(
    bench: Bench, clock: Clock, client: Client
) -> None:
    client.channel.declarer.declare_exchange(Exchange("some", "direct", arguments={"alternate-exchange": "amq.fanout"}))
    client.publish("some", "unknown", mandatory=True)
    clock.go_on(QUEUES)
    assert counts(bench) == [1] * QUEUES
    assert not client.returned


def test_many_messages_to_a_few_queues_enter_them_in_steps(bench: Bench, clock: Clock, client: Client) -> None:
    for queue in (FIRST, LAST):
        bench.broker.vhosts["/"].bind(Binding("amq.direct", queue, "k"))
    bodies = [b"%d" % number for number in range(QUEUES)]
    for body in bodies:
        client.publish("amq.direct", "k", body)
    assert 0 < bench.count(LAST) < QUEUES
    clock.go_on(2 * QUEUES)
    for queue in (FIRST, LAST):
        assert [client.get(queue) for _ in bodies] == bodies


def test_a_transaction_is_applied_in_steps_and_written_as_a_whole(bench: Bench, clock: Clock, client: Client) -> None:
    client.channel.select_transactions()
    client.publish("amq.fanout", "", b"to all", delivery_mode=2)
    client.publish("", LAST, b"to one", delivery_mode=2)
    client.channel.commit()
    clock.go_on(3)
    assert bench.broker.committing
    assert 0 < sum(counts(bench)) < QUEUES
    clock.go_on(3 * QUEUES)
    assert not bench.broker.committing
    client.channel.require_committed()
    assert client.channel.session.uncommitted == client.channel.uncommitted == 0
    assert [client.get(LAST) for _ in range(3)] == [b"to all", b"to one", None]


def test_many_acknowledgements_of_a_transaction_are_applied_in_steps(bench: Bench, clock: Clock, client: Client) -> None:
    for number in range(QUEUES):
        client.publish("", FIRST, b"%d" % number, delivery_mode=2)
    client.consume(FIRST)
    bench.to_disk()
    bench.to_disk()
    assert len(client.deliveries) == QUEUES
    client.channel.select_transactions()
    client.channel.ack(0, multiple=True)
    client.channel.commit()
    clock.go_on(QUEUES // 2)
    assert bench.broker.committing
    assert 0 < client.channel.unsettled_count < QUEUES
    clock.go_on(QUEUES)
    bench.to_disk()
    assert client.channel.unsettled_count == bench.broker.vhosts["/"].queue(FIRST).unsettled == 0
    assert bench.database.connection.execute("SELECT count(*) FROM log_slices").fetchone() == (0,)


def test_a_transaction_whose_client_leaves_while_it_is_committed_is_applied(bench: Bench, clock: Clock, client: Client) -> None:
    client.channel.select_transactions()
    for _ in range(3):
        client.publish("amq.fanout", "", delivery_mode=2)
    client.channel.commit()
    clock.go_on(3)
    bench.broker.chores.add("closing a session", "a test", client.channel.session.close)
    while clock.has_work:
        clock.go_on(3)
    assert counts(bench) == [3] * QUEUES
    assert not bench.broker.committing


def test_a_large_transaction_tells_that_a_full_queue_rejected_a_message(bench: Bench, clock: Clock, client: Client) -> None:
    client.declare("full", max_length=0, overflow="reject-publish")
    client.channel.select_transactions()
    client.publish("", "full")
    client.publish("amq.fanout", "")
    client.channel.commit()
    clock.go_on(3 * QUEUES)
    with pytest.raises(PreconditionFailedError, match="partial tx completion"):
        client.channel.require_committed()
    assert counts(bench) == [1] * QUEUES


def test_a_transaction_leaves_out_a_queue_that_was_deleted_since(bench: Bench, client: Client) -> None:
    client.channel.select_transactions()
    client.publish("", FIRST, delivery_mode=2)
    client.publish("", FIRST, b"returned", mandatory=True)
    client.channel.declarer.delete_queue(FIRST, if_unused=False, if_empty=False)
    client.channel.commit()
    bench.to_disk()
    assert bench.database.connection.execute("SELECT count(*) FROM log_slices").fetchone() == (0,)
    assert bench.broker.memory.queues == 0
    assert [message.body for message in client.returned] == [b"returned"]


@pytest.fixture
def source(bench: Bench, client: Client) -> MessageQueue:
    """A queue whose dead letters go to all the others."""
    client.declare("source", durable=True, dead_letter_exchange="amq.fanout", message_ttl=1000)
    bench.to_disk()
    queue = bench.broker.vhosts["/"].queue("source")
    assert isinstance(queue, MessageQueue)
    return queue


def test_a_dead_letter_enters_many_queues_before_its_message_leaves_the_file(
    tmp_path: Path, bench: Bench, clock: Clock, client: Client, source: MessageQueue
) -> None:
    client.publish("", "source", b"dead", delivery_mode=2)
    bench.to_disk()
    clock.steps = 3
    bench.turn(2000)
    bench.to_disk()
    assert 0 < sum(counts(bench)) < QUEUES
    slices = "SELECT count(*) FROM log_slices WHERE queue_id = ?"
    assert bench.database.connection.execute(slices, (source.id,)).fetchone() == (1,)
    while clock.has_work:
        clock.go_on(2)
    bench.to_disk()
    assert counts(bench) == [1] * QUEUES
    assert bench.database.connection.execute(slices, (source.id,)).fetchone() == (0,)
    assert (source.message_count, source.dropped) == (0, 1)


def test_dead_letters_keep_their_order_and_wait_for_each_other(
    bench: Bench, clock: Clock, client: Client, source: MessageQueue
) -> None:
    bodies = [b"%d" % number for number in range(5)]
    for body in bodies:
        client.publish("", "source", body)
    bench.turn(2000)
    for _ in range(200):
        clock.go_on(3)
        bench.turn(10)
    assert not clock.has_work
    for queue in (FIRST, LAST):
        assert [client.get(queue) for _ in range(6)] == [*bodies, None]
    for queue in NAMES:
        client.channel.declarer.purge_queue(queue)
    bench.turn()
    assert bench.broker.memory.queues == source.message_count == 0


def test_deaths_that_a_letter_to_many_queues_causes_count_as_its_own(bench: Bench, clock: Clock) -> None:
    """Every queue sends on to all the others: without a limit there would be a dead letter for every order of the queues."""
    client = bench.client()
    client.channel.declarer.declare_exchange(Exchange("all", "fanout"))
    for name in NAMES:
        client.declare(name, max_length=0, dead_letter_exchange="all")
        client.channel.declarer.bind_queue(name, "all", "", {})
    client.publish("", FIRST, b"m")
    while clock.has_work:
        clock.go_on(10)
        bench.turn(10)
    assert bench.broker.dropped_letters > 0
    assert counts(bench) == [0] * QUEUES
    assert bench.broker.memory.queues == 0
