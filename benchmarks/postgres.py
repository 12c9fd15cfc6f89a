"""The embedded queue on PostgreSQL beside its peers, in one run: python -m benchmarks.postgres

procrastinate and pgqueuer do the same work on the same server, which syncs each commit (`synchronous_commit=on`). Workers are
processes; they begin and end together. Prints tables for benchmarks/README.md: of HoltMQ the worst round, of its peers the
median. A complete run writes benchmarks/results/postgres.json.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from importlib.metadata import version
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any
from uuid import uuid4

import procrastinate
import psycopg
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

import holtmq
from benchmarks.embedded import BODY, GROWTH, POPPED, RATE, TIME, pattern_times, pop_and_ack, rate
from benchmarks.results import FOLDER, OURS, Results
from benchmarks.tables import print_tables
from holtmq.database_url import DatabaseUrl
from tests.peers.postgres import Postgres, running_postgres

SETTINGS = {"shared_buffers": "256MB", "max_connections": "100", "synchronous_commit": "on"}
ROUNDS = 3
MANY = 8
TABLES = ("deliveries", "messages", "routing_keys")
BARE = "bare PostgreSQL"
ROW = "{}, workers: {}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="number of rounds (default: %(default)s)")
    parser.add_argument("--only", choices=("rates", "alone", "growth"), help="measure only this")
    parser.add_argument("--out", type=Path, help="write the results to this file (default: only of a complete run)")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="put, pop and acknowledge for so long")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    is_complete = not options.quick and options.only is None
    out = options.out or (FOLDER / "postgres.json" if is_complete else None)
    versions = {name: version(name) for name in LIBRARIES if name not in (OURS, BARE)}
    results = Results({OURS: holtmq.__version__, **versions}, options.rounds)
    with running_postgres(SETTINGS) as server:
        if options.soak:
            soak(server.url("soak"), options.soak * 60)
            return
        with psycopg.connect(conninfo(server.url("version"))) as connection:
            results.versions[BARE] = str(connection.info.server_version // 10_000)
        for turn in range(options.rounds):
            if options.only in (None, "rates"):
                compare(server, results, turn, scale)
            if options.only in (None, "alone"):
                measure_alone(server, results, turn, scale)
            if options.only in (None, "growth"):
                measure_growth(server, results, turn, scale)
            if out is not None:
                results.write(out)
    print_tables(results)
    if options.only in (None, "rates"):
        print_ratios(results)


def compare(server: Postgres, results: Results, turn: int, scale: int) -> None:
    for workers in (1, MANY):
        count = (2_000 if workers == 1 else 8_000) // scale
        for name, library in LIBRARIES.items():
            url = server.url(f"{name.lower().replace(' ', '_')}_{turn}_{workers}")
            library.prepare(url)
            for work, deed in (("put", library.put), ("pop + ack", library.pop)):
                results.add(ROW.format(work, workers), RATE, name, in_processes(deed, url, workers, count))


def in_processes(deed: Callable[[str, int, Barrier], None], url: str, workers: int, count: int) -> float:
    together = multiprocessing.Barrier(workers + 1)
    processes = [multiprocessing.Process(target=deed, args=(url, count // workers, together)) for _ in range(workers)]
    for process in processes:
        process.start()
    together.wait()
    per_second = rate(count, together.wait)
    for process in processes:
        process.join()
    assert all(process.exitcode == 0 for process in processes)
    return per_second


class HoltMQ:
    @staticmethod
    def prepare(url: str) -> None:
        with holtmq.open(url) as mq:
            mq.queue("q")

    @staticmethod
    def put(url: str, count: int, together: Barrier) -> None:
        with holtmq.open(url) as mq:
            queue = mq.queue("q")
            together.wait()
            for _ in range(count):
                queue.put(BODY, "orders.food")
            together.wait()

    @staticmethod
    def pop(url: str, count: int, together: Barrier) -> None:
        with holtmq.open(url) as mq:
            queue = mq.queue("q")
            together.wait()
            pop_and_ack(queue, count)
            together.wait()


class Procrastinate:
    """Jobs that are deleted when they are done, as an acknowledged message is."""

    @staticmethod
    def prepare(url: str) -> None:
        make_schema(url)
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=conninfo(url))).open() as app:
            app.schema_manager.apply_schema()

    @staticmethod
    def put(url: str, count: int, together: Barrier) -> None:
        with procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=conninfo(url))).open() as app:
            job = app.configure_task("orders.food", queue="q", allow_unknown=True)
            together.wait()
            for _ in range(count):
                job.defer(body=BODY.decode())
            together.wait()

    @staticmethod
    def pop(url: str, count: int, together: Barrier) -> None:
        async def work() -> None:
            app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=conninfo(url), min_size=1, max_size=1))
            async with app.open_async():
                jobs = app.job_manager
                worker = await jobs.register_worker()
                together.wait()
                for _ in range(count):
                    job = await jobs.fetch_job(["q"], worker)
                    assert job is not None
                    await jobs.finish_job(job, procrastinate.jobs.Status.SUCCEEDED, delete_job=True)
                together.wait()

        asyncio.run(work())


class PgQueuer:
    @staticmethod
    def prepare(url: str) -> None:
        make_schema(url)

        async def install(queries: Queries) -> None:
            await queries.install()

        asyncio.run(with_queries(url, install))

    @staticmethod
    def put(url: str, count: int, together: Barrier) -> None:
        async def work(queries: Queries) -> None:
            together.wait()
            for _ in range(count):
                await queries.enqueue("q", BODY)
            together.wait()

        asyncio.run(with_queries(url, work))

    @staticmethod
    def pop(url: str, count: int, together: Barrier) -> None:
        async def work(queries: Queries) -> None:
            manager: Any = uuid4()
            entrypoints: Any = {"q": EntrypointExecutionParameter(0)}
            together.wait()
            for _ in range(count):
                (job,) = await queries.dequeue(1, entrypoints, manager, None, timedelta(seconds=60))
                await queries.log_jobs([(job, "successful", None)])
            together.wait()

        asyncio.run(with_queries(url, work))


class Bare:
    """What PostgreSQL alone takes: a row into one table with a key, and its deletion, each a transaction of one statement."""

    @staticmethod
    def prepare(url: str) -> None:
        make_schema(url)
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            connection.execute("CREATE TABLE bare (id bigserial PRIMARY KEY, body bytea)")

    @staticmethod
    def put(url: str, count: int, together: Barrier) -> None:
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            together.wait()
            for _ in range(count):
                connection.execute("INSERT INTO bare (body) VALUES (%b) RETURNING id", (BODY,)).fetchone()
            together.wait()

    @staticmethod
    def pop(url: str, count: int, together: Barrier) -> None:
        statement = (
            "DELETE FROM bare WHERE id = (SELECT id FROM bare ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id, body"
        )
        with psycopg.connect(conninfo(url), autocommit=True) as connection:
            together.wait()
            for _ in range(count):
                connection.execute(statement).fetchone()
            together.wait()


LIBRARIES: dict[str, Any] = {OURS: HoltMQ, "procrastinate": Procrastinate, "pgqueuer": PgQueuer, BARE: Bare}


def conninfo(url: str) -> str:
    parsed = DatabaseUrl.parse(url)
    return f"{parsed.conninfo}?options=-c%20search_path%3D{parsed.schema}"


def make_schema(url: str) -> None:
    parsed = DatabaseUrl.parse(url)
    with psycopg.connect(parsed.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {parsed.schema}".encode())


async def with_queries(url: str, work: Callable[[Queries], Awaitable[None]]) -> None:
    async with await psycopg.AsyncConnection.connect(conninfo(url), autocommit=True) as connection:
        await work(Queries.from_psycopg_connection(connection))


def print_ratios(results: Results) -> None:
    """Print what many workers do together as a multiple of one, from the medians."""
    for work in ("put", "pop + ack"):
        for name in LIBRARIES:
            one, many = (statistics.median(results.rows[ROW.format(work, workers)][RATE][name]) for workers in (1, MANY))
            print(f"{work}, {MANY} workers / one, {name}: {many / one:.1f}")


def measure_alone(server: Postgres, results: Results, turn: int, scale: int) -> None:
    count = 20_000 // scale
    with holtmq.open(server.url(f"alone_{turn}")) as mq:
        queue = mq.queue("q")
        batch = [(BODY, f"orders.k{n % 100}.x") for n in range(count)]
        results.add(f"put_many of {count:,}", RATE, OURS, rate(count, lambda: queue.put_many(batch)))

        def drain() -> None:
            while messages := queue.pop_many(100):
                queue.ack_many(messages)

        results.add("pop_many + ack_many of 100 at a time", RATE, OURS, rate(count, drain))
        producer = mq.producer("q")

        def send_all() -> None:
            for future in [producer.send(BODY, "orders.food") for _ in range(count)]:
                future.result()

        results.add("sent by a producer, until each future is done", RATE, OURS, rate(count, send_all))


def measure_growth(server: Postgres, results: Results, turn: int, scale: int) -> None:
    for size in (1_000, 10_000, 100_000, 1_000_000 // scale):
        with holtmq.open(server.url(f"growth_{turn}_{size}")) as mq:
            queue, keys = mq.queue("q"), min(size, 10_000)
            for start in range(0, size, 50_000):
                part = range(start, min(start + 50_000, size))
                queue.put_many([(BODY, f"orders.k{n % keys}.{'eu' if n % 2 else 'us'}") for n in part])
            for name, taken_us in pattern_times(queue, keys, POPPED).items():
                results.add(GROWTH.format(name, size), TIME, OURS, taken_us)


def soak(url: str, seconds: float) -> None:
    """Put, pop and acknowledge over a standing backlog. Prints what the tables take, several times."""
    with holtmq.open(url) as mq:
        mq.queue("q").put_many([(BODY, f"k.{n % 100}") for n in range(10_000)])
        print("| seconds | messages | deliveries, MB | its indexes, MB | others, MB |\n|---|---|---|---|---|")
        started, moved = time.monotonic(), 0
        stop = multiprocessing.Event()
        counter = multiprocessing.Value("q", 0)
        workers = [multiprocessing.Process(target=churn, args=(url, stop, counter)) for _ in range(4)]
        for worker in workers:
            worker.start()
        for step in range(7):
            stop.wait(max(0.0, started + seconds * step / 6 - time.monotonic()))
            moved = counter.value
            with mq.database.lock() as connection:
                sizes = [
                    connection.fetch(f"SELECT pg_table_size('{table}'), pg_indexes_size('{table}')")[0] for table in TABLES
                ]
            others = sum(map(sum, sizes[1:]))
            print(
                f"| {time.monotonic() - started:.0f} | {moved:,} | {sizes[0][0] / 1e6:.1f} | {sizes[0][1] / 1e6:.1f} "
                f"| {others / 1e6:.1f} |",
                flush=True,
            )
        stop.set()
        for worker in workers:
            worker.join()


def churn(url: str, stop: Any, counter: Any) -> None:
    with holtmq.open(url) as mq:
        queue, number = mq.queue("q"), 0
        while not stop.is_set():
            number += 1
            queue.put(BODY, f"k.{number % 100}")
            message = queue.pop(f"k.{number % 100}" if number % 4 == 0 else None)
            if message is not None:
                message.ack()
            if number % 20 == 0:
                with counter.get_lock():
                    counter.value += 20


if __name__ == "__main__":
    main()
