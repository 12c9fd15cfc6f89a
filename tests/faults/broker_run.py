"""Rounds of traffic against a broker, with a fault in each, and an audit after it."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

from holtmq.wire import methods as wire
from tests.deadline import PATIENCE_S
from tests.faults.client import SYNC_QUEUE, Auditor, Client, Consumer, Publisher, TransactionPublisher
from tests.faults.ledger import Ledger, LostError, ViolationError
from tests.faults.schedule import scheduled
from tests.faults.shim import Shim
from tests.server.process import BrokerProcess

ROOT = Path(__file__).parents[2]
HOUR_MS = 3_600_000
QUEUES: dict[str, dict[str, object]] = {
    "plain": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "other": {},
    "ranked": {"x-max-priority": 3},
    "timed": {"x-message-ttl": HOUR_MS, "x-expires": HOUR_MS},
    "dead": {},
}
STREAMS: dict[str, dict[str, object]] = {"log": {"x-queue-type": "stream"}}
ROUTES: Sequence[tuple[str, str, Sequence[str]]] = (
    ("", "plain", ("plain",)),
    ("", "other", ("other",)),
    ("", "ranked", ("ranked",)),
    ("", "timed", ("timed",)),
    ("", "log", ("log",)),
    ("all", "k", ("plain", "other", "ranked", "timed", "log")),
    ("some", "x.other.y", ("other",)),
    ("some", "x.both.y", ("other", "ranked")),
)
"""Exchange, routing key, and the queues that a message reaches."""
LOGGED = 25
"""Lines of the broker's log in the report of a violation."""
MOST_CHANNELS = 2000
FULL = 2000
"""Messages in all queues above which an audit takes them out."""


Fault: TypeAlias = "Callable[[BrokerRun, random.Random], AbstractContextManager[None]]"
"""Begins a fault. The fault lasts for the length of the block."""


def new_ledger() -> Ledger:
    return Ledger(prioritized=["ranked"], unordered=["dead"], streams=STREAMS)


class FaultyBroker(BrokerProcess):
    """`holtmq serve` with the shim and small windows. Its log goes to a file, which never fills up as a pipe does."""

    def __init__(self, folder: Path, shim: Shim, *options: str) -> None:
        self._shim = shim
        self.log = folder / "log.txt"
        data = folder / "data"
        data.mkdir(exist_ok=True)
        super().__init__(data / "broker.db", "--log-level", "warning", *options)

    def spawn(self, command: list[str]) -> subprocess.Popen[str]:
        command = ["tests.faults.small_windows" if word == "holtmq" else word for word in command]
        with self.log.open("a") as log:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._shim.environment, cwd=ROOT
            )


