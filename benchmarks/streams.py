"""Streams of HoltMQ beside those of its peers, over AMQP 0-9-1, in one run: python -m benchmarks.streams [--messages N]

All brokers run on the same machine and receive the same load in turn; the others are halted (SIGSTOP) in the meantime. A peer
that is not installed is left out. Messages are published with confirms and read with a prefetch of 1,000, acknowledged in
hundreds. "Seek" is the time from basic.consume to the first delivery, at places all over the stream. Memory is that of all
processes of a broker. Prints a table for benchmarks/README.md: the worst round of HoltMQ, the median of its peers.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from itertools import pairwise

import uvloop

from benchmarks.brokers import KINDS, Broker, alone, found_kinds, running
from benchmarks.results import OURS
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
LESS_IS_BETTER = ("processor", "seek", "start", "memory", "file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"messages in the stream (default: {MESSAGES:,})")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a body (default: 100 1024)")
    parser.add_argument("--without", default="", metavar="NAME", help="a broker to leave out")
    options = parser.parse_args()
    kinds = [kind for kind in found_kinds() if kind.name != options.without]
    for size in options.sizes:
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(options.rounds):
            with ExitStack() as stack:
                brokers = [stack.enter_context(running(kind)) for kind in kinds]
                for broker in brokers:
                    with alone(brokers, broker):
                        for name, value in measure(broker, options.messages, size).items():
                            found.setdefault(name, {}).setdefault(broker.name, []).append(value)
                            print(f"{size} bytes: {name}: {broker.name} {value:,.4g}", file=sys.stderr, flush=True)
        print_table(found, options.messages, size)


def measure(broker: Broker, messages: int, size: int) -> dict[str, float]:
    """Fill a stream and read it in several ways."""
    idle_mib, disk_mib = broker.memory_mib(), broker.disk_mib()
    load = Load(
        size=size, consumers=0, confirm=5000, persistent=True, time_s=3600, messages=messages, queue_arguments=STREAM,
        is_kept=True,
    )  # fmt: skip
    began, cpu = time.time(), broker.cpu_s
    values, used_s = {}, [cpu()]
    values["publish, confirmed, messages/s"] = run_load(broker.address, load).sent_per_s
    used_s.append(cpu())
    times = [began + number / SEEKS * (time.time() - began) for number in range(SEEKS)]
    with sampled_memory(broker) as samples:
        values["read from the first offset, messages/s"] = read(broker, size, [0], messages)
        used_s.append(cpu())
        places = [number * messages // READERS for number in range(READERS)]
        values[f"{READERS} readers at different places, messages/s"] = read(broker, size, places, messages // READERS)
        used_s.append(cpu())
    for name, (before, after) in zip(("publish", "read", f"{READERS} readers"), pairwise(used_s), strict=True):
        values[f"processor time, {name}, µs per message"] = (after - before) * 1e6 / messages
    values["memory above idle, peak while reading, MiB"] = max(samples) - idle_mib
    values["memory above idle, afterwards, MiB"] = broker.memory_mib() - idle_mib
    offsets = [number * messages // SEEKS for number in range(SEEKS)]
    values["seek to an offset, ms"] = max(seek_ms(broker, offset) for offset in offsets)
    values["seek to a time, ms"] = max(seek_ms(broker, datetime.fromtimestamp(moment, UTC)) for moment in times)
    if broker.can_restart:
        broker.stop()
        start = time.perf_counter()
        broker.start()
        values["start, s"] = time.perf_counter() - start
        values["file, bytes per message beyond the body"] = (broker.disk_mib() - disk_mib) * 2**20 / messages - size
    return values


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


def print_table(found: dict[str, dict[str, list[float]]], messages: int, size: int) -> None:
    measured = {broker for by_broker in found.values() for broker in by_broker}
    peers = [kind.name for kind in KINDS if kind.name != OURS and kind.name in measured]
    missing = [kind.name for kind in KINDS if kind.name not in measured]
    print(f"\n{messages:,} messages of {size} bytes" + (f". Not found, or left out: {', '.join(missing)}" if missing else ""))
    print("\n| | HoltMQ, worst |" + "".join(f" {peer}, median | ratio |" for peer in peers))
    print("|---|---|" + "---|---|" * len(peers))
    for name, by_broker in found.items():
        ours = (max if name.startswith(LESS_IS_BETTER) else min)(by_broker[OURS])
        cells = [f"{ours:,.4g}"]
        for peer in peers:
            theirs = statistics.median(by_broker[peer]) if peer in by_broker else None
            cells += ["", ""] if theirs is None else [f"{theirs:,.4g}", f"{ours / theirs:.2f}"]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
