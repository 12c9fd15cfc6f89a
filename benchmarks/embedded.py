"""The embedded queue beside its peers, in one run: python -m benchmarks.embedded [--quick] [--durability normal]

litequeue, persist-queue and huey's SQLite storage do the same work at the same durability (SQLite's `synchronous`), on the
same disk, in turns. Prints tables for benchmarks/README.md: of HoltMQ the worst round, of its peers the median. A complete run
writes benchmarks/results/embedded-normal.json or -full.json, and draws benchmarks/embedded.svg.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import re
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import persistqueue
from huey.storage import SqliteStorage
from litequeue import LiteQueue

import holtmq
from benchmarks.results import FOLDER, OURS, Results
from benchmarks.tables import print_tables
from holtmq.embedded import QueueHandle

BODY = b"x" * 100
PLOT = Path(__file__).with_name("embedded.svg")
BARE = "bare SQLite"
RATE, TIME = "messages/s", "µs"
PUT, POP = "put, one by one", "pop + ack with 20,000 waiting"
THREADS, PROCESSES = "put, one by one, threads: {}", "put + pop + ack, processes: {}"
GROWTH = "pop + ack by {} among {:,}"
TURNS = 10
POPPED = 150
"""Messages that are popped by each pattern. They leave as many of the others at the head of the queue, however long it is."""
PARTS = [
    "puts",
    "sends",
    "many_puts",
    "threads",
    "pops",
    "many_pops",
    "callbacks",
    "growth",
    "processes",
    "wake_up",
    "file_sizes",
]
LEVELS = {"off": 0, "normal": 1, "full": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    parser.add_argument("--durability", choices=list(LEVELS), default="normal")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="the parts to run (default: all)")
    parser.add_argument("--out", type=Path, help="write the results to this file (default: only of a complete run)")
    options = parser.parse_args()
    is_complete = not options.quick and options.only == PARTS
    out = options.out or (FOLDER / f"embedded-{options.durability}.json" if is_complete else None)
    versions = {name: version(name) for name in ("litequeue", "persist-queue", "huey")}
    results = Results({OURS: holtmq.__version__, **versions, BARE: sqlite3.sqlite_version}, options.rounds)
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
            bench = Bench(Path(folder), options.durability, 10 if options.quick else 1, results)
            for part in options.only:
                getattr(bench, part)()
        if out is not None:
            results.write(out)
    print_tables(results)
    print_ratios(results)
    if is_complete and options.durability == "normal":
        draw(results)


class Bench:
    """One round: every measurement, and those of the peers in turns with ours."""

    def __init__(self, folder: Path, durability: Any, scale: int, results: Results) -> None:
        self.folder = folder
        self.durability = durability
        self.scale = scale
        self._results = results
        self._files = 0

    def add(self, row: str, library: str, measured: float, value: str = RATE) -> None:
        self._results.add(row, value, library, measured)
        print(f"{row}: {library} {measured:,.4g} {value}", file=sys.stderr, flush=True)

    def take_turns(self, row: str, count: int, deeds: Mapping[str, Callable[[], object]]) -> None:
        """Let each library do something so many times, a tenth of it at a time: the machine is not always as fast."""
        seconds = dict.fromkeys(deeds, 0.0)
        for _ in range(TURNS):
            for library, deed in deeds.items():
                started = time.perf_counter()
                for _ in range(count // TURNS):
                    deed()
                seconds[library] += time.perf_counter() - started
        for library, taken in seconds.items():
            self.add(row, library, count // TURNS * TURNS / taken)

    def puts(self) -> None:
        queue, text = self.queue(), BODY.decode()
        lite, persist, huey, bare = self.litequeue(), self.persist_queue(), self.huey(), self.bare()
        self.take_turns(PUT, (20_000 if self.durability != "full" else 5_000) // self.scale, {
            OURS: lambda: queue.put(BODY, "orders.food"),
            "litequeue": lambda: lite.put(text),
            "persist-queue": lambda: persist.put(text),
            "huey": lambda: huey.enqueue(BODY),
            BARE: lambda: bare.execute("INSERT INTO bare VALUES (NULL, 1, ?)", (BODY,)),
        })  # fmt: skip

    def sends(self) -> None:
        """One by one as well, but handed over: what comes while one transaction runs goes into the next."""
        count = 50_000 // self.scale
        mq = holtmq.open(self.new_path(), durability=self.durability)
        producer = mq.producer("q")

        def send_all() -> None:
            futures = [producer.send(BODY, "orders.food") for _ in range(count)]
            for future in futures:
                future.result()

        self.add("sent by a producer, until each future is done", OURS, rate(count, send_all))

    def many_puts(self) -> None:
        count = 300_000 // self.scale
        queue, batch = self.queue(), [(BODY, f"orders.k{n % 100}.x") for n in range(count)]
        self.add(f"put_many of {count:,}", OURS, rate(count, lambda: queue.put_many(batch)))

    def threads(self) -> None:
        for number in (1, 2, 4, 8):
            self.add(THREADS.format(number), OURS, self._put_in_threads(number))

    def _put_in_threads(self, number: int) -> float:
        queue, each = self.queue(), (8_000 if self.durability != "full" else 4_000) // self.scale // number
        with ThreadPoolExecutor(number) as pool:

            def put_all(_: int) -> None:
                for _ in range(each):
                    queue.put(BODY, "orders.food")

            return rate(number * each, lambda: list(pool.map(put_all, range(number))))

    def pops(self) -> None:
        """The first messages, and a quarter of them all: some libraries become slower with each message that was popped."""
        waiting, first, count = 20_000 // self.scale, 200 // self.scale, 5_000 // self.scale
        queue = self.filled(waiting)
        lite, persist, huey = self.litequeue(), self.persist_queue(), self.huey()
        text = BODY.decode()
        with (
            sqlite3_unsynced(lite.conn),
            sqlite3_unsynced(huey.conn),
            sqlite3_unsynced(cast("sqlite3.Connection", persist._putter)),
        ):
            for _ in range(waiting):
                lite.put(text)
                huey.enqueue(BODY)
                persist.put(text)
        deeds: dict[str, Callable[[], object]] = {
            OURS: lambda: pop_and_ack(queue, 1),
            "persist-queue": lambda: persist.ack(persist.get(block=False)),
            "huey": huey.dequeue,  # it has no acknowledgements
        }
        slow = {"litequeue": lambda: lite.done(lite.pop().message_id)}  # it would take minutes
        self.take_turns(f"pop + ack, the first {first}", first, deeds | slow)
        self.take_turns(POP, count, deeds)
        self.take_turns(POP, count // 20, slow)

    def many_pops(self) -> None:
        queue, count = self.filled(20_000 // self.scale), 20_000 // self.scale

        def drain() -> None:
            while messages := queue.pop_many(100):
                queue.ack_many(messages)

        self.add("pop_many + ack_many of 100 at a time", OURS, rate(count, drain))

    def callbacks(self) -> None:
        count = 20_000 // self.scale
        queue, done, left = self.filled(count), threading.Event(), iter(range(count, 0, -1))

        def callback(_: holtmq.Message) -> None:
            if next(left) == 1:
                done.set()

        def consume() -> None:
            consumer = self.opened.consumer(queue.name).on_message("#", callback)
            done.wait()
            consumer.close()  # after the last acknowledgement

        self.add("consumer callbacks, one thread", OURS, rate(count, consume))

    def growth(self) -> None:
        """Queues of growing length with 10,000 distinct keys, or as many as there are messages."""
        for size in (1_000, 10_000, 100_000, 1_000_000 // self.scale):
            queue = self.queue()
            keys = min(size, 10_000)
            queue.put_many([(BODY, f"orders.k{n % keys}.{'eu' if n % 2 else 'us'}") for n in range(size)])
            os.sync()  # let the disk finish with the filling before the emptying is timed
            for name, taken_us in pattern_times(queue, keys, POPPED).items():
                self.add(GROWTH.format(name, size), OURS, taken_us, TIME)

    def processes(self) -> None:
        for number in (1, 2, 4, 8):
            self.add(PROCESSES.format(number), OURS, self._in_processes(number, hammer))
            self.add(PROCESSES.format(number), BARE, self._in_processes(number, hammer_bare))

    def _in_processes(self, number: int, work: Callable[[Path, Any, int, Barrier], None]) -> float:
        path, each = self.new_path(), 16_000 // self.scale // number
        if work is hammer:
            holtmq.open(path).close()
        else:
            create_bare(path)
        together = multiprocessing.Barrier(number + 1)
        workers = [multiprocessing.Process(target=work, args=(path, self.durability, each, together)) for _ in range(number)]
        for worker in workers:
            worker.start()
        together.wait()
        per_second = rate(number * each, together.wait)
        for worker in workers:
            worker.join()
        assert all(worker.exitcode == 0 for worker in workers)
        return per_second

    def wake_up(self) -> None:
        path = self.new_path()
        with holtmq.open(path) as mq:
            queue = mq.queue("q")
            other = multiprocessing.Process(target=send_the_time, args=(path,))
            other.start()
            delays = []
            for _ in range(50):
                message = queue.pop(wait_s=20)
                assert message is not None
                delays.append((time.time() - message.json()) * 1000)
                message.ack()
                queue.put("next", "reply")
                while queue.peek("reply") is not None:
                    time.sleep(0.001)
            other.join()
        self.add("wake-up across processes, median of 50", OURS, statistics.median(delays), "ms")

    def file_sizes(self) -> None:
        path, count = self.new_path(), 100_000 // self.scale
        with holtmq.open(path, durability=self.durability) as mq:
            queue = mq.queue("q")

            def add(when: str) -> None:
                size = sum(Path(f"{path}{suffix}").stat().st_size for suffix in ("", "-wal"))
                self.add(f"file {when}", OURS, size / 1e6, "MB")

            queue.put_many([(BODY, f"orders.k{n % 1000}") for n in range(count)])
            add(f"with {count:,} messages of {len(BODY)} bytes")
            queue.purge()
            add("after purge")
            queue.put_many([(BODY, f"orders.k{n % 1000}") for n in range(count)])
            add("filled again")
            queue.purge()
            mq.vacuum()
            add("after purge and vacuum")

    def queue(self) -> QueueHandle:
        self.opened = holtmq.open(self.new_path(), durability=self.durability)
        return self.opened.queue("q")

    def filled(self, count: int) -> QueueHandle:
        queue = self.queue()
        queue.put_many([(BODY, "orders.food")] * count)
        return queue

    def litequeue(self) -> LiteQueue:
        queue = LiteQueue(self.new_path())
        queue.conn.execute(f"PRAGMA synchronous = {LEVELS[self.durability]}")
        return queue

    def persist_queue(self) -> persistqueue.SQLiteAckQueue:
        queue = persistqueue.SQLiteAckQueue(str(self.new_path()) + ".d", auto_commit=True)
        for connection in filter(None, (queue._conn, queue._getter, queue._putter)):
            connection.execute(f"PRAGMA synchronous = {LEVELS[self.durability]}")
        return queue

    def huey(self) -> SqliteStorage:
        storage = SqliteStorage("huey", str(self.new_path()), fsync=False)
        storage.conn.execute(f"PRAGMA synchronous = {LEVELS[self.durability]}")
        return storage

    def bare(self) -> sqlite3.Connection:
        """What SQLite alone takes: rows into one table without an index, each a transaction."""
        connection = sqlite3.connect(self.new_path(), isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {LEVELS[self.durability]}")
        connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, key INTEGER, body BLOB)")
        return connection

    def new_path(self) -> Path:
        self._files += 1
        return self.folder / f"{self._files}.db"


def pattern_times(queue: QueueHandle, keys: int, popped: int) -> dict[str, float]:
    """What a pop and its ack cost by one pattern and another; each pattern was asked for once before."""

    def timed(pattern: str | None) -> float:
        pop_and_ack(queue, 1, pattern)
        return us(popped, lambda: pop_and_ack(queue, popped, pattern))

    def one_key_each() -> None:
        for n in range(keys - 50, keys):
            pop_and_ack(queue, 1, f"orders.k{n}.*")

    def nothing() -> None:
        for _ in range(popped):
            assert queue.pop("nothing.#") is None

    return {
        "none": timed(None),
        "`orders.*.eu`": timed("orders.*.eu"),
        "`orders.#`": timed("orders.#"),
        "`#.us`": timed("#.us"),
        "`orders.k….*`, 50 patterns asked for the first time": us(50, one_key_each),
        "`nothing.#`, pop only": us(popped, nothing),
    }


@contextmanager
def sqlite3_unsynced(connection: sqlite3.Connection) -> Iterator[None]:
    """Fill a peer's queue without waiting for the disk."""
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    connection.execute("PRAGMA synchronous = OFF")
    yield
    connection.execute(f"PRAGMA synchronous = {level}")


