"""Queues of a HoltMQ file: put, pop, settle, look, tidy up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holtmq
from holtmq.embedded import QueueHandle
from holtmq.queueing.letter_chain import MAX_DEATHS
from holtmq.store.sql.declarations import SqlDeclarations
from tests.embedded.conftest import Clock


@pytest.fixture
def queue(mq: holtmq.EmbeddedBroker) -> QueueHandle:
    return mq.queue("q")


def popped(queue: QueueHandle, pattern: str | None = None) -> str | None:
    message = queue.pop(pattern)
    return None if message is None else message.text


def deaths(message: holtmq.Message) -> list[Any]:
    recorded: Any = message.headers["x-death"]
    return list(recorded)


def test_messages_come_in_the_order_in_which_they_were_put(queue: QueueHandle) -> None:
    ids = [queue.put(f"m{n}") for n in range(5)] + list(queue.put_many([("m5", "a"), ("m6", "b")])) + [queue.put("m7")]
    assert ids == sorted(ids)
    assert [popped(queue) for _ in range(9)] == [f"m{n}" for n in range(8)] + [None]


def test_the_order_is_of_arrival_even_where_the_clock_runs_backwards(queue: QueueHandle, clock: Clock) -> None:
    queue.put("first")
    clock.advance(-3600)
    queue.put("second")
    assert [popped(queue), popped(queue)] == ["first", "second"]
    clock.advance(-3600)
    queue.put("third")
    assert popped(queue) == "third"


def test_an_id_is_never_given_twice(queue: QueueHandle, clock: Clock) -> None:
    ids = []
    for _ in range(3):
        ids.append(queue.put("m"))
        message = queue.pop()
        assert message is not None
        message.ack()
        clock.advance(-1)
    assert len(set(ids)) == 3


def test_higher_priorities_come_first_and_equal_ones_in_order(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("urgent", max_priority=255)
    for text, priority in (("a", 0), ("b", 5), ("c", 5), ("d", None), ("e", 255)):
        queue.put(text, priority=priority)
    assert [popped(queue) for _ in range(5)] == ["e", "b", "c", "a", "d"]


def test_a_priority_above_the_queues_highest_counts_as_the_highest(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("urgent", max_priority=5)
    for text, priority in (("a", 4), ("b", 5), ("c", 9)):
        queue.put(text, priority=priority)
    assert [popped(queue) for _ in range(3)] == ["b", "c", "a"]


def test_a_priority_in_a_queue_without_priorities_is_refused(queue: QueueHandle) -> None:
    with pytest.raises(holtmq.InvalidValueError, match="queue 'q' has no priorities, got priority 5: declare the queue with"):
        queue.put("m", priority=5)
    queue.put("m", priority=0)
    assert queue.size() == 1


def test_a_message_knows_what_it_was_put_with(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.declare_queue("urgent", max_priority=5)
    message_id = queue.put({"a": [1, "ü"]}, ["x", "y"], headers={"n": 1, "raw": b"\x00"}, priority=3, ttl_ms=5000)
    message = queue.get(message_id)
    assert message is not None
    assert (message.id, message.routing_key, message.priority, message.state, message.attempts) == (
        message_id,
        "x.y",
        3,
        "ready",
        0,
    )
    assert message.json() == {"a": [1, "ü"]}
    assert message.headers == {"n": 1, "raw": b"\x00"}
    assert message.properties["content_type"] == "application/json"
    assert message.created_at.timestamp() == clock()
    assert message.expires_at is not None
    assert message.expires_at.timestamp() == clock() + 5


@pytest.mark.parametrize(
    ("content", "body"), [(b"\x00\xff", b"\x00\xff"), ("ü", "ü".encode()), ([1], b"[1]"), (None, b"null"), (b"", b"")]
)
def test_content_is_bytes_text_or_json(queue: QueueHandle, content: Any, body: bytes) -> None:
    queue.put(content)
    message = queue.pop()
    assert message is not None
    assert message.body == body


def test_an_acknowledged_message_is_gone(queue: QueueHandle) -> None:
    queue.put("m")
    message = queue.pop()
    assert message is not None
    assert (message.state, message.attempts) == ("locked", 1)
    message.ack()
    assert queue.get(message.id) is None
    assert queue.list_messages() == []


def test_settling_twice_is_refused(queue: QueueHandle) -> None:
    queue.put("m")
    message = queue.pop()
    assert message is not None
    message.ack()
    for settle in (message.ack, message.fail, message.retry, lambda: message.extend(5)):
        with pytest.raises(holtmq.LeaseLostError, match="is not locked by this caller any more"):
            settle()


def test_a_message_comes_back_when_its_lease_runs_out(queue: QueueHandle, clock: Clock) -> None:
    queue.put("m")
    first = queue.pop(lease_s=10)
    clock.advance(9.9)
    assert queue.pop() is None
    clock.advance(0.2)
    second = queue.pop(lease_s=10)
    assert first is not None
    assert second is not None
    assert (second.id, second.attempts) == (first.id, 2)
    with pytest.raises(holtmq.LeaseLostError):
        first.ack()
    second.ack()


def test_a_lease_that_ran_out_can_still_be_settled_if_nobody_else_took_the_message(queue: QueueHandle, clock: Clock) -> None:
    queue.put("m")
    message = queue.pop(lease_s=10)
    clock.advance(100)
    assert message is not None
    message.ack()
    assert queue.pop() is None


def test_extending_a_lease_keeps_the_message(queue: QueueHandle, clock: Clock) -> None:
    queue.put("m")
    message = queue.pop(lease_s=10)
    assert message is not None
    message = message.extend(100)
    clock.advance(50)
    assert queue.pop() is None
    assert message.lease_until is not None
    message.ack()


def test_a_message_that_is_retried_keeps_its_place(queue: QueueHandle) -> None:
    queue.put_many([("a", ""), ("b", "")])
    first = queue.pop()
    assert first is not None
    first.retry()
    assert [popped(queue), popped(queue)] == ["a", "b"]


def test_a_retry_can_wait(queue: QueueHandle, clock: Clock) -> None:
    queue.put("m")
    message = queue.pop()
    assert message is not None
    message.retry(delay_s=5)
    assert queue.pop() is None
    clock.advance(5)
    assert popped(queue) == "m"


def test_a_delayed_message_is_not_to_be_had_before(queue: QueueHandle, clock: Clock) -> None:
    queue.put("late", delay_s=10)
    queue.put("early")
    assert [popped(queue), popped(queue)] == ["early", None]
    clock.advance(10)
    assert popped(queue) == "late"


def test_a_failed_message_stays_until_it_is_retried(queue: QueueHandle) -> None:
    queue.put("m")
    message = queue.pop()
    assert message is not None
    message.fail()
    assert queue.pop() is None
    assert [m.id for m in queue.list_messages("failed")] == [message.id]
    queue.retry(message.id)
    assert popped(queue) == "m"


def test_retrying_what_is_locked_or_missing_is_refused(queue: QueueHandle) -> None:
    queue.put("m")
    message = queue.pop()
    assert message is not None
    with pytest.raises(holtmq.LeaseLostError, match="is locked; its holder can retry it"):
        queue.retry(message.id)
    with pytest.raises(holtmq.NotFoundError, match="no message 17 in queue 'q'"):
        queue.retry(17)


def test_a_message_tried_too_often_is_dead(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.declare_queue("poison", max_attempts=2)
    queue.put("m")
    for _ in range(2):
        assert popped(queue) == "m"
        clock.advance(61)
    assert queue.pop() is None
    (dead,) = queue.list_messages("dead")
    assert (dead.text, dead.attempts) == ("m", 2)
    queue.retry(dead.id)
    assert popped(queue) == "m"


def test_a_dead_message_goes_to_the_dead_letter_queue(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("work", max_attempts=1, dead_letter_queue="dead")
    dead_letters = mq.declare_queue("dead")
    queue.put("m", "a.b", headers={"h": 1})
    message = queue.pop()
    assert message is not None
    message.retry()
    assert queue.list_messages() == []
    letter = dead_letters.pop("dead")
    assert letter is not None
    assert (letter.text, letter.attempts, letter.headers["h"]) == ("m", 1, 1)
    (death,) = deaths(letter)
    assert (death["queue"], death["reason"], death["count"], death["routing-keys"]) == ("work", "delivery_limit", 1, ("a.b",))


def test_a_dead_letter_may_push_another_message_out_of_its_queue(mq: holtmq.EmbeddedBroker) -> None:
    """A long chain of queues that hold nothing: each sends the message on to the next."""
    names = [f"q{n}" for n in range(MAX_DEATHS)]
    for name, following in zip(names, [*names[1:], "end"], strict=True):
        mq.declare_queue(name, arguments={"x-max-length": 0}, dead_letter_queue=following)
    end = mq.declare_queue("end")
    mq.queue("q0").put("m")
    letter = end.pop()
    assert letter is not None
    assert (letter.text, len(deaths(letter))) == ("m", MAX_DEATHS)
    mq.declare_queue("one-more", arguments={"x-max-length": 0}, dead_letter_queue="q0")
    mq.queue("one-more").put("m")
    assert end.pop() is None


def test_dead_letters_may_go_through_an_internal_exchange(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange("graves", "topic", internal=True)
    dead_letters = mq.declare_queue("dead")
    mq.bind("dead", "graves", "#")
    queue = mq.declare_queue("work", max_attempts=1, arguments={"x-dead-letter-exchange": "graves"})
    queue.put("m", "a.b")
    message = queue.pop()
    assert message is not None
    message.retry()
    assert popped(dead_letters, "a.b") == "m"


def test_an_expired_message_is_dropped_or_goes_to_the_dead_letters(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    plain, lettered, dead = (
        mq.declare_queue("plain", ttl_ms=1000),
        mq.declare_queue("lettered", dead_letter_queue="dead"),
        mq.declare_queue("dead"),
    )
    plain.put("a")
    plain.put("b", ttl_ms=60_000)
    lettered.put("c", ttl_ms=500)
    clock.advance(1.001)
    assert plain.pop() is None, "the shorter of the two times to live counts"
    assert lettered.pop() is None
    assert plain.list_messages() == lettered.list_messages() == []
    assert popped(dead) == "c"


def test_a_full_queue_refuses_and_nothing_is_added(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("small", max_length=2)
    queue.put("a")
    assert not queue.full()
    with pytest.raises(
        holtmq.QueueFullError, match=r"queue 'small' is full: it holds 1 ready messages \(1 bytes\) of at most 2 messages, "
    ):
        queue.put_many([("b", ""), ("c", "")])
    assert queue.size() == 1
    queue.put("b")
    assert queue.full()
    with pytest.raises(holtmq.QueueFullError):
        queue.put("c")
    queue.pop()
    queue.put("c")  # only ready messages count


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"x-single-active-consumer": True}, "x-single-active-consumer"), ({"x-expires": 60_000}, "x-expires")],
)
def test_what_only_a_broker_can_do_is_refused_by_name(mq: holtmq.EmbeddedBroker, arguments: Any, named: str) -> None:
    with pytest.raises(holtmq.PreconditionFailedError, match=named):
        mq.declare_queue("q", arguments=arguments)


def test_a_policy_that_only_a_broker_can_follow_is_refused_by_name(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("q")
    SqlDeclarations(mq.database).set_policy(holtmq.Policy("idle", "^q$", {"expires": 1000}, "queues"))
    queue.put("m")
    with pytest.raises(holtmq.PreconditionFailedError, match="queue 'q' expires when it is unused for 1000 ms"):
        queue.pop()
    with pytest.raises(holtmq.PreconditionFailedError, match="expires"):
        mq.consumer("q")
    queue.put("still accepted")


def test_a_rejected_put_to_a_queue_with_dead_letters_keeps_the_dead_letter(mq: holtmq.EmbeddedBroker) -> None:
    arguments = {"x-overflow": "reject-publish-dlx"}
    queue, dead = mq.declare_queue("q", max_length=1, dead_letter_queue="dead", arguments=arguments), mq.declare_queue("dead")
    queue.put("a")
    with pytest.raises(holtmq.QueueFullError):
        queue.put("b", "k")
    with pytest.raises(holtmq.QueueFullError):
        queue.put_many([("c", "k"), ("d", "k")])
    letters = dead.pop_many(5)
    assert [letter.text for letter in letters] == ["b", "c", "d"]
    assert [(death["reason"], death["routing-keys"]) for letter in letters for death in deaths(letter)] == [
        ("maxlen", ("k",))
    ] * 3


def test_a_length_limit_counts_what_other_processes_put(tmp_path: Path) -> None:
    """The measure of a queue is cached; two that have the file open must notice each other's changes."""
    with holtmq.open(tmp_path / "a.db", durability="off") as one, holtmq.open(tmp_path / "a.db", durability="off") as other:
        here = one.declare_queue("q", arguments={"x-max-length": 3, "x-max-length-bytes": 8})
        there = other.queue("q")
        for text in ("aa", "bb", "cc", "dd"):
            here.put(text)
        there.put("ee")
        here.put("ff")
        message = there.pop()
        assert message is not None
        message.ack()
        here.put("gggg")
        assert [each.text for each in there.pop_many(9)] == ["ee", "ff", "gggg"]
        here.put("hh")
        here.put("ii")
        assert there.size() == 2


