"""Streams of messages into files, compared with a pika loop and with the spooled source: python -m benchmarks.pipeline_stream

A broker, and either pika or Spark with its receivers and tasks, share this machine. Messages have bodies of 200 bytes and an
id. Each round runs everything once, one after the other; the fastest round counts. The second table says where the time goes:
the processor time of each process, per message, in the last round.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline import pika_channel, pika_consume
from holtmq.spark import archive, drain, publish, register, session
from tests.server.process import broker_process

MESSAGES = 1_000_000
PIKA_MESSAGES = 20_000
ROUNDS = 3
PIKA, SPOOLED = "a pika loop that consumes and acks", "stream to Parquet, ack=spool"
"""What the other rows are compared with."""
SAMPLE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROCESSES = {
    "python_streaming_source_runner": "receivers",
    "pyspark.daemon": "Python workers",
    "holtmq serve": "broker",
    "java": "Java",
}
"""What a command line contains, and what the process does. The rest is the driver's Python, or pika."""


class ProcessorTime:
    """Samples the processor time of all processes below this one, of which some end before the measurement does."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[str, str], float] = {}
        self._before: dict[tuple[str, str], float] = {}
        self._kinds: dict[str, str] = {}

    @contextmanager
    def sampled(self) -> Iterator[None]:
        self._sample()
        self._before = dict(self._seconds)
        ended = threading.Event()
        sampler = threading.Thread(target=self._sample_until, args=(ended,))
        sampler.start()
        try:
            yield
        finally:
            ended.set()
            sampler.join()

    def by_kind(self) -> Counter[str]:
        """Return the seconds that each kind of process has used."""
        used: Counter[str] = Counter()
        for (kind, process), seconds in self._seconds.items():
            used[kind] += seconds - self._before.get((kind, process), 0.0)  # type: ignore[assignment]
        return used

    def _sample_until(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_S):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        for process in [str(os.getpid()), *_descendants(str(os.getpid()))]:
            try:
                kind = self._kinds.get(process) or self._kinds.setdefault(process, _kind(process))
                values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            self._seconds[kind, process] = (int(values[11]) + int(values[12])) / TICKS_PER_S


def _kind(process: str) -> str:
    command = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    return next((kind for part, kind in PROCESSES.items() if part in command), "driver or pika")


def _descendants(process: str) -> Iterator[str]:
    for thread in _listed(Path(f"/proc/{process}/task")):
        for child in _children(thread):
            yield child
            yield from _descendants(child)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _children(thread: Path) -> list[str]:
    try:
        return (thread / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return []


class Stage:
    """A broker with the queue `q` and the stream queue `s`, a session, and a folder to write to."""

    def __init__(self, spark: SparkSession, url: str, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.folder = folder

    def fill(self, queue: str, count: int) -> None:
        columns = ("'' as exchange", f"'{queue}' as routing_key", "repeat('x', 200) as body", "uuid() as message_id")
        with pika_channel(self.url) as channel:
            channel.queue_delete("s")
            channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
        publish(self.spark.range(0, count, 1, 2).selectExpr(*columns), url=self.url)

    def stream(self, target: Path, queue: str = "q", **options: str) -> None:
        rows = self.spark.readStream.format("amqp").options(url=self.url, queue=queue, **options).load()
        writer = rows.writeStream.option("checkpointLocation", str(target / "checkpoint")).trigger(availableNow=True)
        writer.start(str(target / "out"), format="parquet").awaitTermination()

    def spooled(self, target: Path) -> None:
        self.stream(target, ack="spool", spool=str(target / "spool"))

    def followed(self, target: Path) -> None:
        self.stream(target, "s", startingOffsets="earliest", minPartitions="2")

    def read(self, _: Path) -> None:
        options = {"startingOffsets": "earliest", "minPartitions": "2"}
        rows = self.spark.read.format("amqp").options(url=self.url, queue="s", **options).load()
        rows.write.format("noop").mode("overwrite").save()

    def drain(self, target: Path) -> None:
        def write(rows: DataFrame) -> None:
            rows.write.mode("append").parquet(str(target))

        drain(self.spark, "q", write, url=self.url)

    def archive(self, target: Path) -> None:
        archive(self.spark, "q", str(target), url=self.url, compact=False)

    def pika(self, _: Path) -> None:
        pika_consume(self.url, PIKA_MESSAGES)


def measure(stage: Stage, messages: int, rounds: int) -> None:
    jobs: dict[str, tuple[str, int, Callable[[Path], None]]] = {
        PIKA: ("q", PIKA_MESSAGES, stage.pika),
        "stream to Parquet, ack=commit": ("q", messages, stage.stream),
        SPOOLED: ("q", messages, stage.spooled),
        "drain() to Parquet": ("q", messages, stage.drain),
        "archive()": ("q", messages, stage.archive),
        "from a stream queue to Parquet": ("s", messages, stage.followed),
        "a stream queue as a batch, to nowhere": ("s", messages, stage.read),
    }
    rates: dict[str, float] = {}
    costs: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name, (queue, count, job) in jobs.items():
            stage.fill(queue, count)
            os.sync()  # so that no job waits for the writes of the previous one
            used = ProcessorTime()
            with used.sampled():
                started = time.perf_counter()
                job(stage.folder / f"{name[:12]}-{number}".replace(" ", "-"))
                seconds = time.perf_counter() - started
            rates[name] = max(rates.get(name, 0.0), count / seconds)
            costs[name] = {kind: 1e6 * used / count for kind, used in used.by_kind().items()}
    print_tables(rates, costs)


def print_tables(rates: dict[str, float], costs: dict[str, dict[str, float]]) -> None:
    print("| what | messages/s | beside pika | beside ack=spool |\n|---|---|---|---|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / rates[PIKA]:.1f} | {rate / rates[SPOOLED]:.1f} |")
    kinds = [*dict.fromkeys(PROCESSES.values()), "driver or pika"]
    print(f"\n| processor time per message, µs | {' | '.join(kinds)} | total |\n|---|{'---|' * (len(kinds) + 1)}")
    for name, cost in costs.items():
        values = " | ".join(f"{cost.get(kind, 0.0):.1f}" for kind in kinds)
        print(f"| {name} | {values} | {sum(cost.values()):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as name:
        folder = Path(name)
        spark = session("local[2]")
        register(spark)
        with broker_process(folder / "broker.db") as broker:
            url = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
            with pika_channel(url) as channel:
                channel.queue_declare("q", durable=True)
            measure(Stage(spark, url, folder), chosen.messages, chosen.rounds)
        spark.stop()


if __name__ == "__main__":
    main()
