"""Producers and consumers: futures, callbacks, several at once, retries, and a graceful end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from queue import Queue as Inbox

import pytest

import holtmq
from tests.deadline import PATIENCE_S as WAIT_S
from tests.deadline import eventually


@pytest.fixture(params=["file", "memory"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holtmq.EmbeddedBroker]:
    """With the real clock: these tests wait on events."""
    path = tmp_path / "shop.db" if request.param == "file" else ":memory:"
    with holtmq.open(path, durability="off") as mq:
        yield mq


def test_a_sent_message_has_its_id_once_it_is_in_the_file(live: holtmq.EmbeddedBroker) -> None:
    producer = live.producer("inbox")
    ids = [producer.send(f"m{n}", ["orders", "food"]).result(WAIT_S) for n in range(3)]
    assert [message.id for message in live.queue("inbox").list_messages()] == ids


def test_many_sends_become_few_transactions(live: holtmq.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = live.producer("inbox")
    batches: list[int] = []
    original = producer.queue.put_many

    def put_many(batch: list[tuple[str, str]]) -> Sequence[int]:
        batches.append(len(batch))
        return original(batch)

    monkeypatch.setattr(producer.queue, "put_many", put_many)
    with live.database.lock():  # nothing can be written meanwhile, so what is sent piles up
        futures = [producer.send(f"m{n}", "k") for n in range(500)]
    ids = [future.result(WAIT_S) for future in futures]
    assert ids == sorted(ids)
    assert sum(batches) == 500
    assert len(batches) <= 3


def test_a_bad_message_fails_its_own_future_only(live: holtmq.EmbeddedBroker) -> None:
    producer = live.producer("inbox")
    with live.database.lock():
        futures = [producer.send("good", "a"), producer.send("bad", "k" * 300), producer.send("good", "b")]
    assert futures[0].result(WAIT_S)
    with pytest.raises(holtmq.InvalidValueError, match="at most 255 bytes"):
        futures[1].result(WAIT_S)
    assert futures[2].result(WAIT_S)
    assert live.queue("inbox").size() == 2


def test_closing_sends_what_was_handed_over(tmp_path: Path) -> None:
    with holtmq.open(tmp_path / "shop.db") as mq:
        producer = mq.producer("inbox")
        futures = [producer.send("m", "k") for _ in range(100)]
    assert all(future.done() for future in futures)
    with pytest.raises(holtmq.StoreClosedError):
        producer.send("late", "k")


def test_a_callback_gets_the_messages_of_its_pattern_and_they_are_gone(live: holtmq.EmbeddedBroker) -> None:
    seen: Inbox[str] = Inbox()
    consumer = live.consumer("inbox")
    consumer.on_message("orders.*.laptops.*", lambda message: seen.put(f"laptops {message.text}"))
    consumer.on_message("orders.#", lambda message: seen.put(f"orders {message.text}"))
    queue = live.queue("inbox")
    queue.put("a", "orders.electronics.laptops.premium")
    queue.put("b", "orders.food")
    queue.put("c", "notifications.user")
    assert [seen.get(timeout=WAIT_S) for _ in range(2)] == ["laptops a", "orders b"]
    consumer.close()
    assert [message.text for message in queue.list_messages()] == ["c"]


def test_a_pattern_that_is_added_later_counts_at_once(live: holtmq.EmbeddedBroker) -> None:
    seen: Inbox[str] = Inbox()
    consumer = live.consumer("inbox")
    consumer.on_message("nothing", lambda message: None)
    live.queue("inbox").put("m", "orders.food")
    assert live.queue("inbox").pop("orders.food") is not None  # the consumer is up and took nothing
    live.queue("inbox").put("n", "orders.food")
    consumer.on_message("orders.*", lambda message: seen.put(message.text))
    assert seen.get(timeout=WAIT_S) == "n"


def test_a_callback_that_raises_has_its_message_tried_again(
    live: holtmq.EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    seen: Inbox[int] = Inbox()

    def callback(message: holtmq.Message) -> None:
        seen.put(message.attempts)
        if message.attempts < 3:
            raise RuntimeError("not yet")

    consumer = live.consumer("inbox", back_off_s=0.001)
    consumer.on_message("#", callback)
    live.queue("inbox").put("m", "k")
    assert [seen.get(timeout=WAIT_S) for _ in range(3)] == [1, 2, 3]
    consumer.close()
    assert live.queue("inbox").list_messages() == []


def test_a_message_that_always_fails_ends_among_the_dead(live: holtmq.EmbeddedBroker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    live.declare_queue("inbox", max_attempts=2, dead_letter_queue="dead")
    live.declare_queue("dead")

    def callback(message: holtmq.Message) -> None:
        raise RuntimeError("never")

    live.consumer("inbox", back_off_s=0.001).on_message("#", callback)
    live.queue("inbox").put("m", "k")
    letter = live.queue("dead").pop(wait_s=WAIT_S)
    assert letter is not None
    assert letter.text == "m"


def test_several_callbacks_run_at_once(live: holtmq.EmbeddedBroker) -> None:
    together = threading.Barrier(3, timeout=WAIT_S)
    consumer = live.consumer("inbox", concurrency=3)
    done = threading.Semaphore(0)

    def callback(message: holtmq.Message) -> None:
        together.wait()
        done.release()

    consumer.on_message("#", callback)
    live.queue("inbox").put_many([("m", "k")] * 3)
    assert all(done.acquire(timeout=WAIT_S) for _ in range(3))


def is_closing(consumer: holtmq.CallbackConsumer) -> bool:
    try:
        consumer.on_message("no such key", print)
    except holtmq.StoreClosedError:
        return True
    return False


def test_closing_lets_a_running_callback_finish(live: holtmq.EmbeddedBroker) -> None:
    started, may_end = threading.Event(), threading.Event()

    def callback(message: holtmq.Message) -> None:
        started.set()
        may_end.wait(WAIT_S)

    consumer = live.consumer("inbox")
    consumer.on_message("#", callback)
    live.queue("inbox").put_many([("first", "k"), ("second", "k")])
    assert started.wait(WAIT_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    eventually(lambda: is_closing(consumer), "the consumer being told to stop")
    may_end.set()
    closing.join(WAIT_S)
    assert not closing.is_alive()
    assert [message.text for message in live.queue("inbox").list_messages()] == ["second"]


def test_a_waiting_pop_is_woken_by_a_put(live: holtmq.EmbeddedBroker) -> None:
    queue = live.queue("inbox")
    got: Inbox[holtmq.Message | None] = Inbox()
    waiting = threading.Thread(target=lambda: got.put(queue.pop("a.*", wait_s=WAIT_S)))
    waiting.start()
    queue.put("other", "b")
    queue.put("mine", "a.b")
    message = got.get(timeout=WAIT_S)
    assert message is not None
    assert message.text == "mine"


def test_a_waiting_pop_is_woken_when_a_delay_or_a_lease_is_over(live: holtmq.EmbeddedBroker) -> None:
    queue = live.queue("inbox")
    queue.put("late", delay_s=0.05)
    message = queue.pop(wait_s=WAIT_S, lease_s=0.05)
    assert message is not None
    again = queue.pop(wait_s=WAIT_S)
    assert again is not None
    assert (again.text, again.attempts) == ("late", 2)


def test_a_waiting_pop_gives_up_in_time(live: holtmq.EmbeddedBroker) -> None:
    assert live.queue("inbox").pop(wait_s=0.01) is None