def pop_and_ack(queue: QueueHandle, count: int, pattern: str | None = None) -> None:
    for _ in range(count):
        message = queue.pop(pattern)
        assert message is not None
        message.ack()


def hammer(path: Path, durability: Any, count: int, together: Barrier) -> None:
    """Begin and end at the same time as the other processes: neither their start nor their end is timed."""
    with holtmq.open(path, durability=durability) as mq:
        queue = mq.queue("q")
        together.wait()
        for n in range(count):
            queue.put(BODY, f"k.{n % 100}")
            message = queue.pop()
            if message is not None:
                message.ack()
        together.wait()


def create_bare(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, is_taken INTEGER, body BLOB)")
    connection.execute("CREATE INDEX bare_ready ON bare (is_taken, id)")
    connection.close()


def hammer_bare(path: Path, durability: Any, count: int, together: Barrier) -> None:
    """What SQLite alone takes: a table with one index, the same three transactions, and SQLite's own waiting for its lock."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    connection.execute(f"PRAGMA synchronous = {LEVELS[durability]}")
    take = "UPDATE bare SET is_taken = 1 WHERE id = (SELECT min(id) FROM bare WHERE is_taken = 0) RETURNING id"
    together.wait()
    for _ in range(count):
        connection.execute("INSERT INTO bare VALUES (NULL, 0, ?)", (BODY,))
        for taken in connection.execute(take).fetchall():
            connection.execute("DELETE FROM bare WHERE id = ?", taken)
    together.wait()
    connection.close()


def send_the_time(path: Path) -> None:
    with holtmq.open(path) as mq:
        queue = mq.queue("q")
        for _ in range(50):
            time.sleep(0.03)
            queue.put(time.time(), "time")
            reply = queue.pop("reply", wait_s=20)
            assert reply is not None
            reply.ack()


def rate(count: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def us(count: int, work: Callable[[], object]) -> float:
    return 1e6 / rate(count, work)


def print_ratios(results: Results) -> None:
    """Print what is compared with ourselves: the medians of all rounds."""

    def median(row: str, library: str, value: str = RATE) -> float:
        rounds = results.rows.get(row, {}).get(value, {}).get(library)
        return statistics.median(rounds) if rounds else math.nan

    print(f"\npop + ack / put: {median(POP, OURS) / median(PUT, OURS):.2f}")
    print(
        "threads / one: "
        + ", ".join(f"{n}: {median(THREADS.format(n), OURS) / median(THREADS.format(1), OURS):.2f}" for n in (2, 4, 8))
    )
    for library in (OURS, BARE):
        one = median(PROCESSES.format(1), library)
        print(
            f"processes / one, {library}: "
            + ", ".join(f"{n}: {median(PROCESSES.format(n), library) / one:.2f}" for n in (2, 4, 8))
        )
    for name, sizes in growth_of(results).items():
        times = [median(GROWTH.format(name, size), OURS, TIME) for size in sizes]
        print(f"pop + ack by {name}, longest / shortest queue: {times[-1] / times[0]:.2f}")


def growth_of(results: Results) -> dict[str, list[int]]:
    """Return the patterns that were popped by, and the lengths of the queues for each."""
    found: dict[str, list[int]] = {}
    for row in results.rows:
        if (match := re.fullmatch("pop [+] ack by (.*) among ([0-9,]+)", row)) is not None:
            found.setdefault(match[1], []).append(int(match[2].replace(",", "")))
    return found


def draw(results: Results) -> None:
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for name, sizes in growth_of(results).items():
        times = [statistics.median(results.rows[GROWTH.format(name, size)][TIME][OURS]) for size in sizes]
        axes.plot(sizes, times, "o-", label=name)
    axes.set(xscale="log", ylim=(0, None), xlabel="messages waiting", ylabel="µs for pop + ack")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(PLOT)


if __name__ == "__main__":
    main()
