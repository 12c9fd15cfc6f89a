"""Messages that are claimed and acknowledged together: each keeps its own lease, order and attempts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue as Inbox

import pytest

import holtmq
from holtmq.embedded import claimed_batch
from holtmq.embedded.callback_consumer import BATCH_S, LONGEST_BATCH_S
from holtmq.errors import LeaseLostError
from tests.deadline import PATIENCE_S, eventually
from tests.embedded.conftest import Clock

LONG_S = 3600.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[holtmq.EmbeddedBroker]:
    """With the real clock."""
    with holtmq.open(tmp_path / "shop.db", durability="off") as mq:
        yield mq


class Stopwatch:
    """Stands for the module `time` of batches: a batch is as old as the test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Make callbacks take no time, on a busy machine as well, unless the test moves the hands."""
    stopwatch = Stopwatch()
    monkeypatch.setattr(claimed_batch, "time", stopwatch)
    return stopwatch


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What consumers have claimed, batch by batch."""
    claims: list[list[str]] = []
    original = holtmq.QueueHandle.pop_or_wait

    def pop_or_wait(*arguments: object, **options: object) -> list[holtmq.Message]:
        messages = original(*arguments, **options)  # type: ignore[arg-type]
        if messages:
            claims.append([message.text for message in messages])
        return messages

    monkeypatch.setattr(holtmq.QueueHandle, "pop_or_wait", pop_or_wait)
    return claims


def numbered(count: int) -> list[tuple[str, str]]:
    return [(f"m{n}", "k") for n in range(count)]


def texts(messages: list[holtmq.Message]) -> list[str]:
    return [message.text for message in messages]


@pytest.mark.parametrize("retention_s", [0, 60])
def test_many_messages_are_acknowledged_at_once(mq: holtmq.EmbeddedBroker, retention_s: float) -> None:
    queue = mq.declare_queue("q", retention_s=retention_s)
    queue.put_many(numbered(5))
    queue.ack_many(queue.pop_many(3))
    assert [queue.size(state) for state in ("ready", "locked", "done")] == [2, 0, 3 if retention_s else 0]