class BrokerRun:
    """A broker, its clients, and the ledger of what they saw, over many rounds."""

    def __init__(self, folder: Path, shim: Shim, seed: int, *options: str) -> None:
        self.seed = seed
        self.shim = shim
        self.ledger = new_ledger()
        self.clients: list[Client] = []
        self.is_death_expected = False
        self.rounds: Counter[str] = Counter()
        self._numbers = 0
        self.broker = self._start_broker(folder, *options)
        self._declare()

    def _start_broker(self, folder: Path, *options: str) -> Any:
        return FaultyBroker(folder, self.shim, *options)

    def close(self) -> None:
        for client in self.clients:
            client.lose()
        if self.broker.process.poll() is None:
            self.broker.process.send_signal(signal.SIGCONT)
        self.broker.close()

    def round(self, number: int, faults: Sequence[Fault]) -> None:
        """Run some traffic with a fault in it, let everything settle, and audit."""
        rng = random.Random(f"{self.seed}.{number}")
        fault = scheduled(faults, self.seed, number)
        try:
            self.shim.set_sync_time(rng.choice((0, 0, 1, 10)))
            self.connect(rng)
            self.work(rng, rng.randint(1, 15))
            with fault(self, rng):
                self.work(rng, rng.randint(1, 15))
            self.shim.heal()
            self.is_death_expected = False
            self.work(rng, rng.randint(1, 10))
            self.settle()
            self._leave(rng)
            self._audit()
            self._check_log()
        except ViolationError as violation:
            log = "".join(self.broker.log.read_text().splitlines(keepends=True)[-LOGGED:])
            raise ViolationError(
                f"seed {self.seed}, round {number} ({fault.__name__}): {violation}\nlog:\n{log}"
            ) from violation
        self.rounds[fault.__name__] += 1

    def connect(self, rng: random.Random) -> None:
        """Start clients of all kinds."""
        port, ledger = self.broker.port, self.ledger
        for _ in range(rng.randint(1, 2)):
            self.clients.append(Publisher(port, number := self._number(), ledger, _channel(number)))
        if rng.random() < 0.4:
            self.clients.append(TransactionPublisher(port, number := self._number(), ledger, _channel(number)))
        for _ in range(rng.randint(1, 4)):
            name, queue, prefetch = (
                f"consumer {(number := self._number())}",
                rng.choice(list(QUEUES)),
                rng.choice((0, 1, 10, 100)),
            )
            self.clients.append(Consumer(port, name, queue, prefetch, ledger, _channel(number)))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def restart(self, rng: random.Random) -> None:
        """Start the broker again after it has ended."""
        for client in self.clients:
            client.exchange()
            client.lose()
        self.clients.clear()
        assert self.broker.process.stdout is not None
        self.broker.process.stdout.close()
        self.ledger.end_broker()
        self.shim.set_clock(0)
        self.shim.heal()
        self.broker.start()
        self.connect(rng)

    def check_alive(self, rng: random.Random) -> None:
        if self.broker.process.poll() is not None:
            if not self.is_death_expected:
                raise ViolationError(f"the broker ended by itself with {self.broker.process.returncode}")
            self.is_death_expected = False
            self.restart(rng)

    def exchange(self, seconds: float) -> None:
        """Let all clients send and receive. Wait for the first of them to have something to do."""
        sockets = [client.socket for client in self.clients if not client.is_lost and client.is_reading]
        select.select(sockets, [], [], seconds)
        for client in self.clients:
            client.exchange()

    def _declare(self) -> None:
        with Client(self.broker.port, "declarer") as client:
            for queue, arguments in {**QUEUES, **STREAMS, SYNC_QUEUE: {}}.items():
                client.call(wire.QueueDeclare(0, queue, False, True, False, False, False, arguments), wire.QueueDeclareOk)  # type: ignore[arg-type]
            for exchange, kind in (("all", "fanout"), ("some", "topic")):
                method = wire.ExchangeDeclare(0, exchange, kind, False, True, False, False, False, {})
                client.call(method, wire.ExchangeDeclareOk)
            bindings = [(queue, "all", "") for queue in ("plain", "other", "ranked", "timed", "log")]
            bindings += [("other", "some", "#.other.#"), ("other", "some", "*.both.*"), ("ranked", "some", "x.both.#")]
            for queue, exchange, key in bindings:
                client.call(wire.QueueBind(0, queue, exchange, key, False, {}), wire.QueueBindOk)

    def work(self, rng: random.Random, steps: int) -> None:
        for _ in range(steps):
            self.check_alive(rng)
            for client in rng.sample(self.clients, min(3, len(self.clients))):
                if not client.is_lost:
                    _act(client, rng)
            self.exchange(rng.choice((0, 0.001, 0.005)))
        self.check_alive(rng)

    def settle(self) -> None:
        """Wait until every confirm has come. The fault is over, so each of them must."""
        for client in self.clients:
            client.is_reading = True
            if isinstance(client, Consumer):
                client.sync()
        deadline = time.monotonic() + PATIENCE_S
        while waiting := [client.name for client in self.clients if not client.is_idle]:
            if time.monotonic() > deadline:
                raise ViolationError(f"{', '.join(waiting)}: no confirm within {PATIENCE_S:g} s after the fault was over")
            self.exchange(0.02)

    def _check_log(self) -> None:
        """Check that the broker did not stumble. It reports a fault in words, not with a traceback."""
        if "Traceback" in self.broker.log.read_text():
            raise ViolationError("the broker logged an internal error")

    def _leave(self, rng: random.Random) -> None:
        for client in self.clients:
            if rng.random() < 0.5:
                client.cut(rng)
            else:
                client.close()
        self.clients.clear()

    def _audit(self) -> None:
        """Compare the queues with the ledger. What the broker could not read may take it a moment to find again."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._compare()
            except LostError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _compare(self) -> None:
        with Auditor(self.broker.port) as auditor:
            found = auditor.read(QUEUES)
            streams = auditor.read_streams(STREAMS)
            self.ledger.audit({**found, **streams})
            if sum(map(len, found.values())) > FULL:
                auditor.take_all()
                self.ledger.take(found)
            full = [stream for stream, messages in streams.items() if len(messages) > FULL]
        for stream in full:
            with Client(self.broker.port, "deleter") as client:
                client.call(wire.QueueDelete(0, stream), wire.QueueDeleteOk)
            self.ledger.forget_stream(stream)
        if full:
            self._declare()


def _channel(number: int) -> int:
    """Return a channel for a client. In a recording, its number identifies the client."""
    return number % MOST_CHANNELS + 1


def _act(client: Client, rng: random.Random) -> None:
    """Let a client do something that it might do."""
    match client:
        case Publisher():
            for _ in range(rng.randint(1, 20)):
                client.put(client.next_mark(rng), *rng.choice(ROUTES))
        case TransactionPublisher() if client.is_idle:
            client.commit(rng.choice(ROUTES) for _ in range(rng.randint(1, 4)))
        case Consumer():
            settle_some(client, rng)


def settle_some(consumer: Consumer, rng: random.Random) -> None:
    held = list(consumer.held)
    chosen = sorted(rng.sample(held, min(len(held), rng.randint(0, 30))))
    deed = rng.random()
    if not chosen:
        return
    if deed < 0.5:
        consumer.acknowledge(chosen)
    elif deed < 0.7:
        consumer.acknowledge(chosen, is_multiple=True)
    elif deed < 0.8 and consumer.queue == "plain":
        for tag in chosen[:5]:
            consumer.reject(tag, "dead")
    elif deed < 0.9:
        for tag in chosen[:5]:
            consumer.requeue(tag)
    if rng.random() < 0.5:
        consumer.sync()
