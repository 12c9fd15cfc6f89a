"""The rules of queues, without sockets and on a clock that the test sets."""

from __future__ import annotations

from typing import Any

import pytest

from holtmq.broker import memory as memory_module
from holtmq.errors import NotFoundError, PreconditionFailedError
from holtmq.queueing.letter_chain import MAX_DEATHS
from holtmq.steps import complete
from holtmq.topology import Exchange, Policy
from tests.broker.conftest import Bench


def test_a_message_expires_after_its_time_to_live_and_not_before(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", message_ttl=1000)
    client.publish("", "q")
    bench.turn(wait_ms=1000)
    assert bench.count("q") == 1
    bench.turn(wait_ms=1)
    assert bench.count("q") == 0


def test_a_queue_expires_after_it_was_unused_for_x_expires(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", expires=1000)
    bench.turn(wait_ms=900)
    client.get("q")
    bench.turn(wait_ms=900)
    assert bench.count("q") == 0
    bench.turn(wait_ms=101)
    with pytest.raises(NotFoundError):
        bench.count("q")


def test_a_queue_with_a_consumer_does_not_expire_until_the_consumer_is_cancelled(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", expires=1000)
    tag = client.consume("q")
    bench.turn(wait_ms=5000)
    client.channel.cancel(tag)
    bench.turn(wait_ms=999)
    assert bench.count("q") == 0
    bench.turn(wait_ms=2)
    with pytest.raises(NotFoundError):
        bench.count("q")


def test_using_a_queue_often_does_not_pile_up_timers(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", expires=60_000)
    for _ in range(1000):
        client.get("q")
    assert bench.broker.timer_count == 1


def test_messages_that_expire_at_the_same_time_share_a_timer(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", message_ttl=60_000)
    for _ in range(1000):
        client.publish("", "q", b"x")
    assert bench.broker.timer_count == 1


def test_a_message_requeued_too_often_is_dead_lettered(bench: Bench) -> None:
    client = bench.client()
    client.declare("dead")
    client.declare("q", delivery_limit=2, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("", "q", b"poison")
    client.consume("q")
    for attempt in range(3):
        bench.turn()
        tag, _, is_redelivered = client.deliveries[-1]
        assert is_redelivered == (attempt > 0)
        client.channel.reject(tag, multiple=False, requeue=True)
    bench.turn()
    assert len(client.deliveries) == 3
    letter = client.channel.get("dead", is_auto_ack=True)
    assert letter is not None
    deaths: Any = letter.message.properties.headers["x-death"]
    assert [death["reason"] for death in deaths] == ["delivery_limit"]


def test_a_binding_sets_a_priority_and_a_time_to_live(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", max_priority=9)
    client.channel.declarer.bind_queue("q", "amq.topic", "urgent", {"x-priority": 7})
    client.channel.declarer.bind_queue("q", "amq.topic", "brief", {"x-message-ttl": 100})
    client.publish("amq.topic", "brief", b"brief")
    client.publish("amq.topic", "other", b"unbound")
    client.publish("amq.topic", "urgent", b"urgent")
    assert client.get("q") == b"urgent"
    bench.turn(wait_ms=102)
    assert client.get("q") is None


def test_a_policy_applies_to_existing_queues_until_it_is_removed(bench: Bench) -> None:
    client = bench.client()
    client.declare("orders")
    for _ in range(5):
        client.publish("", "orders")
    complete(bench.broker.set_policy(Policy("short", "^ord", {"max-length": 2})))
    assert bench.count("orders") == 2
    complete(bench.broker.remove_policy("/", "short"))
    for _ in range(5):
        client.publish("", "orders")
    assert bench.count("orders") == 7


def test_the_lower_of_the_limits_by_argument_and_by_policy_applies(bench: Bench) -> None:
    client = bench.client()
    complete(bench.broker.set_policy(Policy("short", "", {"max-length": 3})))
    client.declare("long", max_length=5)
    client.declare("short", max_length=2)
    for _ in range(9):
        client.publish("", "long")
        client.publish("", "short")
    assert (bench.count("long"), bench.count("short")) == (3, 2)


def test_a_confirm_of_a_persistent_message_waits_for_the_disk(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", durable=True)
    bench.to_disk()
    client.channel.select_confirms()
    for _ in range(3):
        client.publish("", "q", delivery_mode=2)
    bench.turn()
    assert client.confirms == []
    bench.to_disk()
    assert client.confirms == [(3, True)]


def test_a_confirm_of_a_transient_message_does_not_wait_for_the_disk(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", durable=True)
    client.channel.select_confirms()
    client.publish("", "q", delivery_mode=1)
    bench.turn()
    assert client.confirms == [(1, False)]


def test_a_message_published_during_a_commit_is_confirmed_with_the_next_batch(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", durable=True)
    client.channel.select_confirms()
    client.publish("", "q", delivery_mode=2)
    bench.turn()
    bench.broker.sealed()
    bench.journal.gather()
    assert bench.journal.begin()
    complete(bench.journal.write())
    client.publish("", "q", delivery_mode=2)
    bench.turn()
    bench.broker.committed(bench.journal.commit())
    bench.turn()
    assert client.confirms == [(1, False)]
    bench.to_disk()
    assert client.confirms == [(1, False), (2, False)]


def test_a_message_acknowledged_before_it_was_written_is_never_written(bench: Bench) -> None:
    client = bench.client()
    client.declare("q", durable=True)
    bench.to_disk()
    client.channel.select_confirms()
    client.consume("q")
    client.publish("", "q", delivery_mode=2)
    bench.turn()
    client.channel.ack(1, multiple=False)
    bench.to_disk()
    assert client.confirms == [(1, False)]
    assert bench.database.connection.execute("SELECT count(*) FROM log_chunks").fetchone() == (0,)


def test_unacknowledged_messages_of_a_backlog_are_not_kept_in_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 10)
    client = bench.client()
    client.declare("q", durable=True)
    for number in range(200):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
        bench.turn()
    bench.to_disk()
    client.consume("q")
    bench.turn()
    bench.to_disk()
    held = [message for _, message, _ in client.deliveries]
    assert len(held) == 200
    assert sum(1 for message in held if message.content) < 50
    client.channel.reject(0, multiple=True, requeue=True)
    bench.turn()
    again = client.deliveries[200:]
    assert [is_redelivered for _, _, is_redelivered in again] == [True] * 200
    assert [message.id for _, message, _ in again] == [message.id for message in held]


def test_no_message_overtakes_one_that_no_longer_fits_into_memory(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message that is left to the file here has a priority, so it does not take the hot path; the next one does."""
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 10)
    client = bench.client()
    client.declare("q", durable=True)
    bench.turn()
    for number in range(40):
        priority = number % 2 or None
        client.publish("", "q", b"%d" % number, delivery_mode=2, priority=priority)
    bench.to_disk()
    assert [client.get("q") for _ in range(41)] == [*(b"%d" % number for number in range(40)), None]


def test_a_message_evicted_from_memory_is_read_again_when_it_is_requeued(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 1)
    client = bench.client()
    client.declare("dead")
    client.declare("q", durable=True, dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(20):
        client.publish("", "q", b"%d" % number, message_id=str(number), delivery_mode=2)
        bench.turn()
    bench.to_disk()
    tag = client.consume("q")
    bench.turn()
    bench.to_disk()
    client.channel.cancel(tag)
    client.channel.reject(19, multiple=True, requeue=True)
    client.channel.reject(20, multiple=False, requeue=False)
    bench.turn()
    assert [client.get("q") for _ in range(20)] == [b"%d" % number for number in range(19)] + [None]
    assert client.get("dead") == b"19"


def test_a_consumer_that_cannot_be_written_to_gets_nothing_until_it_can(bench: Bench) -> None:
    client = bench.client()
    client.declare("q")
    client.consume("q", auto_ack=True)
    client.is_writable = False
    client.publish("", "q")
    bench.turn()
    assert client.deliveries == []
    client.is_writable = True
    client.channel.resume()
    bench.turn()
    assert client.bodies == [b"m"]


def test_closing_a_session_requeues_its_unacknowledged_messages(bench: Bench) -> None:
    one, other = bench.client(), bench.client()
    one.declare("q")
    one.publish("", "q", b"1")
    one.publish("", "q", b"2")
    one.consume("q")
    bench.turn()
    other.consume("q")
    complete(one.channel.session.close())
    bench.turn()
    assert [(message.body, again) for _, message, again in other.deliveries] == [(b"1", True), (b"2", True)]


def test_a_transaction_across_queues_is_one_batch(bench: Bench) -> None:
    client = bench.client()
    client.declare("a", durable=True)
    client.declare("b", durable=True)
    bench.to_disk()
    client.channel.select_transactions()
    client.publish("", "a", delivery_mode=2)
    client.publish("", "b", delivery_mode=2)
    assert not bench.journal.has_changes
    batch = bench.journal.batch
    client.channel.commit()
    assert bench.journal.has_changes
    assert bench.journal.batch == batch


def test_an_invalid_expiration_is_refused_and_nothing_is_published(bench: Bench) -> None:
    client = bench.client()
    client.declare("q")
    with pytest.raises(PreconditionFailedError, match="'-1'"):
        client.publish("", "q", expiration="-1")
    assert bench.count("q") == 0


def test_transient_queues_and_bindings_are_not_written_to_the_journal(bench: Bench) -> None:
    client = bench.client()
    client.declare("durable", durable=True)
    client.channel.declarer.bind_queue("durable", "amq.topic", "kept", {})
    bench.to_disk()
    client.declare("transient")
    client.channel.declarer.bind_queue("transient", "amq.topic", "k", {})
    client.channel.declarer.unbind_queue("transient", "amq.topic", "k", {})
    assert not bench.journal.has_changes
    client.channel.declarer.delete_queue("durable", if_unused=False, if_empty=False)
    bench.to_disk()
    left = bench.database.connection.execute("SELECT (SELECT count(*) FROM queues), (SELECT count(*) FROM bindings)")
    assert left.fetchone() == (0, 0)


def test_dead_letters_that_are_alike_follow_changes_of_the_topology(bench: Bench) -> None:
    client = bench.client()
    declarer = client.channel.declarer
    declarer.declare_exchange(Exchange("dead", "fanout"))
    client.declare("first")
    client.declare("second")
    client.declare("q", max_length=0, dead_letter_exchange="dead")

    def arrived(body: bytes) -> list[bytes | None]:
        client.publish("", "q", body)
        bench.turn()
        return [client.get(name) if bench.broker.vhosts["/"].find(name) else None for name in ("first", "second")]

    assert arrived(b"1") == [None, None]
    declarer.bind_queue("first", "dead", "", {})
    assert arrived(b"2") == [b"2", None]
    declarer.bind_queue("second", "dead", "", {})
    assert arrived(b"3") == [b"3", b"3"]
    declarer.unbind_queue("first", "dead", "", {})
    assert arrived(b"4") == [None, b"4"]
    declarer.delete_queue("second", if_unused=False, if_empty=False)
    assert arrived(b"5") == [None, None]


@pytest.mark.parametrize(("length", "arrived"), [(MAX_DEATHS, b"m"), (MAX_DEATHS + 1, None)])
def test_a_chain_of_dead_letter_queues_has_a_limit(bench: Bench, length: int, arrived: bytes | None) -> None:
    client = bench.client()
    names = [f"q{number}" for number in range(length)]
    for name, following in zip(names, [*names[1:], "end"], strict=True):
        client.declare(name, max_length=0, dead_letter_exchange="", dead_letter_routing_key=following)
    client.declare("end")
    client.publish("", "q0", b"m")
    bench.turn()
    assert client.get("end") == arrived
    assert bench.broker.dropped_letters == (arrived is None)


def test_queues_that_dead_letter_to_each_other_come_to_an_end(bench: Bench) -> None:
    """Every queue sends on to all the others: without a limit there would be a dead letter for every order of the queues."""
    client = bench.client()
    client.channel.declarer.declare_exchange(Exchange("all", "fanout"))
    for name in (f"q{number}" for number in range(12)):
        client.declare(name, max_length=0, dead_letter_exchange="all")
        client.channel.declarer.bind_queue(name, "all", "", {})
    client.publish("all", "", b"m")
    client.publish("", "q0", b"m")
    bench.turn()
    assert bench.broker.dropped_letters > 0
    client.declare("bystander")
    client.publish("", "bystander", b"fine")
    assert client.get("bystander") == b"fine"