def test_a_lost_lease_does_not_keep_others_from_being_acknowledged(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.queue("q")
    queue.put_many(numbered(3))
    short, *others = [*queue.pop_many(1, lease_s=1), *queue.pop_many(2, lease_s=100)]
    clock.advance(2)
    taken = queue.pop()
    assert taken is not None
    with pytest.raises(LeaseLostError, match=f"message {short.id} of queue 'q'"):
        queue.ack_many([short, *others])
    assert queue.size("locked") == 1
    taken.ack()


def test_a_lost_lease_undoes_the_transaction_of_the_caller(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.queue("q")
    queue.put_many(numbered(2))
    first, second = queue.pop_many(2)
    first.ack()
    with pytest.raises(LeaseLostError), mq.transaction():
        queue.ack_many([first, second])
    assert queue.size("locked") == 1


def test_a_message_of_a_queue_that_was_deleted_is_lost(tmp_path: Path) -> None:
    with holtmq.open(tmp_path / "a.db") as mq, holtmq.open(tmp_path / "a.db") as other:
        queue = mq.queue("q")
        queue.put("m", "k")
        message = queue.pop()
        assert message is not None
        other.delete_queue("q")
        with pytest.raises(LeaseLostError):
            message.ack()


def test_what_is_given_back_was_never_popped(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("q", max_attempts=1)
    queue.put_many(numbered(3))
    first, second = queue.pop_many(2)
    queue.give_back([first, second])
    assert texts(queue.pop_many(3)) == ["m0", "m1", "m2"]
    assert [message.attempts for message in queue.list_messages()] == [1, 1, 1]


def test_what_has_lost_its_lease_is_not_given_back(mq: holtmq.EmbeddedBroker, clock: Clock) -> None:
    queue = mq.queue("q")
    queue.put("m", "k")
    late = queue.pop_many(1, lease_s=1)
    clock.advance(2)
    taken = queue.pop()
    assert taken is not None
    queue.give_back(late)
    assert queue.size("locked") == 1
    taken.ack()


def test_the_first_of_few_keys_are_claimed_in_order(mq: holtmq.EmbeddedBroker) -> None:
    queue = mq.declare_queue("q", max_priority=3)
    for number, (key, priority) in enumerate([("a", 0), ("b", 0), ("c", 0), ("a", 2), ("b", 0), ("a", 0)]):
        queue.put(f"m{number}", key, priority=priority)
    assert texts(queue.pop_many(4, ["a", "b"])) == ["m3", "m0", "m1", "m4"]


@pytest.mark.usefixtures("stopwatch")
def test_a_consumer_claims_more_at_once_if_its_callback_is_fast(live: holtmq.EmbeddedBroker, claims: list[list[str]]) -> None:
    queue, seen, done = live.queue("q"), [], threading.Event()
    queue.put_many(numbered(500))

    def handle(message: holtmq.Message) -> None:
        seen.append(message.text)
        if len(seen) == 500:
            done.set()

    consumer = live.consumer("q").on_message("#", handle)
    assert done.wait(PATIENCE_S)
    consumer.close()
    assert seen == [text for text, _ in numbered(500)]
    assert [len(claim) for claim in claims] == [1, 2, 4, 8, 16, 32, 64, 100, 100, 100, 73]
    assert sum(queue.size(state) for state in ("ready", "locked")) == 0


def test_a_consumer_ends_if_it_is_closed_while_it_looks_after_a_batch(
    live: holtmq.EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClosedMeanwhile(threading.Event):
        """The consumer is closed just after its thread has seen that it is not."""

        def wait(self, timeout: float | None = None) -> bool:
            if self.is_set():
                return True
            has_batch.clear()
            closing.start()
            assert super().wait(PATIENCE_S)
            assert has_batch.wait(PATIENCE_S)
            return False

    consumer, has_batch = live.consumer("q"), threading.Event()
    closing = threading.Thread(target=consumer.close, daemon=True)
    monkeypatch.setattr(consumer, "_has_batch", has_batch)
    monkeypatch.setattr(consumer, "_stopping", ClosedMeanwhile())
    consumer.on_message("#", print)
    has_batch.set()
    eventually(lambda: closing.ident is not None, "the consumer to be closed")
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def consume_in_batches(
    mq: holtmq.EmbeddedBroker, count: int, callback: Callable[[holtmq.Message], object]
) -> holtmq.CallbackConsumer:
    """Start a consumer that has claimed several messages, the first of which it is about to handle."""
    queue, is_warm = mq.queue("q"), threading.Event()
    queue.put_many([("warm", "k")] * 20)
    left = [20]

    def handle(message: holtmq.Message) -> object:
        if message.text != "warm":
            assert is_warm.wait(PATIENCE_S)
            return callback(message)
        left[0] -= 1
        if left[0] == 0:
            queue.put_many(numbered(count))
            is_warm.set()
        return None

    return mq.consumer("q").on_message("k", handle)


def test_a_slow_callback_keeps_no_other_message_waiting(
    live: holtmq.EmbeddedBroker, claims: list[list[str]], stopwatch: Stopwatch
) -> None:
    go_on, started = threading.Event(), Inbox[str]()

    def handle(message: holtmq.Message) -> None:
        started.put(message.text)
        assert go_on.wait(PATIENCE_S)

    consumer = consume_in_batches(live, 5, handle)
    first = started.get(timeout=PATIENCE_S)
    stopwatch.now_s += 2 * LONGEST_BATCH_S
    queue = live.queue("q")
    eventually(lambda: queue.size("locked") == 1 and queue.size() == 4, "the messages that wait being given back")
    assert first == "m0"
    assert ["m0", "m1", "m2", "m3", "m4"] in claims
    assert [message.attempts for message in queue.list_messages("ready")] == [0] * 4
    go_on.set()
    assert [started.get(timeout=PATIENCE_S) for _ in range(4)] == ["m1", "m2", "m3", "m4"]
    consumer.close()


def test_what_was_handled_before_a_slow_callback_is_acknowledged(live: holtmq.EmbeddedBroker, stopwatch: Stopwatch) -> None:
    go_on, started = threading.Event(), threading.Event()

    def handle(message: holtmq.Message) -> None:
        if message.text == "m2":
            started.set()
            assert go_on.wait(PATIENCE_S)

    consumer = consume_in_batches(live, 3, handle)
    assert started.wait(PATIENCE_S)
    stopwatch.now_s += 2 * BATCH_S
    queue = live.queue("q")
    eventually(lambda: [message.text for message in queue.list_messages()] == ["m2"], "the first two being acknowledged")
    go_on.set()
    consumer.close()
    assert queue.list_messages() == []


@pytest.mark.usefixtures("stopwatch")  # only the end of the consumer can give anything back
def test_a_consumer_that_stops_gives_back_what_it_has_not_started(live: holtmq.EmbeddedBroker, claims: list[list[str]]) -> None:
    go_on, started = threading.Event(), threading.Event()

    def handle(message: holtmq.Message) -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)

    consumer = consume_in_batches(live, 10, handle)
    assert started.wait(PATIENCE_S)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    queue = live.queue("q")
    eventually(lambda: queue.size() == 9, "the other messages being given back")
    assert closing.is_alive()
    go_on.set()
    closing.join(PATIENCE_S)
    assert [f"m{n}" for n in range(10)] in claims
    assert [(message.text, message.attempts, message.state) for message in queue.list_messages()] == [
        (f"m{n}", 0, "ready") for n in range(1, 10)
    ]


def test_a_retried_message_is_claimed_alone(live: holtmq.EmbeddedBroker) -> None:
    """If it kills its consumer each time, that does not count as an attempt for the messages beside it."""
    queue = live.queue("q")
    queue.put_many(numbered(6))
    for message in queue.pop_many(6)[2:4]:
        message.retry()
    for message in queue.list_messages("locked"):
        queue.give_back([message])
    batches = [texts(queue.pop_or_wait(queue.listen(), 10, ["#"], lease_s=LONG_S)) for _ in range(4)]
    assert batches == [["m0", "m1"], ["m2"], ["m3"], ["m4", "m5"]]


def test_a_callback_that_fails_within_a_batch_is_retried_alone(live: holtmq.EmbeddedBroker) -> None:
    seen, done = Inbox[tuple[str, int]](), threading.Event()

    def handle(message: holtmq.Message) -> None:
        seen.put((message.text, message.attempts))
        if message.text == "m1" and message.attempts == 1:
            raise ValueError(message.text)
        if message.text == "m1":
            done.set()

    consumer = live.consumer("q", back_off_s=0.01)
    live.queue("q").put_many(numbered(3))
    consumer.on_message("#", handle)
    assert done.wait(PATIENCE_S)
    consumer.close()
    assert sorted(seen.get() for _ in range(4)) == [("m0", 1), ("m1", 1), ("m1", 2), ("m2", 1)]


def test_a_lease_shorter_than_a_look_at_it_is_no_reason_to_stop(live: holtmq.EmbeddedBroker) -> None:
    seen = Inbox[str]()
    live.queue("q").put_many(numbered(3))
    consumer = live.consumer("q", lease_s=0.001).on_message("#", lambda message: seen.put(message.text))
    assert {seen.get(timeout=PATIENCE_S) for _ in range(3)}
    consumer.close()


def test_batches_in_asyncio(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            queue = await mq.queue("q")
            await queue.put_many(numbered(4))
            messages = await queue.pop_many(4)
            await queue.ack_many(messages[:2])
            await queue.give_back(messages[2:])
            assert (await queue.size(), await queue.size("locked")) == (2, 0)

    asyncio.run(main())


def test_a_cancelled_pop_ends_and_gives_its_messages_back(tmp_path: Path) -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # which the pop must leave
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq, asyncio.timeout(PATIENCE_S):
            queue = await mq.queue("q")
            popping = asyncio.create_task(queue.pop_many(2, wait_s=2 * PATIENCE_S))
            await asyncio.sleep(0)  # the pop has begun
            popping.cancel()
            await asyncio.gather(popping, return_exceptions=True)
            await queue.put_many(numbered(2))
            assert [message.attempts for message in await queue.pop_many(2, wait_s=PATIENCE_S)] == [1, 1]

    asyncio.run(main())
