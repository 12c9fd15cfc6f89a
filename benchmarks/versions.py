"""Two versions of broker and embedded put side by side: python -m benchmarks.versions OLD [--rounds 4] [--only WORD]

OLD is the `bin` folder of the virtual environment of another checkout. Both brokers receive the same load in turn, from this
version's load generator. Prints a table with medians of throughput and of the CPU time for each message.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

LOADS = {
    "transient, auto-ack": ("-a", "-C", "1000000"),
    "transient, acked, prefetch 500": ("-q", "500", "-C", "500000"),
    "persistent, confirmed, acked": ("-f", "persistent", "-c", "1000", "-q", "500", "-C", "300000"),
    "persistent, confirmed, acked, 1 KiB": ("-f", "persistent", "-c", "1000", "-q", "500", "-C", "200000", "-s", "1024"),
    "topic, 1,000 keys, auto-ack": ("-a", "-t", "topic", "--keys", "1000", "-C", "400000"),
    "fanout to 20 queues, auto-ack": ("-a", "-t", "fanout", "--queues", "20", "-y", "20", "-C", "40000"),
    "64 KiB, auto-ack": ("-a", "-s", "65536", "-C", "60000"),
    "put, embedded, durability normal": (),
}
PUTS = """
import holtmq, os, tempfile, time
with tempfile.TemporaryDirectory() as folder, holtmq.open(os.path.join(folder, "a.db"), durability="normal") as mq:
    queue, body = mq.queue("q"), bytes(100)
    for _ in range(2_000):
        queue.put(body, "orders.k1.eu")
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(20_000):
        queue.put(body, "orders.k1.eu")
    print(20_000 / (time.perf_counter() - start), (time.process_time() - cpu) / 20_000 * 1e6)
"""
"""Run by the interpreter of each version, since it needs that version's library."""
HERE = Path(sys.executable).parent


class Measured(NamedTuple):
    rate: float
    """Messages received per second."""
    cpu_us: float
    """The broker's CPU time for each message received, in microseconds."""


def measure(binaries: Path, load: tuple[str, ...]) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [
            binaries / "holtmq",
            "serve",
            "--data",
            f"{folder}/a.db",
            "--amqp-port",
            "0",
            "--http-port",
            "-1",
        ]
        broker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert broker.stdout is not None
            address = next(word for word in broker.stdout.readline().split() if word.startswith("amqp://"))
            before = cpu_time_s(broker.pid)
            bench: list[str | Path] = [
                HERE / "holtmq",
                "bench",
                "--amqp-url",
                address.replace("//", "//guest:guest@"),
                *load,
                "--json",
            ]
            done = subprocess.run([*bench, "-z", "60"], capture_output=True, text=True, check=True)
            result = json.loads(done.stdout)
            used_s = cpu_time_s(broker.pid) - before
        finally:
            broker.terminate()
            broker.wait()
    return Measured(result["received_per_s"], used_s / result["received"] * 1e6)


def measure_puts(binaries: Path) -> Measured:
    done = subprocess.run([binaries / "python", "-c", PUTS], capture_output=True, text=True, check=True)
    rate, cpu_us = map(float, done.stdout.split())
    return Measured(rate, cpu_us)


def cpu_time_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(old: Path, load: tuple[str, ...], rounds: int) -> tuple[list[Measured], list[Measured]]:
    """Measure both versions in alternating order."""
    results: dict[Path, list[Measured]] = {old: [], HERE: []}
    for number in range(rounds):
        for binaries in (old, HERE) if number % 2 == 0 else (HERE, old):
            results[binaries].append(measure(binaries, load) if load else measure_puts(binaries))
    return results[old], results[HERE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print("| load | old, messages/s | new | new / old | old, µs of CPU per message | new | slowest old | slowest new |")
    print("|---|---|---|---|---|---|---|---|")
    for name, load in LOADS.items():
        if options.only not in name:
            continue
        old, new = compare(options.old, load, options.rounds)
        old_rate, new_rate = (statistics.median(each.rate for each in side) for side in (old, new))
        old_cpu, new_cpu = (statistics.median(each.cpu_us for each in side) for side in (old, new))
        slowest_old, slowest_new = (min(each.rate for each in side) for side in (old, new))
        print(
            f"| {name} | {old_rate:,.0f} | {new_rate:,.0f} | {new_rate / old_rate:.2f} | {old_cpu:.2f} | {new_cpu:.2f} "
            f"| {slowest_old:,.0f} | {slowest_new:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
