"""The embedded queue beside its peers, in one run: python -m benchmarks.embedded [--quick] [--durability normal]

litequeue, persist-queue and huey's SQLite storage do the same work at the same durability (SQLite's `synchronous`), on the
same disk. Prints tables for benchmarks/README.md and draws benchmarks/embedded.svg.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, cast

import matplotlib.pyplot as plt
import persistqueue
from huey.storage import SqliteStorage
from litequeue import LiteQueue

import holtmq
from holtmq.embedded import QueueHandle

BODY = b"x" * 100
PLOT = Path(__file__).with_name("embedded.svg")
FLOOR = "(SQLite: a bare INSERT)"
LEVELS = {"off": 0, "normal": 1, "full": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    parser.add_argument("--durability", choices=list(LEVELS), default="normal")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        bench = Bench(Path(folder), options.durability, scale)
        puts = bench.puts()
        bench.print_table("put, one by one", puts)
        sent = bench.send()
        print(f"\nsent by a producer, until each future is done: {sent:,.0f} messages/s")
        many = bench.put_many()
        fastest = max(per_second for name, per_second in puts.items() if name not in ("HoltMQ", FLOOR))
        print(f"\nput_many of {300_000 // scale:,}: {many:,.0f} messages/s, {many / fastest:.1f} x the fastest peer's put")
        print("\n| threads | put, one by one, messages/s in all |\n|---|---|")
        for count in (1, 2, 4, 8):
            print(f"| {count} | {bench.threads(count):,.0f} |")
        pops = bench.pops()
        bench.print_table(f"pop + ack with {20_000 // scale:,} waiting", pops)
        print(f"\npop + ack / put: {pops['HoltMQ'] / puts['HoltMQ']:.2f}")
        print(f"pop_many + ack_many of 100 at a time: {bench.pop_many():,.0f} messages/s")
        print(f"consumer callbacks, one thread: {bench.callbacks():,.0f} messages/s")
        growth = bench.growth()
        sizes = list(growth)
        print("\n| µs for pop + ack, by pattern | " + " | ".join(f"{size:,}" for size in sizes) + " | ratio |")
        print("|---|" + "---|" * (len(sizes) + 1))
        for name in growth[sizes[0]]:
            times = [growth[size][name] for size in sizes]
            print(f"| {name} | " + " | ".join(f"{us:.0f}" for us in times) + f" | {times[-1] / times[0]:.2f} |")
        print("\n| processes | put + pop + ack, messages/s in all | beside one | bare SQLite, the same | beside one |")
        print("|---|---|---|---|---|")
        alone, alone_bare = bench.processes(1, hammer), bench.processes(1, hammer_bare)
        print(f"| 1 | {alone:,.0f} | 1.0 | {alone_bare:,.0f} | 1.0 |")
        for count in (2, 4, 8):
            together, bare = bench.processes(count, hammer), bench.processes(count, hammer_bare)
            print(f"| {count} | {together:,.0f} | {together / alone:.2f} | {bare:,.0f} | {bare / alone_bare:.2f} |")
        print(f"\nwake-up across processes, median of 50: {bench.wake_up_ms():.1f} ms")
        for what, size in bench.file_sizes().items():
            print(f"file {what}: {size / 1e6:,.1f} MB")
    if scale == 1:
        draw(growth)


class Bench:
    def __init__(self, folder: Path, durability: Any, scale: int) -> None:
        self.folder = folder
        self.durability = durability
        self.scale = scale
        self._files = 0

    def puts(self) -> dict[str, float]:
        count = (20_000 if self.durability != "full" else 5_000) // self.scale
        queue = self.queue()
        lite, persist, huey = self.litequeue(), self.persist_queue(), self.huey()
        text = BODY.decode()
        return {
            "HoltMQ": rate(count, lambda: [queue.put(BODY, "orders.food") for _ in range(count)]),
            "litequeue": rate(count, lambda: [lite.put(text) for _ in range(count)]),
            "persist-queue": rate(count // 4, lambda: [persist.put(text) for _ in range(count // 4)]),
            "huey": rate(count, lambda: [huey.enqueue(BODY) for _ in range(count)]),
            FLOOR: rate(count, lambda: self.insert(count)),
        }

    def insert(self, count: int) -> None:
        """What SQLite alone takes: rows into one table without an index, each a transaction."""
        connection = sqlite3.connect(self.new_path(), isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {LEVELS[self.durability]}")
        connection.execute("CREATE TABLE bare (id INTEGER PRIMARY KEY, key INTEGER, body BLOB)")
        for _ in range(count):
            connection.execute("INSERT INTO bare VALUES (NULL, 1, ?)", (BODY,))
        connection.close()

    def send(self) -> float:
        """One by one as well, but handed over: what comes while one transaction runs goes into the next."""
        count = 50_000 // self.scale
        mq = holtmq.open(self.new_path(), durability=self.durability)
        producer = mq.producer("q")

        def send_all() -> None:
            futures = [producer.send(BODY, "orders.food") for _ in range(count)]
            for future in futures:
                future.result()

        return rate(count, send_all)

    def put_many(self) -> float:
        count = 300_000 // self.scale
        queue, batch = self.queue(), [(BODY, f"orders.k{n % 100}.x") for n in range(count)]
        return max(rate(count, lambda: queue.put_many(batch)) for _ in range(3))

    def threads(self, count: int) -> float:
        queue, each = self.queue(), (8_000 if self.durability != "full" else 4_000) // self.scale // count
        with ThreadPoolExecutor(count) as pool:

            def put_all(_: int) -> None:
                for _ in range(each):
                    queue.put(BODY, "orders.food")

            return rate(count * each, lambda: list(pool.map(put_all, range(count))))

    def pops(self) -> dict[str, float]:
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
            "HoltMQ": lambda: pop_and_ack(queue, 1),
            "litequeue": lambda: lite.done(lite.pop().message_id),
            "persist-queue": lambda: persist.ack(persist.get(block=False)),
            "huey (no ack)": huey.dequeue,
        }
        early = {name: rate(first, lambda: [deed() for _ in range(first)]) for name, deed in deeds.items()}  # noqa: B023
        print(f"\npop + ack, the first {first}: " + ", ".join(f"{name} {number:,.0f}" for name, number in early.items()))
        slow = early["litequeue"] < 2000  # it would take minutes
        counts = {name: count // 10 if slow and name == "litequeue" else count for name in deeds}
        return {name: rate(counts[name], lambda: [deed() for _ in range(counts[name])]) for name, deed in deeds.items()}  # noqa: B023

    def pop_many(self) -> float:
        queue, count = self.filled(20_000 // self.scale), 20_000 // self.scale

        def drain() -> None:
            while messages := queue.pop_many(100):
                queue.ack_many(messages)

        return rate(count, drain)

    def callbacks(self) -> float:
        count = 20_000 // self.scale
        queue, done, left = self.filled(count), threading.Event(), iter(range(count, 0, -1))

        def callback(_: holtmq.Message) -> None:
            if next(left) == 1:
                done.set()

        def consume() -> None:
            consumer = self.opened.consumer(queue.name).on_message("#", callback)
            done.wait()
            consumer.close()  # after the last acknowledgement

        return rate(count, consume)

    def growth(self) -> dict[int, dict[str, float]]:
        """Queues of growing length with 10,000 distinct keys, or as many as there are messages."""
        found: dict[int, dict[str, float]] = {}
        for size in (1_000, 10_000, 100_000, 1_000_000 // self.scale):
            queue = self.queue()
            keys = min(size, 10_000)
            queue.put_many([(BODY, f"orders.k{n % keys}.{'eu' if n % 2 else 'us'}") for n in range(size)])
            os.sync()  # let the disk finish with the filling before the emptying is timed
            found[size] = pattern_times(queue, keys, popped=min(300, size // 6))
        return found

    def processes(self, count: int, work: Callable[[Path, Any, int, Barrier], None]) -> float:
        path, each = self.new_path(), 16_000 // self.scale // count
        if work is hammer:
            holtmq.open(path).close()
        else:
            create_bare(path)
        together = multiprocessing.Barrier(count + 1)
        workers = [multiprocessing.Process(target=work, args=(path, self.durability, each, together)) for _ in range(count)]
        for worker in workers:
            worker.start()
        together.wait()
        per_second = rate(count * each, together.wait)
        for worker in workers:
            worker.join()
        assert all(worker.exitcode == 0 for worker in workers)
        return per_second

    def wake_up_ms(self) -> float:
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
        return float(sorted(delays)[len(delays) // 2])

    def file_sizes(self) -> dict[str, int]:
        path, count = self.new_path(), 100_000 // self.scale
        with holtmq.open(path, durability=self.durability) as mq:
            queue = mq.queue("q")

            def size() -> int:
                return sum(Path(f"{path}{suffix}").stat().st_size for suffix in ("", "-wal"))

            queue.put_many([(BODY, f"orders.k{n % 1000}") for n in range(count)])
            sizes = {f"with {count:,} messages of {len(BODY)} bytes": size()}
            queue.purge()
            sizes["after purge"] = size()
            queue.put_many([(BODY, f"orders.k{n % 1000}") for n in range(count)])
            sizes["filled again"] = size()
            queue.purge()
            mq.vacuum()
            sizes["after purge and vacuum"] = size()
        return sizes

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

    def new_path(self) -> Path:
        self._files += 1
        return self.folder / f"{self._files}.db"

    def print_table(self, what: str, rates: dict[str, float]) -> None:
        ours = rates["HoltMQ"]
        print(f"\n| {what} | messages/s | HoltMQ is |\n|---|---|---|")
        for name, per_second in rates.items():
            print(f"| {name} | {per_second:,.0f} | {ours / per_second:,.1f} x |")


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


def draw(growth: dict[int, dict[str, float]]) -> None:
    figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
    for name in next(iter(growth.values())):
        axes.plot(list(growth), [growth[size][name] for size in growth], "o-", label=name)
    axes.set(xscale="log", ylim=(0, None), xlabel="messages waiting", ylabel="µs for pop + ack")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(PLOT)


if __name__ == "__main__":
    main()
