"""Streams of HoltMQ beside those of RabbitMQ, over AMQP 0-9-1, in one run: python -m benchmarks.streams [--messages N]

Both brokers run on the same machine and receive the same load in turn; the other one is halted (SIGSTOP) in the meantime.
Messages are published with confirms and read with a prefetch of 1,000, acknowledged in hundreds. "Seek" is the time from
basic.consume to the first delivery, at places all over the stream. Prints a table for benchmarks/README.md: the worst round of
HoltMQ, the median of RabbitMQ.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise

import uvloop

from benchmarks.brokers import Broker, HoltMQ, RabbitMQ, alone, running
from holtmq.bench import Load, run_load
from holtmq.bench.load_client import LoadClient, LoadConsumer
from holtmq.table import FieldValue
from tests.amqp_client import Amqp

MESSAGES = 1_000_000
QUEUE = "holtmq.bench.000000"
PREFETCH, ACK_EVERY = 1000, 100
READERS = 10
SEEKS = 20
STREAM: dict[str, FieldValue] = {"x-queue-type": "stream"}
LESS_IS_BETTER = ("processor", "seek", "start", "memory", "file")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"messages in the stream (default: {MESSAGES:,})")
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: 3)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024], help="bytes of a body (default: 100 1024)")
    options = parser.parse_args()
    for size in options.sizes:
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(options.rounds):
            with ExitStack() as stack:
                brokers = [stack.enter_context(running(kind)) for kind in (HoltMQ, RabbitMQ)]
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
    values["read from the first offset, messages/s"] = read(broker, size, [0], messages)
    used_s.append(cpu())
    places = [number * messages // READERS for number in range(READERS)]
    values[f"{READERS} readers at different places, messages/s"] = read(broker, size, places, messages // READERS)
    used_s.append(cpu())
    for name, (before, after) in zip(("publish", "read", f"{READERS} readers"), pairwise(used_s), strict=True):
        values[f"processor time, {name}, µs per message"] = (after - before) * 1e6 / messages
    values["memory above idle, MiB"] = broker.memory_mib() - idle_mib
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
    print(f"\n{messages:,} messages of {size} bytes\n\n| | HoltMQ, worst | RabbitMQ, median | ratio |\n|---|---|---|---|")
    for name, by_broker in found.items():
        is_less_better = name.startswith(LESS_IS_BETTER)
        ours = (max if is_less_better else min)(by_broker["HoltMQ"])
        theirs = statistics.median(by_broker["RabbitMQ"]) if "RabbitMQ" in by_broker else None
        ratio = "" if theirs is None else f"{ours / theirs:.2f}"
        print(f"| {name} | {ours:,.4g} | {'' if theirs is None else f'{theirs:,.4g}'} | {ratio} |")


if __name__ == "__main__":
    main()
