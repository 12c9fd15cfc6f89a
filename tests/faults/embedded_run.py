"""Rounds of work on a HoltMQ file or database by several processes, with a fault in each, and an audit after it."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeAlias

import holtmq
from holtmq.store.records import Durability
from tests.deadline import PATIENCE_S
from tests.embedded.test_processes import assert_sound
from tests.faults.embedded_worker import QUEUES, STREAM
from tests.faults.ledger import Found, Ledger, Mark, ViolationError
from tests.faults.schedule import scheduled
from tests.faults.shim import Shim

ROOT = Path(__file__).parents[2]
FULL = 1500
"""Messages in the file above which an audit takes them out."""
DAY_S = 86_400
LONG_AFTER_S = 100 * DAY_S
"""When every lease has expired, even one of a worker whose clock had jumped."""
WORK = 40
"""Actions of a worker in a round."""

EmbeddedFault: TypeAlias = "Callable[[EmbeddedRun, random.Random], AbstractContextManager[None]]"
"""Begins a fault. The fault lasts for the length of the block."""


class Workers:
    """The process that forks workers, and the reports of these."""

    def __init__(self, path: Path | str, shim: Shim, durability: Durability = "full") -> None:
        self.running: set[int] = set()
        reader, writer = os.pipe()
        self._reader = reader
        self._text = b""
        command = [sys.executable, "-m", "tests.faults.embedded_worker", str(path), durability, str(writer)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, text=True, env=shim.environment, pass_fds=[writer], cwd=ROOT
        )
        os.close(writer)

    def start(self, number: int, seed: str, actions: int, threads: int = 1) -> None:
        self._tell(f"{number} {seed} {actions} {threads}")

    def read(self, seconds: float) -> list[str]:
        """Return the lines that arrive within a time, as soon as there are any."""
        if not select.select([self._reader], [], [], seconds)[0]:
            return []
        *lines, self._text = (self._text + os.read(self._reader, 1 << 16)).split(b"\n")
        return [line.decode() for line in lines]

    def wait(self) -> None:
        """Ask for a line that says when all workers have ended."""
        self._tell("wait")

    def signal(self, pid: int, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def close(self) -> None:
        for pid in self.running:
            self.signal(pid, signal.SIGKILL)
        self._process.kill()
        self._process.communicate()
        os.close(self._reader)

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


class EmbeddedRun:
    """A file or a database, the processes that use it, and the ledger of what they report, over many rounds."""

    def __init__(self, path: Path | str, shim: Shim, seed: int, durability: Durability = "full") -> None:
        self.seed = seed
        self.shim = shim
        self.ledger = Ledger()
        self.rounds: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.path = path
        self._numbers = 0
        self._has_ended = False
        self.workers = Workers(self.path, shim, durability)

    def close(self) -> None:
        self.workers.close()

    def round(self, number: int, faults: Sequence[EmbeddedFault]) -> None:
        rng = random.Random(f"{self.seed}.{number}")
        fault = scheduled(faults, self.seed, number)
        try:
            self.shim.set_sync_time(rng.choice((0, 0, 1)))
            self._start(rng, rng.randint(1, 3))
            self.follow(rng.randint(1, 150))
            with fault(self, rng):
                self.follow(rng.randint(1, 100))
            self.shim.heal()
            self._start(rng, 1)  # which finds everything in order again
            self._finish()
            self._audit()
        except ViolationError as violation:
            raise ViolationError(f"seed {self.seed}, round {number} ({fault.__name__}): {violation}") from violation
        self.rounds[fault.__name__] += 1

    def follow(self, lines: int) -> None:
        """Read some lines of the reports, or fewer if no more come."""
        while lines > 0 and (got := self.workers.read(0.05)):
            for line in got:
                self._take(line)
            lines -= len(got)

    def _start(self, rng: random.Random, count: int) -> None:
        for _ in range(count):
            self._numbers += 1
            self.workers.start(self._numbers, f"{rng.random()}", WORK)

    def _finish(self) -> None:
        self._has_ended = False
        self.workers.wait()
        deadline = time.monotonic() + PATIENCE_S
        while not self._has_ended:
            if time.monotonic() > deadline:
                raise ViolationError(f"workers did not end within {PATIENCE_S:g} s: {self.workers.running}")
            for line in self.workers.read(0.1):
                self._take(line)
        self.workers.running.clear()

    def _take(self, line: str) -> None:
        verb, *words = line.split()
        match verb:
            case "start":
                self.workers.running.add(int(words[1]))
            case "ended":
                self._has_ended = True
            case "error":
                self.errors[words[0]] += 1
            case "unexpected":
                raise ViolationError(f"a worker failed: {line}")
            case _:
                enter(self.ledger, line)

    def _audit(self) -> None:
        self.shim.set_clock(0)
        assert_sound(self.path)
        found = contents(self.path)
        self.ledger.audit(found)
        if sum(map(len, found.values())) > FULL:
            self._take_out(found)

    def _take_out(self, found: Mapping[str, list[Found]]) -> None:
        with holtmq.open(self.path, durability="off", clock=lambda: time.time() + LONG_AFTER_S) as mq, mq.transaction():
            for queue in QUEUES:
                for message in mq.queue(queue).pop_many(1_000_000):
                    message.ack()
            mq.delete_queue(STREAM)
        self.ledger.take(found)


def contents(path: Path | str) -> dict[str, list[Found]]:
    """Return all messages of a file, whatever their states."""
    with holtmq.open(path, durability="off") as mq:
        records = list(mq.stream(STREAM).read())
        if [record.offset for record in records] != list(range(len(records))):
            raise ViolationError(f"the offsets of the stream have gaps: {[record.offset for record in records]}")
        in_queues = {
            queue: [Found(message.body, False, message.attempts) for message in mq.queue(queue).list_messages(limit=1_000_000)]
            for queue in QUEUES
        }
        return {**in_queues, STREAM: [Found(record.body, False, 0) for record in records]}


def enter(ledger: Ledger, line: str) -> None:
    """Enter a line of a worker's report."""
    verb, queues, *numbers = line.split()
    publisher, sequence, priority, is_persistent, size, number = map(int, numbers)
    mark = Mark(publisher, sequence, priority, bool(is_persistent), size)
    match verb:
        case "publish":
            ledger.publish(mark, queues.split(","), group=publisher * 1_000_000 + number if number else None)
        case "confirm":
            ledger.confirm(mark, queues.split(","))
        case "claim":
            ledger.claim(queues, mark.body(), number)
        case "settle":
            ledger.settle(queues, mark, attempt=number)
        case "unsettle":
            ledger.unsettle(queues, mark, number)
        case "sync":
            ledger.sync(queues, mark, number)
        case _:
            raise AssertionError(f"unknown line {line!r}")
