"""Pops by pattern are the router's patterns exactly, wherever the matching messages stand in the queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holtmq
from holtmq.embedded import QueueHandle
from holtmq.routing.pattern import split
from tests.conformance.naive import fits
from tests.conformance.strategies import keys, patterns
from tests.conformance.table import Bind, Publish, load
from tests.embedded.conftest import Clock

KEYS = ["orders.electronics.laptops.premium", "notifications.user.123.email", "logs.system.error.database", "orders.food"]
KEYS += [
    "orders.electronics",
    "orders.electronics.laptops",
    "orders.electronics.computers.laptops",
    "orders.electronics.premium",
]
KEYS += ["orders.electronics.computers.accessories.premium", "orders", "a.b.c", "a.x.y.b.c", "a", "a.a", "a.x.a", "x", "b.x"]
KEYS += ["", ".", "a.", ".a", "a..b", "it's.quoted", 'dou"ble', "per%cent", "under_score", "a;DROP TABLE messages;--", "☃.ü"]
PATTERNS = ["orders.*.laptops", "orders.#", "orders.electronics.#.premium", "orders.*.laptops.*", "orders.electronics.#"]
PATTERNS += ["orders.#.premium", "#", "#.x", "a.#.b.c", "a.#.a", "it's.*", "*.quoted", 'dou"ble', "per%cent", "%", "_", "a._"]
PATTERNS += ["", "*", "a.", "*.", ".*", "a.*.b", "a.#.b", "under_score", "a;DROP TABLE messages;--", "☃.*", "#.#", "orders.*"]


def matching(pattern: str, among: list[str]) -> list[str]:
    return [key for key in among if fits(tuple(split(pattern)), tuple(split(key)))]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_takes_what_it_fits_in_order_and_leaves_the_rest(mq: holtmq.EmbeddedBroker, pattern: str) -> None:
    queue = mq.queue("q")
    queue.put_many([(key, key) for key in KEYS])
    taken = []
    while (message := queue.pop(pattern)) is not None:
        taken.append(message.routing_key)
    assert taken == matching(pattern, KEYS)
    assert sorted(m.routing_key for m in queue.list_messages("ready")) == sorted(set(KEYS) - set(taken))


def test_the_routers_table_of_topic_cases_holds_for_pops(mq: holtmq.EmbeddedBroker) -> None:
    """Each topic scenario of the table: the patterns that are bound pop the messages that are published."""
    for number, scenario in enumerate(s for s in load() if s.rule.startswith("topic:")):
        bound = {
            s.action.binding.routing_key: s.action.binding.destination for s in scenario.steps if isinstance(s.action, Bind)
        }
        published = {s.action.key: s.expected for s in scenario.steps if isinstance(s.action, Publish)}
        queue = mq.queue(f"q{number}")
        queue.put_many([("m", key) for key in published])
        for pattern, name in bound.items():
            found = {message.routing_key for message in queue.pop_many(len(published), pattern)}
            assert found == {key for key, queues in published.items() if name in queues}, pattern  # type: ignore[operator]
            for message in queue.list_messages("locked"):
                queue.retry(message)


@given(st.lists(st.tuples(keys, st.integers(0, 2)), max_size=30), st.lists(patterns, min_size=1, max_size=2))
@settings(max_examples=150, deadline=None)
def test_pops_agree_with_the_naive_matcher(messages: list[tuple[str, int]], wanted: list[str]) -> None:
    with holtmq.open(":memory:") as mq:
        queue = mq.declare_queue("q", max_priority=9)
        ids = [queue.put(key, key, priority=priority) for key, priority in messages]
        expected = [
            (-priority, message_id)
            for message_id, (key, priority) in zip(ids, messages, strict=True)
            if any(matching(pattern, [key]) for pattern in wanted)
        ]
        popped = [message.id for message in queue.pop_many(100, wanted)]
        assert popped == [message_id for _, message_id in sorted(expected)]


def fill(queue: QueueHandle, noise: int) -> None:
    queue.put_many([("noise", f"noise.k{n % 100}") for n in range(noise)])
    queue.put_many([(f"m{n}", f"wanted.k{n}") for n in range(200)])


def test_a_pattern_of_many_keys_finds_what_lies_deep_in_the_queue(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("q")
    fill(queue, noise=6_000)
    assert [message.text for message in queue.pop_many(5, "wanted.*")] == ["m0", "m1", "m2", "m3", "m4"]
    message = queue.pop("wanted.#")
    assert message is not None
    assert message.text == "m5"


def test_what_becomes_ready_before_the_place_last_looked_at_is_found(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    """The place up to which nothing was found is kept; whatever becomes ready before it must be seen all the same."""
    queue = mq.declare_queue("q", max_priority=9)
    wanted = [f"wanted.k{n}" for n in range(60)]
    queue.put_many([(f"early {key}", key) for key in wanted])
    queue.put_many([("noise", "noise")] * 1000)
    queue.put_many([(f"late {key}", key) for key in wanted])

    def pop() -> holtmq.Message:
        message = queue.pop("wanted.#", lease_s=60)
        assert message is not None
        return message

    held = [pop() for _ in wanted]
    assert [pop().text for _ in range(2)] == ["late wanted.k0", "late wanted.k1"]
    held[5].retry()
    assert pop().text == "early wanted.k5"
    assert pop().text == "late wanted.k2"
    queue.put("urgent", "wanted.k0", priority=9)
    assert pop().text == "urgent"
    assert pop().text == "late wanted.k3"
    held[7].fail()
    queue.retry(held[7].id)
    assert pop().text == "early wanted.k7"
    assert pop().text == "late wanted.k4"
    clock.advance(61)
    assert [pop().text for _ in range(2)] == ["urgent", "early wanted.k0"], "their leases are over"


def test_an_undone_transaction_leaves_no_trace_in_what_is_remembered(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("q")
    fill(queue, noise=500)

    def change_of_mind() -> None:
        with mq.transaction():
            assert len(queue.pop_many(150, "wanted.#")) == 150
            queue.put("new", "wanted.new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change_of_mind()
    assert [message.text for message in queue.pop_many(2, "wanted.#")] == ["m0", "m1"]
    assert queue.pop("wanted.new") is None
    queue.put("other", "other.new")
    assert queue.pop("wanted.new") is None
