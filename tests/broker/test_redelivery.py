"""After a crash, every message that a consumer has seen comes back with `redelivered`, and few others do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.broker import memory as memory_module
from holtmq.broker.lane import AHEAD, LEAST_AHEAD
from tests.broker.conftest import Bench, Client


@pytest.fixture
def filed(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "a.db")
    yield bench
    bench.journal.close()


def flags(bench: Bench, queue: str = "q") -> dict[bytes, bool]:
    """Return all messages of a queue, with their flags."""
    client = bench.client()
    client.consume(queue)
    bench.turn()
    while bench.journal.has_changes:
        bench.to_disk()
    bench.journal.close()
    return {body: again for body, (_, _, again) in zip(client.bodies, client.deliveries, strict=True)}


def publish(client: Client, *bodies: bytes, **properties: int) -> None:
    for body in bodies:
        client.publish("", "q", body, **{"delivery_mode": 2, **properties})  # type: ignore[arg-type]


def test_a_message_on_disk_is_not_sent_before_the_file_says_so(filed: Bench, tmp_path: Path) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    publish(client, b"1", b"2")
    filed.to_disk()
    client.consume("q")
    filed.turn()
    assert client.bodies == []
    filed.to_disk()
    assert client.bodies == [b"1", b"2"]
    assert flags(filed.after_crash(tmp_path / "b.db")) == {b"1": True, b"2": True}


def test_a_message_that_is_not_on_disk_yet_is_sent_at_once(filed: Bench, tmp_path: Path) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    client.consume("q")
    filed.to_disk()
    publish(client, b"1")
    filed.turn()
    assert client.bodies == [b"1"]
    filed.to_disk()
    assert flags(filed.after_crash(tmp_path / "b.db")) == {b"1": True}


def test_a_consumer_that_keeps_up_does_not_wait_for_the_disk(filed: Bench) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    client.channel.set_prefetch(10, is_global=False)
    client.consume("q")
    publish(client, *(b"%d" % number for number in range(100)))
    filed.turn()
    for number in range(10, 40):
        filed.start_commit()
        client.channel.ack(client.deliveries[-10][0], multiple=False)
        filed.turn()
        assert len(client.deliveries) == number + 1, "the delivery waited for the commit"
        filed.end_commit()


def test_get_waits_for_the_file_where_a_consumer_would(filed: Bench) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    publish(client, b"1", b"2")
    filed.to_disk()
    assert client.get("q") == b"1"
    assert client.channel.session.needs_marks > filed.broker.marked_batch
    filed.to_disk()
    assert client.get("q") == b"2"
    assert client.channel.session.needs_marks <= filed.broker.marked_batch


@pytest.mark.parametrize("last", [{"delivery_mode": 1}, {"priority": 0}])
def test_all_messages_of_a_delivery_are_marked(filed: Bench, tmp_path: Path, last: dict[str, int]) -> None:
    """The last one may be transient, or older than the others, because its priority is lower."""
    client = filed.client()
    client.declare("q", durable=True, max_priority=2)
    client.consume("q")
    publish(client, b"low", priority=0)
    publish(client, b"high", b"higher", priority=2)
    publish(client, b"last", **last)
    filed.turn()
    filed.to_disk()
    found = flags(filed.after_crash(tmp_path / "b.db"))
    assert found.pop(b"last", True)
    assert found == {b"low": True, b"high": True, b"higher": True}


def test_messages_of_a_lower_priority_are_not_marked_with_the_others(filed: Bench, tmp_path: Path) -> None:
    client = filed.client()
    client.declare("q", durable=True, max_priority=1)
    client.channel.set_prefetch(1, is_global=False)
    publish(client, b"low")
    publish(client, b"high", priority=1)
    client.consume("q")
    filed.turn()
    filed.to_disk()
    assert flags(filed.after_crash(tmp_path / "b.db")) == {b"low": False, b"high": True}


def test_the_mark_is_not_far_ahead_of_a_slow_consumer(filed: Bench, tmp_path: Path) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    client.channel.set_prefetch(1, is_global=False)
    publish(client, *(b"%d" % number for number in range(1000)))
    client.consume("q")
    for _ in range(20):
        filed.turn()
        filed.to_disk()
        client.channel.ack(client.deliveries[-1][0], multiple=False)
    again = flags(filed.after_crash(tmp_path / "b.db"))
    assert 0 < sum(again.values()) <= LEAST_AHEAD + AHEAD


def test_the_flag_survives_a_clean_stop_after_a_crash(filed: Bench, tmp_path: Path) -> None:
    client = filed.client()
    client.declare("q", durable=True)
    client.channel.set_prefetch(1, is_global=False)
    publish(client, b"1")
    client.consume("q")
    filed.turn()
    filed.to_disk()
    crashed = filed.after_crash(tmp_path / "b.db")
    crashed.broker.forget_delivered()
    crashed.to_disk()
    stopped = crashed.after_crash(tmp_path / "c.db")
    crashed.journal.close()
    assert flags(stopped) == {b"1": True}


class Life:
    """A broker that does random things until it is killed, and a record of what its client has seen."""

    def __init__(self, bench: Bench, chance: random.Random, seen: set[bytes]) -> None:
        self._bench = bench
        self._chance = chance
        self._seen = seen
        self._fetched: list[bytes] = []
        self._is_writing = False
        self._client = bench.client()
        self._client.declare("q", durable=True, max_priority=2)
        self._client.channel.set_prefetch(chance.choice([0, 3]), is_global=False)
        bench.to_disk()

    def live(self) -> None:
        acts = [
            self.publish,
            self.publish,
            self.consume,
            self.get,
            self.ack,
            self.requeue,
            self.commit,
            self.commit,
            self.cancel,
        ]
        for _ in range(self._chance.randint(5, 40)):
            self._chance.choice(acts)()
            self._bench.turn()
            self._look()

    def _look(self) -> None:
        self._seen.update(self._client.bodies)
        if self._client.channel.session.needs_marks <= self._bench.broker.marked_batch:
            self._seen.update(self._fetched)
            self._fetched.clear()

    def publish(self) -> None:
        for _ in range(self._chance.randint(1, 15)):
            body = b"%d" % self._chance.getrandbits(60)
            publish(self._client, body, delivery_mode=self._chance.choice([1, 2, 2]), priority=self._chance.choice([0, 1, 2]))

    def consume(self) -> None:
        if not self._client.channel.consumers:
            self._client.consume("q", auto_ack=self._chance.random() < 0.3)

    def cancel(self) -> None:
        for tag in list(self._client.channel.consumers):
            self._client.channel.cancel(tag)

    def get(self) -> None:
        fetched = self._client.channel.get("q", is_auto_ack=self._chance.random() < 0.5)
        if fetched is not None:
            self._fetched.append(fetched.message.body)

    def ack(self) -> None:
        if tags := list(self._client.channel.unsettled):
            self._client.channel.ack(self._chance.choice(tags), multiple=False)

    def requeue(self) -> None:
        if tags := list(self._client.channel.unsettled):
            self._client.channel.reject(self._chance.choice(tags), multiple=False, requeue=True)

    def commit(self) -> None:
        if self._is_writing:
            self._bench.end_commit()
        elif self._bench.journal.has_changes:
            self._bench.start_commit()
        else:
            return
        self._is_writing = not self._is_writing


@pytest.mark.parametrize("seed", range(12))
def test_no_delivery_is_forgotten_whenever_the_broker_is_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 20)
    chance, seen, bench = random.Random(seed), set[bytes](), Bench(tmp_path / "0.db")
    for number in range(1, 4):
        Life(bench, chance, seen).live()
        found = flags(bench.after_crash(tmp_path / f"{number}-look.db"))
        assert [body for body, again in found.items() if body in seen and not again] == []
        dead, bench = bench, bench.after_crash(tmp_path / f"{number}.db")
        dead.journal.close()
    bench.journal.close()
