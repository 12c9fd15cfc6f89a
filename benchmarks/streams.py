"""Streams of HoltMQ beside those of its peers, over AMQP 0-9-1, in one run: python -m benchmarks.streams [--messages N]

All brokers run on the same machine and receive the same load in turn; the others are halted (SIGSTOP) in the meantime. A peer
that is not installed is left out. Messages are published with confirms and read with a prefetch of 1,000, acknowledged in
hundreds. "Seek" is the time from basic.consume to the first delivery, at places all over the stream. Memory is that of all
processes of a broker. "Bare SQLite" writes the same bytes in rows of 1 MiB, each in a transaction that waits for the disk: no
broker that stores a stream in SQLite can exceed it. Prints tables for benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import uvloop

from benchmarks.brokers import Broker, alone, found_kinds, running
from benchmarks.results import FOLDER, Results
from benchmarks.tables import print_tables
from holtmq.bench import Load, run_load
from holtmq.bench.load_client import LoadClient, LoadConsumer
from holtmq.table import FieldValue
from tests.amqp_client import Amqp

MESSAGES = 1_000_000
QUEUE = "holtmq.bench.000000"
PREFETCH, ACK_EVERY = 1000, 100
READERS = 10
SEEKS = 20
SAMPLE_S = 0.1
STREAM: dict[str, FieldValue] = {"x-queue-type": "stream"}
BARE = "bare SQLite"
CHUNK_BYTES, BARE_S = 1024 * 1024, 5.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"messages in the stream (default: {MESSAGES:,})")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a body (default: 100 1024)")
    parser.add_argument("--without", default="", metavar="NAME", help="a broker to leave out")
    parser.add_argument("--out", type=Path, default=FOLDER / "streams.json", help="file for the results (default: %(default)s)")
    options = parser.parse_args()
    kinds = [kind for kind in found_kinds() if kind.name != options.without]
    results = Results({}, options.rounds)
    for size in options.sizes:
        for _ in range(options.rounds):
            with ExitStack() as stack:
                brokers = [stack.enter_context(running(kind)) for kind in kinds]
                for broker in brokers:
                    results.versions[broker.name] = broker.version
                    with alone(brokers, broker):
                        for (name, unit), value in measure(broker, options.messages, size).items():
                            results.add(f"{size:,} bytes: {name}", unit, broker.name, value)
                            print(f"{size} bytes: {name}: {broker.name} {value:,.4g} {unit}", file=sys.stderr, flush=True)
            results.add(f"{size:,} bytes: publish, confirmed", "messages/s", BARE, written_per_s(size))
            results.write(options.out)
    results.versions[BARE] = sqlite3.sqlite_version
    print_tables(results)


def measure(broker: Broker, messages: int, size: int) -> dict[tuple[str, str], float]:
    """Fill a stream and read it in several ways. Return the values by name and unit."""
    idle_mib, disk_mib = broker.memory_mib(), broker.disk_mib()
    load = Load(
        size=size, consumers=0, confirm=5000, persistent=True, time_s=3600, messages=messages, queue_arguments=STREAM,
        is_kept=True,
    )  # fmt: skip
    began, cpu = time.time(), broker.cpu_s
    values: dict[tuple[str, str], float] = {}
    used_s = [cpu()]
    values["publish, confirmed", "messages/s"] = run_load(broker.address, load).sent_per_s
    used_s.append(cpu())
    times = [began + number / SEEKS * (time.time() - began) for number in range(SEEKS)]
    with sampled_memory(broker) as samples:
        values["read from the first offset", "messages/s"] = read(broker, size, [0], messages)
        used_s.append(cpu())
        places = [number * messages // READERS for number in range(READERS)]
        values[f"{READERS} readers at different places", "messages/s"] = read(broker, size, places, messages // READERS)
        used_s.append(cpu())
    for name, (before, after) in zip(
        ("publish, confirmed", "read from the first offset", f"{READERS} readers at different places"),
        pairwise(used_s),
        strict=True,
    ):
        values[name, "CPU µs per message"] = (after - before) * 1e6 / messages
    values["peak while reading", "memory above idle, MiB"] = max(samples) - idle_mib
    values["afterwards", "memory above idle, MiB"] = broker.memory_mib() - idle_mib
    offsets = [number * messages // SEEKS for number in range(SEEKS)]
    values["seek to an offset, slowest of 20", "ms"] = max(seek_ms(broker, offset) for offset in offsets)
    values["seek to a time, slowest of 20", "ms"] = max(
        seek_ms(broker, datetime.fromtimestamp(moment, UTC)) for moment in times
    )
    if broker.can_restart:
        broker.stop()
        start = time.perf_counter()
        broker.start()
        values["start", "s"] = time.perf_counter() - start
        values["file", "bytes per message beyond the body"] = (broker.disk_mib() - disk_mib) * 2**20 / messages - size
    return values


def written_per_s(size: int) -> float:
    """Return how many messages of a size SQLite alone writes per second, packed into rows as those of a stream are."""
    row = os.urandom(CHUNK_BYTES)
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        connection = sqlite3.connect(Path(folder) / "bare.db", isolation_level=None)
        connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE bare (content BLOB)")
        start, rows = time.perf_counter(), 0
        while (seconds := time.perf_counter() - start) < BARE_S:
            connection.execute("INSERT INTO bare VALUES (?)", (row,))
            rows += 1
        connection.close()
    return rows * CHUNK_BYTES / size / seconds


@contextmanager
def sampled_memory(broker: Broker) -> Iterator[list[float]]:
    """Yield a list to which the memory of a broker is added, in MiB, until the block ends."""
    samples, ended = [broker.memory_mib()], threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            with suppress(OSError):  # a helper process of the broker has ended
                samples.append(broker.memory_mib())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        ended.set()
        sampler.join()
        samples.append(broker.memory_mib())


def read(broker: Broker, size: int, offsets: Sequence[int], each: int) -> float:
    """Let a consumer at each of the offsets read so many messages. Return the rate of all of them together."""
    return uvloop.run(_read(broker, size, offsets, each))


async def _read(broker: Broker, size: int, offsets: Sequence[int], each: int) -> float:
    consumers = []
    for offset in offsets:
        client = await LoadClient.connect(broker.address)
        consumer = LoadConsumer(client, size, is_auto_ack=False, ack_every=ACK_EVERY, requeue_every=0, is_timed=False)
        await consumer.prepare([QUEUE], PREFETCH, {"x-stream-offset": offset})
        consumers.append(consumer)
    start = time.perf_counter()
    for consumer in consumers:
        consumer.start()
    total = each * len(offsets)
    while sum(min(each, consumer.received) for consumer in consumers) < total:
        await asyncio.sleep(0.002)
    seconds = time.perf_counter() - start
    received = sum(consumer.received for consumer in consumers)
    for consumer in consumers:
        consumer.close()
    return received / seconds


def seek_ms(broker: Broker, place: FieldValue) -> float:
    """Return the time from basic.consume to the first delivery, in milliseconds."""
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.qos(1)
        start = time.perf_counter()
        channel.consume(QUEUE, "c", arguments={"x-stream-offset": place})
        channel.deliveries(1)
        return (time.perf_counter() - start) * 1000


if __name__ == "__main__":
    main()
