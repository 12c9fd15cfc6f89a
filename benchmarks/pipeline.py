"""The pipeline compared with a Spark job that only copies, and with pika loops: python -m benchmarks.pipeline [PART …]

Parts: route, narrow, fanout, bindings, headers, scaling, memory, naive, amqp (default: all). Messages have the columns of an
archive and bodies of 200 bytes that do not compress well. Copying and routing write the same number of rows: each message
reaches one queue, and in the part fanout 1, 10 or 50 queues. Each round runs everything once, one after the other. The fastest
round counts. A complete run writes all rounds to benchmarks/results/pipeline.json.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pika
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holtmq
from benchmarks.results import FOLDER, OURS, Results, best
from holtmq import Binding, Exchange, Queue, Topology
from holtmq.spark import publish, register, route, route_job, session
from tests.server.process import broker_process

BESIDE = "beside it"
MESSAGES = 5_000_000
FILES = 8
QUEUES = 100
FAN_OUTS, FAN_OUT_BINDINGS, FAN_OUT_QUEUES = (1, 10, 50), 3_000, 200
KEYS = (10_000, 2_000_000)
ROUNDS = 3
AMQP_MESSAGES = 500_000
PIKA_MESSAGES = 20_000
NAIVE_MESSAGES, NAIVE_BINDINGS = 20_000, 1_000
NARROW = ["exchange", "routing_key", "message_id", "body"]
PARTS = ("route", "narrow", "fanout", "bindings", "headers", "scaling", "memory", "naive", "amqp")


def topics(count: int) -> Topology:
    """Return a topology with `count` patterns of three shapes. A key `shop.<n>.<item>` matches the pattern for its n."""
    patterns = ((f"shop.{n}.#", f"shop.{n}.*", f"*.{n}.*")[n % 3] for n in range(count))
    bindings = tuple(Binding("shop", f"q{n % QUEUES}", pattern) for n, pattern in enumerate(patterns))
    return Topology((Exchange("shop", "topic"),), tuple(Queue(f"q{n}") for n in range(QUEUES)), bindings)


def fan_out_groups(fan_out: int) -> int:
    """Return the number of values of the second and third word in the patterns of `fan_out_topics`."""
    return FAN_OUT_BINDINGS // fan_out


def fan_out_topics(fan_out: int) -> Topology:
    """Return a topology with 3,000 patterns and 200 queues, of which each key of `fan_out_key` reaches `fan_out`.

    The second word of a key selects half of its queues, the third word the others, so there are many different sets of queues.
    """
    half = FAN_OUT_QUEUES // 2
    bindings = []
    for group in range(fan_out_groups(fan_out)):
        by_second = (f"shop.{group}.#", f"shop.{group}.*.*", f"*.{group}.#")
        by_third = (f"*.*.{group}.#", f"shop.*.{group}.*", f"*.*.{group}.*")
        for number in range(fan_out):
            patterns, first_queue = (by_third, half) if number % 2 else (by_second, 0)
            queue = first_queue + (group * 13 + number // 2) % half
            bindings.append(Binding("shop", f"q{queue}", patterns[number // 2 % 3]))
    return Topology((Exchange("shop", "topic"),), tuple(Queue(f"q{n}") for n in range(FAN_OUT_QUEUES)), tuple(bindings))


def fan_out_key(number: int, fan_out: int) -> str:
    """Return the routing key with this number: a different one for each number."""
    rest, second = divmod(number, fan_out_groups(fan_out))
    rest, third = divmod(rest, fan_out_groups(fan_out))
    return f"shop.{second}.{third}.item{rest}"


def values_of(name: int) -> int:
    """Return the number of values of a header: ten for even numbers, twenty for odd ones."""
    return 20 if name % 2 else 10


def criteria() -> Topology:
    """Return a topology with a thousand headers bindings: one per pair of values of h0 and h1, of h2 and h3, and so on."""
    pairs = [
        {f"h{even}": f"v{value}", f"h{even + 1}": f"v{other}"}
        for even in range(0, 10, 2)
        for value in range(values_of(even))
        for other in range(values_of(even + 1))
    ]
    bindings = tuple(Binding("shop", f"q{number % QUEUES}", "", pair) for number, pair in enumerate(pairs))
    return Topology((Exchange("shop", "headers"),), tuple(Queue(f"q{n}") for n in range(QUEUES)), bindings)


def make_messages(
    folder: Path, count: int, keys: int, *, headers: int = 0, is_narrow: bool = False, fan_out: int | None = None
) -> str:
    """Write messages with this many distinct keys and sets of headers, in files like those of a Spark job.

    They have the columns of an archive or, if `is_narrow`, only the required ones. Return the folder.
    """
    generator = np.random.default_rng(keys)
    texts_of_headers = np.array(header_texts(headers) if headers else [None])
    folder.mkdir()
    rows = count // FILES
    for number in range(FILES):
        numbers = generator.integers(0, keys, rows).tolist()
        texts = [f"shop.{n % 10_000}.item{n // 10_000}" if fan_out is None else fan_out_key(n, fan_out) for n in numbers]
        seconds = generator.integers(1_760_000_000, 1_762_000_000, rows) * 1_000_000
        table = pa.table(
            {
                "source_queue": ["audit"] * rows,
                "exchange": ["shop"] * rows,
                "routing_key": texts,
                "redelivered": [False] * rows,
                "received_at": pa.array(seconds + 500_000, pa.timestamp("us", "UTC")),
                "content_type": ["application/json"] * rows,
                "headers": pa.array(texts_of_headers[generator.integers(0, headers or 1, rows)], pa.string()),
                "delivery_mode": pa.array(np.full(rows, 2, np.int32)),
                "message_id": _hexadecimal(generator, rows, 32).cast(pa.string()),
                "timestamp": pa.array(seconds, pa.timestamp("us", "UTC")),
                "app_id": [f"shop-{n}" for n in generator.integers(0, 20, rows).tolist()],
                "body": _hexadecimal(generator, rows, 200),
            }
        )
        if is_narrow:
            table = table.select(NARROW)
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=200_000)
    return str(folder)


def header_texts(kinds: int) -> list[str]:
    """Return this many distinct headers, at most 120,000: two names of one binding and a third one, so that one matches."""
    chooser = random.Random(kinds)
    found: dict[str, None] = {}
    while len(found) < kinds:
        even = chooser.randrange(0, 10, 2)
        third = chooser.choice([name for name in range(10) if name // 2 != even // 2])
        names = sorted((even, even + 1, third))
        found[", ".join(f'"h{name}": "v{chooser.randrange(values_of(name))}"' for name in names)] = None
    return [f"{{{text}}}" for text in found]


def _hexadecimal(generator: np.random.Generator, rows: int, width: int) -> pa.Array:
    digits = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
    text = digits[generator.integers(0, 16, rows * width, dtype=np.uint8)]
    offsets = np.arange(0, width * (rows + 1), width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


class Bench:
    """Runs jobs in rounds, and keeps the times of each."""

    def __init__(self, spark: SparkSession, folder: Path, results: Results) -> None:
        self.spark = spark
        self.folder = folder
        self.rounds = results.rounds
        self._results = results

    def add(self, label: str, ours: Sequence[float], theirs: Sequence[float], value: str = "s") -> None:
        """Keep the rounds of a job and of what it is compared with, and print the fastest of both."""
        for library, rounds in ((OURS, ours), (BESIDE, theirs)):
            for measured in rounds:
                self._results.add(label, value, library, measured)
        fastest, beside = best(value, list(ours)), best(value, list(theirs))
        print(f"| {label} | {fastest:,.4g} {value} | {beside:,.4g} {value} | {fastest / beside:.2f} |", flush=True)

    def rounds_of(self, **jobs: Callable[[str], object]) -> dict[str, list[float]]:
        """Run the jobs, each with the path to write to. Return the seconds of each, in all rounds."""
        taken: dict[str, list[float]] = {name: [] for name in jobs}
        for _ in range(self.rounds):
            for name, job in jobs.items():
                target = self.folder / "out"
                shutil.rmtree(target, ignore_errors=True)
                os.sync()  # so that no job waits for the writes of the previous one
                started = time.perf_counter()
                job(str(target))
                taken[name].append(time.perf_counter() - started)
        return taken

    def copy(self, source: str, fan_out: int = 1) -> Callable[[str], object]:
        names = ", ".join(f"'q{number}'" for number in range(fan_out))
        queue = f"explode(array({names})) as queue" if fan_out > 1 else f"{names} as queue"
        added = (queue, "cast(null as string) as reason")
        return lambda target: self.spark.read.parquet(source).selectExpr("*", *added).write.parquet(target)

    def through_python(self, source: str) -> Callable[[str], object]:
        """Copy with all rows passing through Python, unchanged: the least that any routing in Python takes."""

        def copy(target: str) -> None:
            messages = self.spark.read.parquet(source)
            same = messages.mapInArrow(lambda batches: batches, messages.schema)
            same.selectExpr("*", "'q0' as queue", "cast(null as string) as reason").write.parquet(target)

        return copy

    def signatures(self, source: str) -> Callable[[str], object]:
        """Find the distinct keys: the least of what a join with their routes takes beyond copying."""
        keys = self.spark.read.parquet(source).select("exchange", "routing_key").distinct()
        return lambda _: keys.write.format("noop").mode("overwrite").save()

    def route(self, source: str, topology: Topology) -> Callable[[str], object]:
        return lambda target: route(self.spark.read.parquet(source), topology).write.parquet(target)

    def job(self, source: str, topology: Topology) -> Callable[[str], object]:
        return lambda target: route_job(self.spark, source, target, topology)


def bench_routes(bench: Bench, few: str, many: str, kind: str = "") -> None:
    topology = topics(10_000)
    for keys, source in (("10,000", few), ("2,000,000", many)):
        times = bench.rounds_of(
            copy=bench.copy(source),
            route=bench.route(source, topology),
            job=bench.job(source, topology),
            python=bench.through_python(source),
            keys=bench.signatures(source),
        )
        for name, label in (
            ("route", "route() on a DataFrame"),
            ("job", "the route job, Parquet to Parquet"),
            ("python", "copying with all rows passing through Python"),
            ("keys", "finding the distinct keys"),
        ):
            bench.add(f"{label}{kind}, {keys} distinct keys", times[name], times["copy"])


def bench_fan_out(bench: Bench, messages: int, deliveries: int) -> None:
    for fan_out in FAN_OUTS:
        topology = fan_out_topics(fan_out)
        for keys in KEYS:
            count = min(messages, deliveries // fan_out)
            source = make_messages(bench.folder / f"fan-out-{fan_out}-{keys}", count, keys, fan_out=fan_out)
            times = bench.rounds_of(
                copy=bench.copy(source, fan_out), route=bench.route(source, topology), job=bench.job(source, topology)
            )
            shutil.rmtree(source)
            for name, label in (("route", "route()"), ("job", "the route job")):
                bench.add(f"{label}, {count:,} messages into {fan_out} queues each, {keys:,} keys", times[name], times["copy"])


def bench_bindings(bench: Bench, few: str) -> None:
    sizes = {f"n{count}": topics(count) for count in (1_000, 100_000)}
    routes = bench.rounds_of(**{name: bench.route(few, topology) for name, topology in sizes.items()})
    jobs = bench.rounds_of(**{name: bench.job(few, topology) for name, topology in sizes.items()})
    bench.add("route(), 100,000 bindings / 1,000", routes["n100000"], routes["n1000"])
    bench.add("the route job, 100,000 bindings / 1,000", jobs["n100000"], jobs["n1000"])


def bench_headers(bench: Bench, messages: int) -> None:
    topology = criteria()
    for kinds in (10_000, 100_000):
        source = make_messages(bench.folder / f"headers-{kinds}", messages, 10_000, headers=kinds)
        times = bench.rounds_of(copy=bench.copy(source), route=bench.route(source, topology), job=bench.job(source, topology))
        shutil.rmtree(source)
        for name, label in (("route", "route()"), ("job", "the route job")):
            bench.add(f"{label}, 1,000 headers bindings over 10 names, {kinds:,} sets of headers", times[name], times["copy"])


def bench_naive(bench: Bench, few: str) -> None:
    """The obvious solution: match every message with the regular expression of every binding."""
    topology = topics(NAIVE_BINDINGS)
    expressions = [(b.destination, _regular_expression(b.routing_key)) for b in topology.bindings]
    bindings = bench.spark.createDataFrame(expressions, "queue string, pattern string")
    messages = bench.spark.read.parquet(few).limit(NAIVE_MESSAGES).persist()
    messages.count()
    joined = messages.join(F.broadcast(bindings), F.expr("routing_key rlike pattern"), "left").drop("pattern")
    times = bench.rounds_of(
        naive=lambda target: joined.write.parquet(target),
        route=lambda target: route(messages, topology).write.parquet(target),
    )
    messages.unpersist()
    bench.add(
        f"cross join with regular expressions / route(), {NAIVE_MESSAGES:,} messages x {NAIVE_BINDINGS:,}",
        times["naive"],
        times["route"],
    )


def _regular_expression(pattern: str) -> str:
    return "^" + pattern.replace(".", "\\.").replace("\\.#", "(\\..*)?").replace("*", "[^.]*") + "$"


def bench_amqp(bench: Bench) -> None:
    spark = bench.spark
    register(spark)
    rows = spark.range(0, AMQP_MESSAGES, 1, 2).selectExpr(
        "'' as exchange", "'q' as routing_key", "repeat('x', 200) as body", "uuid() as message_id"
    )
    with broker_process(bench.folder / "broker.db") as broker:
        url = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        with pika_channel(url) as channel:
            channel.queue_declare("q", durable=True)
        sink, published, confirmed = ([] for _ in range(3))
        for _ in range(bench.rounds):
            published.append(rate(PIKA_MESSAGES, pika_publish, url, PIKA_MESSAGES, False))
            purge(url)
            confirmed.append(rate(PIKA_MESSAGES // 10, pika_publish, url, PIKA_MESSAGES // 10, True))
            purge(url)
            sink.append(rate(AMQP_MESSAGES, lambda: publish(rows, url=url)))
            purge(url)
        for label, ours, theirs in (
            ("sink, confirmed / a pika loop, confirmed", sink, confirmed),
            ("sink, confirmed / a pika loop that asks for no confirms", sink, published),
        ):
            bench.add(label, ours, theirs, "messages/s")


def rate(count: int, action: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    action(*arguments)
    return count / (time.perf_counter() - started)


@contextmanager
def pika_channel(url: str) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(f"{url}?heartbeat=0"))
    yield connection.channel()
    connection.close()


def purge(url: str) -> None:
    with pika_channel(url) as channel:
        channel.queue_purge("q")


def pika_publish(url: str, count: int, confirms: bool) -> None:  # noqa: FBT001
    with pika_channel(url) as channel:
        if confirms:
            channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, message_id="x" * 36)
        for _ in range(count):
            channel.basic_publish("", "q", b"x" * 200, properties, mandatory=confirms)


def pika_consume(url: str, count: int) -> None:
    with pika_channel(url) as channel:
        channel.basic_qos(prefetch_count=1000)
        for number, (method, _, _) in enumerate(channel.consume("q"), 1):
            channel.basic_ack(method.delivery_tag)
            if number == count:
                break
        channel.cancel()


def bench_scaling(folder: Path, few: str, results: Results) -> None:
    """Compare one core with two, each in a session of its own."""
    topology = topics(10_000)
    times = {}
    for cores in (1, 2):
        spark = session(f"local[{cores}]")
        bench = Bench(spark, folder, results)
        times[cores] = bench.rounds_of(route=bench.route(few, topology), job=bench.job(few, topology))
        spark.stop()
    for name, label in (("route", "route()"), ("job", "the route job")):
        bench.add(f"{label}: one core / two", times[1][name], times[2][name])


def bench_memory(folder: Path, messages: int) -> None:
    """Print the peak memory of each process after routing few, some and many messages, each in a new process."""
    print("\n| memory after both, MiB | driver's Python | Java (heap 4 GB) | the largest Python worker |\n|---|---|---|---|")
    for count in (messages // 5, messages, messages * 4):
        source = make_messages(folder / f"memory-{count}", count, 2_000_000)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            sizes = pool.apply(_route_and_measure, (source, str(folder / "out")))
        shutil.rmtree(source)
        print(f"| {count:,} messages, 2,000,000 keys | " + " | ".join(f"{size:,}" for size in sizes) + " |", flush=True)


def _route_and_measure(source: str, target: str) -> tuple[int, int, int]:
    bench = Bench(session("local[2]"), Path(target).parent, Results({}, rounds=1))
    topology = topics(10_000)
    bench.rounds_of(route=bench.route(source, topology), job=bench.job(source, topology))
    sizes = _most_mib(_status(os.getpid())), *memory_mib()
    bench.spark.stop()
    return sizes


def memory_mib() -> tuple[int, int]:
    """Return the peak memory of the Java process and of the largest Python worker."""
    sizes = {"java": 0, "python": 0}
    for process in _descendants(os.getpid()):
        status = _status(process)
        kind = next((kind for kind in sizes if kind in status["Name"]), None)
        if kind is not None:
            sizes[kind] = max(sizes[kind], _most_mib(status))
    return sizes["java"], sizes["python"]


def _status(process: int | str) -> dict[str, str]:
    """Return /proc/PID/status. getrusage would include the memory that a process had as a copy of its parent."""
    lines = (Path("/proc") / str(process) / "status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)


def _most_mib(status: dict[str, str]) -> int:
    return int(status["VmHWM"].split()[0]) // 1024


def _descendants(process: int) -> Iterator[str]:
    for thread in (Path("/proc") / str(process) / "task").iterdir():
        for child in (thread / "children").read_text().split():
            yield child
            yield from _descendants(int(child))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--deliveries", type=int, default=25_000_000, help="maximum number of rows that the part fanout writes")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, help="write the results to this file (default: only of a complete run)")
    chosen = parser.parse_args()
    unknown = {*chosen.parts} - {*PARTS}
    if unknown:
        sys.exit(f"unknown parts {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    results = Results({OURS: holtmq.__version__, "Spark": pyspark.__version__}, chosen.rounds, chosen.messages / MESSAGES)
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as name:
        run_parts(Path(name), chosen.parts, chosen.messages, chosen.deliveries, results)
    is_complete = chosen.messages == MESSAGES and {*chosen.parts} == {*PARTS}
    if chosen.out or is_complete:
        results.write(chosen.out or FOLDER / "pipeline.json")


def run_parts(folder: Path, parts: Sequence[str], messages: int, deliveries: int, results: Results) -> None:
    few = make_messages(folder / "few", messages, 10_000)
    print("| what | it takes | beside it | ratio |\n|---|---|---|---|")
    bench = Bench(session("local[2]"), folder, results)
    if "route" in parts:
        bench_routes(bench, few, make_messages(folder / "many", messages, 2_000_000))
    if "narrow" in parts:
        narrow_few, narrow_many = (make_messages(folder / f"narrow-{keys}", messages, keys, is_narrow=True) for keys in KEYS)
        bench_routes(bench, narrow_few, narrow_many, ", narrow messages")
    if "fanout" in parts:
        bench_fan_out(bench, messages, deliveries)
    if "bindings" in parts:
        bench_bindings(bench, few)
    if "headers" in parts:
        bench_headers(bench, messages)
    if "naive" in parts:
        bench_naive(bench, few)
    if "amqp" in parts:
        bench_amqp(bench)
    bench.spark.stop()
    if "scaling" in parts:
        bench_scaling(folder, few, results)
    if "memory" in parts:
        bench_memory(folder, messages)


if __name__ == "__main__":
    main()
