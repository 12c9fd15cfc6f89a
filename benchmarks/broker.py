"""HoltMQ and RabbitMQ side by side, in one run: python -m benchmarks.broker [--quick] [--only WORD]

Both brokers run on the same machine and receive the same load in turn. The idle one is stopped (SIGSTOP) in the meantime.
HoltMQ writes with synchronous = FULL. Prints tables for benchmarks/README.md and draws benchmarks/broker.svg.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.relay import relayed_per_s
from holtmq.bench import Load, Result, run_load
from holtmq.client.address import Address
from tests.amqp_client import Amqp
from tests.peers.rabbitmq import running_rabbitmq
from tests.server.process import BrokerProcess, broker_process

PLOT = Path(__file__).with_name("broker.svg")
SIZES = (16, 100, 1024, 65_536)
CONFIRM_WINDOW = 1000
WINDOWS = (100, 300, 500, 1000, 2000)
BACKLOG = 1_000_000
CONNECTIONS = 500


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    address: Address
    pid: int

    @contextmanager
    def alone(self, other: Peer) -> Iterator[None]:
        """Stop the other broker while the block runs, because Erlang's schedulers keep spinning for a while when idle."""
        others = other._processes()
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def cpu_s(self) -> float:
        """Return the processor time that its processes have used, in seconds."""
        ticks = sum(sum(map(int, _stat(pid)[11:15])) for pid in self._processes())
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mib(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._processes())
        return pages * resource.getpagesize() / 2**20

    def _processes(self) -> list[int]:
        """Return the process and all its descendants."""
        parents = {int(path.name): int(_stat(int(path.name))[1]) for path in Path("/proc").iterdir() if path.name.isdigit()}
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs and a small backlog, to see that it runs")
    parser.add_argument("--only", default="", help="only what has this word in its name")
    options = parser.parse_args()
    seconds = 1.0 if options.quick else 4.0
    with running_holtmq() as holtmq, running_peer() as rabbitmq:
        rows = []
        print(f"| messages/s received | HoltMQ | {rabbitmq.name} | ratio | CPU s per million, HoltMQ | RabbitMQ |")
        print("|---|---|---|---|---|---|")
        for name, load in loads(seconds).items():
            if options.only in name:
                rows.append((name, *measure(holtmq, rabbitmq, load), *measure(rabbitmq, holtmq, load)))
                _, ours, our_cpu, theirs, their_cpu = rows[-1]
                print(
                    f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.1f} | {our_cpu:.1f} | {their_cpu:.1f} |",
                    flush=True,
                )
        if options.only:
            return
        windows(holtmq, rabbitmq, seconds)
        latency(holtmq, rabbitmq, seconds)
    print(f"\nrelay without AMQP: {relayed_per_s(65_536, seconds):,.0f} messages of 64 KiB per second")
    memory(BACKLOG // (50 if options.quick else 1))
    start_up()
    draw([(name, ours / theirs) for name, ours, _, theirs, _ in rows])


@contextmanager
def running_holtmq() -> Iterator[Peer]:
    with (
        tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder,
        broker_process(Path(folder) / "b.db", "--log-level", "error") as broker,
    ):
        yield Peer("HoltMQ", Address("127.0.0.1", broker.port), broker.process.pid)


@contextmanager
def running_peer() -> Iterator[Peer]:
    with running_rabbitmq() as node:
        yield Peer(f"RabbitMQ {node.version}", Address("127.0.0.1", node.amqp_port), node.pid)


def loads(seconds: float) -> dict[str, Load]:
    found = {}
    for number in (1, 10):
        for size in SIZES:
            base = Load(producers=number, consumers=number, size=size, time_s=seconds)
            shape = f"{number} to {number}, {size:,} bytes"
            found[f"transient, auto-ack, {shape}"] = replace(base, auto_ack=True)
            found[f"transient, acked, prefetch 500, {shape}"] = replace(base, qos=500)
            found[f"persistent, confirmed, acked, {shape}"] = replace(
                base, qos=500, persistent=True, confirm=CONFIRM_WINDOW // number
            )
    found["topic, 10,000 bindings and keys, auto-ack"] = Load(exchange_type="topic", keys=10_000, auto_ack=True, time_s=seconds)
    found["fan-out to 100 queues, auto-ack"] = Load(
        exchange_type="fanout", queues=100, consumers=100, auto_ack=True, time_s=seconds
    )
    return found


def measure(peer: Peer, other: Peer, load: Load) -> tuple[float, float]:
    """Return messages per second, and the broker's processor seconds per million messages."""
    before = peer.cpu_s()
    with peer.alone(other):
        result: Result = run_load(peer.address, load)
    return result.received_per_s, (peer.cpu_s() - before) / result.received * 1e6


def windows(holtmq: Peer, rabbitmq: Peer, seconds: float) -> None:
    """Print the throughput for several numbers of unconfirmed messages."""
    print("\n| persistent, confirmed, acked, 1 to 1, 16 bytes | HoltMQ | RabbitMQ | ratio |\n|---|---|---|---|")
    for window in WINDOWS:
        load = Load(size=16, qos=500, persistent=True, confirm=window, time_s=seconds)
        (ours, _), (theirs, _) = measure(holtmq, rabbitmq, load), measure(rabbitmq, holtmq, load)
        print(
            f"| at most {window:,} unconfirmed messages | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.1f} |",
            flush=True,
        )


def latency(holtmq: Peer, rabbitmq: Peer, seconds: float) -> None:
    """Print the latency at half of RabbitMQ's maximum throughput."""
    most = run_load(rabbitmq.address, Load(qos=500, time_s=seconds)).received_per_s
    load = Load(qos=500, rate=most / 2, time_s=seconds * 2)
    print(f"\n| latency at {load.rate:,.0f} messages/s, acked | p50 ms | p95 ms | p99 ms | max ms |\n|---|---|---|---|---|")
    for peer, other in ((holtmq, rabbitmq), (rabbitmq, holtmq)):
        with peer.alone(other):
            result = run_load(peer.address, load)
        values = " | ".join(f"{result.latency_us[name] / 1000:.2f}" for name in ("p50", "p95", "p99", "max"))
        print(f"| {peer.name} | {values} |", flush=True)


def memory(backlog: int) -> None:
    """Print the memory use of brokers that have just started."""
    print(f"\n| memory, MiB | idle | for each of {CONNECTIONS} connections | with {backlog:,} x 1 KiB waiting |")
    print("|---|---|---|---|")
    for running in (running_holtmq, running_peer):
        with running() as peer:
            idle = peer.memory_mib()
            clients = [Amqp(peer.address.port) for _ in range(CONNECTIONS)]
            connected = peer.memory_mib()
            for client in clients:
                client.drop()
            fill(peer, backlog)
            print(
                f"| {peer.name} | {idle:.0f} | {(connected - idle) / CONNECTIONS:.3f} | {peer.memory_mib():.0f} |", flush=True
            )


def fill(peer: Peer, count: int) -> None:
    with Amqp(peer.address.port) as amqp:
        channel = amqp.channel()
        channel.declare("backlog", durable=True)
        channel.confirm()
        for done in range(count):
            channel.publish("", "backlog", bytes(1024), delivery_mode=2)
            if done % 1000 == 999:
                while channel.next(60).method.delivery_tag <= done:
                    pass


def start_up() -> None:
    print("\n| from start to the first publish | s |\n|---|---|")
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        times = []
        for attempt in range(5):
            start = time.perf_counter()
            broker = BrokerProcess(Path(folder) / f"{attempt}.db")
            publish(broker.port)
            times.append(time.perf_counter() - start)
            broker.kill()
        print(f"| HoltMQ, median of 5 | {sorted(times)[2]:.2f} |")
    start = time.perf_counter()
    with running_rabbitmq() as node:
        publish(node.amqp_port)
        print(f"| RabbitMQ | {time.perf_counter() - start:.2f} |")


def publish(port: int) -> None:
    with Amqp(port) as amqp:
        channel = amqp.channel()
        channel.confirm()
        channel.publish("amq.fanout", "k", b"first")
        channel.next()


def draw(ratios: list[tuple[str, float]]) -> None:
    figure, axes = plt.subplots(figsize=(9, 8))
    names, values = zip(*reversed(ratios), strict=True)
    axes.barh(names, values, color="#2f6f9f")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlabel("messages per second, as a multiple of RabbitMQ's")
    for place, value in enumerate(values):
        axes.text(value, place, f" {value:.1f}", va="center")
    figure.tight_layout()
    figure.savefig(PLOT)


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's status after its name, which may contain spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["Z"] + ["0"] * 20


if __name__ == "__main__":
    main()