def test_a_delayed_message_counts_towards_the_limit_when_it_becomes_available(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.declare_queue("q", arguments={"x-max-length": 2})
    queue.put("a")
    queue.put("late", delay_s=10)
    queue.put("b")
    assert [message.text for message in queue.list_messages()] == ["a", "late", "b"]
    clock.advance(10)
    assert popped(queue) == "late", "the oldest was dropped"
    assert popped(queue) == "b"


def test_a_rejected_message_is_dead_lettered_once(mq: holtmq.EmbeddedBroker) -> None:
    queue, dead = mq.declare_queue("q", dead_letter_queue="dead"), mq.declare_queue("dead")
    queue.put("m")
    message = queue.pop()
    assert message is not None
    message.reject()
    with pytest.raises(holtmq.LeaseLostError):
        message.reject()
    assert [letter.text for letter in dead.pop_many(5)] == ["m"]
    assert queue.list_messages() == []


def test_an_expired_message_reaches_a_waiting_consumer_of_the_dead_letter_queue(tmp_path: Path) -> None:
    """Nobody touches the first queue: the consumer of the second one moves its expired messages."""
    with holtmq.open(tmp_path / "a.db", durability="off") as mq:
        delay, work = mq.declare_queue("delay", ttl_ms=50, dead_letter_queue="work"), mq.declare_queue("work")
        delay.put("m")
        message = work.pop(wait_s=30)
        assert message is not None
        assert message.text == "m"


def done(queue: QueueHandle) -> list[str]:
    return [message.text for message in queue.list_messages("done")]


def test_retention_keeps_what_is_done_for_its_time(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.declare_queue("kept", retention_s=60)
    queue.put_many([("a", ""), ("b", ""), ("c", "")])
    messages = queue.pop_many(3, lease_s=600)
    messages[0].ack()
    clock.advance(40)
    messages[1].ack()
    assert done(queue) == ["a", "b"]
    clock.advance(30)
    messages[2].ack()
    assert done(queue) == ["b", "c"], "what is over its time goes by itself"
    assert queue.prune(older_than_s=20) == 1
    assert done(queue) == ["c"]
    assert queue.prune() == 1


def test_looking_changes_nothing(queue: QueueHandle) -> None:
    queue.put_many([("a", "x.y"), ("b", "z")])
    for _ in range(2):
        first, second = queue.peek(), queue.peek("z")
        assert first is not None
        assert second is not None
        assert (first.text, second.text, first.attempts) == ("a", "b", 0)
    assert (queue.size(), queue.size("locked"), queue.empty(), queue.full()) == (2, 0, False, False)
    assert queue.peek("nothing") is None


def test_purge_removes_what_is_ready_and_leaves_what_is_locked(queue: QueueHandle) -> None:
    queue.put_many([("a", ""), ("b", ""), ("c", "")])
    queue.put("d", delay_s=5)
    locked = queue.pop()
    assert queue.purge() == 3
    assert (queue.size(), queue.size("locked"), queue.empty()) == (0, 1, True)
    assert locked is not None
    locked.ack()


def test_messages_locked_for_long_can_be_listed(queue: QueueHandle, clock: Clock) -> None:
    queue.put_many([("a", ""), ("b", "")])
    queue.pop(lease_s=600)
    clock.advance(10)
    queue.pop(lease_s=600)
    assert [m.text for m in queue.list_locked(longer_than_s=5)] == ["a"]


def test_several_can_be_popped_at_once(queue: QueueHandle) -> None:
    queue.put_many([(f"m{n}", "even" if n % 2 == 0 else "odd") for n in range(10)])
    assert [m.text for m in queue.pop_many(3)] == ["m0", "m1", "m2"]
    assert [m.text for m in queue.pop_many(3, "odd")] == ["m3", "m5", "m7"]
    assert [m.text for m in queue.pop_many(100, ["odd", "even"])] == ["m4", "m6", "m8", "m9"]


def test_queues_do_not_see_each_other(mq: holtmq.EmbeddedBroker) -> None:
    one, other = mq.queue("one"), mq.queue("other")
    one.put("1", "k")
    other.put("2", "k")
    assert (popped(other, "k"), popped(one), popped(one)) == ("2", "1", None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: q.put("m", "k" * 256), "a routing key must be at most 255 bytes in UTF-8, got 256"),
        (lambda q: q.put("m", 5), "a routing key must be a string or a list of its segments, got integer 5"),
        (lambda q: q.put("m", ["a", 5]), "a routing key must be a string or a list of its segments, got array of 2"),
        (lambda q: q.put(object()), "a message must be bytes, text or JSON, got object"),
        (lambda q: q.put("m", priority=256), "a priority must be an integer from 0 to 255, got integer 256"),
        (lambda q: q.put("m", priority=True), "a priority must be an integer from 0 to 255, got boolean true"),
        (lambda q: q.put("m", ttl_ms=-1), "a time to live must be an integer from 0 to 4294967295, got integer -1"),
        (lambda q: q.put("m", headers=[1]), "must be a table (a mapping), got array of 1"),
        (lambda q: q.pop(5), "a pattern must be a string"),
        (lambda q: q.pop_many(0), "expected at least one message"),
        (lambda q: q.pop(lease_s=0), "a lease above 0 s"),
        (lambda q: q.list_messages("lost"), "a state must be one of ready, locked, done, failed, dead, damaged, got 'lost'"),
    ],
)
def test_bad_input_is_refused_in_words(queue: QueueHandle, call: Any, message: str) -> None:
    with pytest.raises((holtmq.InvalidValueError, TypeError)) as refusal:
        call(queue)
    assert message in str(refusal.value)
    assert queue.size() == 0
