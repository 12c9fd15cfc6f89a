"""Processes that use a HoltMQ file under faults, and report each step on a pipe before and after it.

    python -m tests.faults.embedded_worker PATH DURABILITY DESCRIPTOR

The process itself never opens the file. For each line that it reads, a number, a seed, a number of actions and one of
threads, it forks a process with these workers; at the line "wait" it waits for them all. It has the shim, so the workers have
it, too.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_args

import holtmq
from holtmq.body import Content
from holtmq.embedded.queue_handle import Key
from holtmq.errors import LeaseLostError, StoreError
from holtmq.store.records import Durability
from tests.faults.ledger import Mark

QUEUES = ("first", "second")
STREAM = "log"
PLACES = (*QUEUES, STREAM)
EXCHANGE = "everywhere"
MOST_AT_ONCE = 5
MOST_THREADS = 10


@dataclass
class Worker:
    """Puts, appends, pops and acknowledges at random. Every line of its report is written at once, so that lines never mix."""

    mq: holtmq.EmbeddedBroker
    number: int
    rng: random.Random
    report: int
    sequence: int = 0
    held: list[holtmq.Message] = field(default_factory=list)

    def say(self, *words: object) -> None:
        os.write(self.report, (" ".join(map(str, words)) + "\n").encode())

    def work(self, actions: int) -> None:
        deeds: Sequence[Callable[[], None]] = (
            self.put, self.put, self.put_many, self.publish, self.pop, self.pop, self.ack, self.ack, self.ack_many, self.retry,
            self.transact, self.checkpoint,
        )  # fmt: skip
        for _ in range(actions):
            self.attempt(self.rng.choice(deeds))

    def attempt(self, deed: Callable[[], None]) -> bool:
        """Do something. An error that says that the file cannot be used leaves open whether it was done."""
        try:
            deed()
        except StoreError as error:
            self.say("error", type(error).__name__, repr(str(error)))
            return False
        return True

    def put(self) -> None:
        mark, place = self.mark(), self.rng.choice(PLACES)
        self.announce(mark, place)
        self.add(mark, place, "k")
        self.confirm(mark, place)

    def add(self, mark: Mark, place: str, key: str) -> None:
        if place == STREAM:
            self.mq.stream(STREAM).append(mark.body(), key)
        else:
            self.mq.queue(place).put(mark.body(), key)

    def put_many(self) -> None:
        marks, place = [self.mark() for _ in range(self.rng.randint(1, MOST_AT_ONCE))], self.rng.choice(PLACES)
        for mark in marks:
            self.announce(mark, place, marks[0].sequence)
        messages: list[tuple[Content, Key]] = [(mark.body(), f"k.{mark.sequence % 7}") for mark in marks]
        if place == STREAM:
            self.mq.stream(STREAM).append_many(messages)
        else:
            self.mq.queue(place).put_many(messages)
        for mark in marks:
            self.confirm(mark, place)

    def publish(self) -> None:
        mark = self.mark()
        self.announce(mark, ",".join(PLACES))
        self.mq.publish(mark.body(), "k", exchange=EXCHANGE)
        self.confirm(mark, ",".join(PLACES))

    def pop(self) -> None:
        queue, most = self.mq.queue(self.rng.choice(QUEUES)), self.rng.randint(1, MOST_AT_ONCE)
        for message in queue.pop_many(most, lease_s=self.rng.choice((0.005, 60))):
            self.say("claim", queue.name, *map(int, Mark.of(message.body)), message.attempts)
            self.held.append(message)

    def ack(self) -> None:
        if self.held:
            self.settle(self.held.pop(self.rng.randrange(len(self.held))), holtmq.Message.ack)

    def ack_many(self) -> None:
        several, self.held = self.held[:MOST_AT_ONCE], self.held[MOST_AT_ONCE:]
        for queue in {message.queue.name for message in several}:
            messages = [message for message in several if message.queue.name == queue]
            wheres = [(queue, *map(int, Mark.of(message.body)), message.attempts) for message in messages]
            for where in wheres:
                self.say("settle", *where)
            lost = self.mq.queue(queue).ack_held(messages)
            for message, where in zip(messages, wheres, strict=True):
                self.say("unsettle" if message in lost else "sync", *where)

    def checkpoint(self) -> None:
        """Write the WAL to the file and perhaps reset it, as another process may at any time."""
        mode = self.rng.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE"))
        if self.mq.database.is_remote:
            return  # the server does that
        with self.mq.database.lock() as connection:
            connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()

    def settle(self, message: holtmq.Message, deed: Callable[[holtmq.Message], None]) -> None:
        where = (message.queue.name, *map(int, Mark.of(message.body)), message.attempts)
        self.say("settle", *where)
        try:
            deed(message)
        except LeaseLostError:
            self.say("unsettle", *where)
        else:
            self.say("sync", *where)

    def retry(self) -> None:
        if self.held:
            with suppress(LeaseLostError):
                self.held.pop().retry()

    def transact(self) -> None:
        """Replace a message by others, as a whole or not at all."""
        marks = [self.mark() for _ in PLACES]
        for mark, place in zip(marks, PLACES, strict=True):
            self.announce(mark, place, marks[0].sequence)
        with self.mq.transaction():
            message = self.mq.queue("first").pop()
            if message is not None:
                where = ("first", *map(int, Mark.of(message.body)), message.attempts)
                self.say("settle", *where)
                message.ack()
            for mark, place in zip(marks, PLACES, strict=True):
                self.add(mark, place, "result")
        if message is not None:
            self.say("claim", *where)
            self.say("sync", *where)
        for mark, place in zip(marks, PLACES, strict=True):
            self.confirm(mark, place)

    def mark(self) -> Mark:
        self.sequence += 1
        return Mark(self.number, self.sequence, size=self.rng.choice((0, 30, 300, 3000, 9000)))

    def announce(self, mark: Mark, queues: str, group: int = 0) -> None:
        self.say("publish", queues, *map(int, mark), group)

    def confirm(self, mark: Mark, queues: str) -> None:
        self.say("confirm", queues, *map(int, mark), 0)


def declare(mq: holtmq.EmbeddedBroker) -> None:
    mq.declare_exchange(EXCHANGE, "fanout")
    for queue in QUEUES:
        mq.declare_queue(queue)
        mq.bind(queue, EXCHANGE)
    mq.declare_stream(STREAM)
    mq.bind(STREAM, EXCHANGE)


def work(path: str, durability: Durability, report: int, number: int, seed: str, actions: int, threads: int) -> None:
    """Open the file and act, in one thread or several."""
    os.write(report, f"start {number} {os.getpid()}\n".encode())
    try:
        mq = holtmq.open(path, durability=durability)
        declare(mq)
    except StoreError as error:
        os.write(report, f"error {type(error).__name__} {str(error)!r}\n".encode())
        return
    with mq, ThreadPoolExecutor(threads) as pool:
        workers = [Worker(mq, number * MOST_THREADS + n, random.Random(f"{seed}.{n}"), report) for n in range(threads)]
        for done in [pool.submit(worker.work, actions) for worker in workers]:
            done.result()


def main(path: str, durability: str, descriptor: str) -> None:
    assert durability in get_args(Durability)
    report = int(descriptor)
    for line in sys.stdin:
        if line.strip() == "wait":
            _wait(report)
        elif os.fork() == 0:
            number, seed, *sizes = line.split()
            _become_worker(report, partial(work, path, durability, report, int(number), seed, *map(int, sizes)))  # type: ignore[arg-type]


def _become_worker(report: int, job: Callable[[], Any]) -> None:
    """Do the work and end the process. An error that a worker does not expect is told, too."""
    try:
        job()
    except BaseException as error:  # noqa: BLE001  # whatever it is, the harness must know
        os.write(report, f"unexpected {type(error).__name__} {str(error)!r}\n".encode()[:4000])
    finally:
        os._exit(0)


def _wait(report: int) -> None:
    try:
        while True:
            os.wait()
    except ChildProcessError:
        os.write(report, b"ended\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
