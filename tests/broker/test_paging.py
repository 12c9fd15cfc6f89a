"""Messages move between memory and file as memory allows. Whatever moves when, each queue delivers in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holtmq.broker import memory as memory_module
from holtmq.broker.queue import MessageQueue
from tests.broker.conftest import Bench, Client

QUEUES: dict[str, dict[str, Any]] = {
    "durable": {"durable": True},
    "transient": {},
    "ranked": {"durable": True, "max_priority": 2},
}
MEMORY = 150_000


class Shop:
    """Random clients of three queues, and what each queue should have."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.chance = chance
        self.start(Bench(path))
        for name, arguments in QUEUES.items():
            self.client.declare(name, **arguments)
            self.client.channel.declarer.bind_queue(name, "amq.fanout", "", {})
        self.expected: dict[str, dict[int, tuple[int, bool]]] = {name: {} for name in QUEUES}
        """By queue: its messages by number, with priority and whether they survive a restart."""
        self.numbers = count(1)

    def start(self, bench: Bench) -> None:
        self.bench = bench
        self.bench.broker.memory.limit = MEMORY
        self.client: Client = bench.client()
        self.unacknowledged: list[tuple[str, int, int]] = []
        """Queue, number and delivery tag."""

    def queue(self, name: str) -> MessageQueue:
        queue = self.bench.broker.vhosts["/"].queue(name)
        assert isinstance(queue, MessageQueue)
        return queue

    def live(self, steps: int) -> None:
        actions = [self.publish] * 6 + [self.get] * 8 + [self.settle] * 3 + [self.page_out, self.commit, self.bench.turn]
        for _ in range(steps):
            self.chance.choice(actions)()

    def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 20)):
            number, priority = next(self.numbers), self.chance.randrange(3)
            exchange, key = self.chance.choice([("", name) for name in QUEUES] + [("amq.fanout", "")])
            is_persistent = self.chance.random() < 0.5
            body = b"%d" % number + b"." * self.chance.choice([0, 100, 3000])
            self.client.publish(exchange, key, body, delivery_mode=1 + is_persistent, priority=priority or None)
            for name in [key] if key else QUEUES:
                self.expected[name][number] = (priority if name == "ranked" else 0, is_persistent and name != "transient")
        if self.chance.random() < 0.5:
            self.bench.turn()

    def order(self, name: str) -> list[int]:
        held = {number for queue, number, _ in self.unacknowledged if queue == name}
        ready = [number for number in self.expected[name] if number not in held]
        return sorted(ready, key=lambda number: (-self.expected[name][number][0], number))

    def get(self) -> None:
        name = self.chance.choice(list(QUEUES))
        for _ in range(min(len(self.order(name)), self.chance.randrange(1, 15))):
            fetched = self.client.channel.get(name, is_auto_ack=False)
            if fetched is None:  # the next messages are not on disk yet
                self.commit_all()
                fetched = self.client.channel.get(name, is_auto_ack=False)
            assert fetched is not None
            number = int(fetched.message.body.rstrip(b"."))
            assert number in self.heads(name)
            self.unacknowledged.append((name, number, fetched.tag))

    def heads(self, name: str) -> list[int]:
        """Return the first message of each priority. One that is not on disk yet does not hold up those of lower priorities."""
        order = self.order(name)
        firsts = {self.expected[name][number][0]: number for number in reversed(order)}
        return list(firsts.values())

    def settle(self) -> None:
        self.chance.shuffle(self.unacknowledged)
        for _ in range(min(len(self.unacknowledged), self.chance.randrange(20))):
            name, number, tag = self.unacknowledged.pop()
            if self.chance.random() < 0.3:
                self.client.channel.reject(tag, multiple=False, requeue=True)
            else:
                self.client.channel.ack(tag, multiple=False)
                del self.expected[name][number]

    def page_out(self) -> None:
        self.queue(self.chance.choice(list(QUEUES))).page_out(self.chance.randrange(1, 40), 10**6)

    def commit(self) -> None:
        """Begin to write a batch, or end it."""
        if self.bench.journal.is_begun:
            self.bench.end_commit()
        elif self.bench.journal.has_changes:
            self.bench.start_commit()

    def commit_all(self) -> None:
        while self.bench.journal.is_begun or self.bench.journal.has_changes:
            self.commit()

    def restart(self, copy: Path) -> None:
        self.commit_all()
        bench = self.bench.after_crash(copy)
        self.bench.journal.close()
        self.start(bench)
        for name in ("durable", "ranked"):
            kept = {number: place for number, place in self.expected[name].items() if place[1]}
            self.expected[name] = kept
        self.expected["transient"] = {}
        self.client.declare("transient")
        self.client.channel.declarer.bind_queue("transient", "amq.fanout", "", {})

    def drain(self) -> None:
        for _, _, tag in self.unacknowledged:
            self.client.channel.reject(tag, multiple=False, requeue=True)
        self.unacknowledged = []
        for name in QUEUES:
            assert self.bench.count(name) == len(self.expected[name])
            while self.order(name):
                self.get_all(name)

    def get_all(self, name: str) -> None:
        self.commit_all()
        found = []
        while (body := self.client.get(name)) is not None:
            found.append(int(body.rstrip(b".")))
        expected = self.order(name)
        assert found == expected[: len(found)]
        assert found
        for number in found:
            del self.expected[name][number]


@pytest.fixture(params=range(5))
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 25)
    shop = Shop(tmp_path / "a.db", random.Random(request.param))
    yield shop
    shop.bench.journal.close()


def test_each_queue_delivers_in_order(shop: Shop, tmp_path: Path) -> None:
    for number in range(3):
        shop.live(150)
        shop.restart(tmp_path / f"{number}.db")
    shop.live(150)
    shop.drain()
    assert shop.bench.broker.internal_errors.counts == {}
