"""The embedded queue on PostgreSQL beside its peers, in one run: python -m benchmarks.postgres

procrastinate and pgqueuer do the same work on the same server, which syncs each commit (`synchronous_commit=on`). Workers are
processes; they begin and end together. Prints tables for benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from multiprocessing.synchronize import Barrier
from typing import Any
from uuid import uuid4

import procrastinate
import psycopg
from pgqueuer.ports.repository import EntrypointExecutionParameter
from pgqueuer.queries import Queries

import holtmq
from benchmarks.embedded import BODY, pattern_times, pop_and_ack, rate
from holtmq.database_url import DatabaseUrl
from tests.peers.postgres import Postgres, running_postgres

SETTINGS = {"shared_buffers": "256MB", "max_connections": "100", "synchronous_commit": "on"}
ROUNDS = 3
MANY = 8
POPPED = 150
"""Messages that are popped by each pattern. They leave as many of the others at the head of the queue, however long it is."""
TABLES = ("deliveries", "messages", "routing_keys")
FLOOR = "(PostgreSQL: a bare INSERT, a bare DELETE)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of which the best counts (default: %(default)s)")
    parser.add_argument("--only", choices=("rates", "alone", "growth"), help="measure only this")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="put, pop and acknowledge for so long")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    with running_postgres(SETTINGS) as server:
        if options.soak:
            soak(server.url("soak"), options.soak * 60)
            return
        if options.only in (None, "rates"):
            print_rates(compare(server, scale, 1 if options.quick else options.rounds))
        if options.only in (None, "alone"):
            print_alone(server, scale)
        if options.only in (None, "growth"):
            print_growth(server, scale)


def compare(server: Postgres, scale: int, rounds: int) -> dict[tuple[str, int, str], float]:
    """Messages per second, the best of several rounds: by work, number of workers and library."""
    found: dict[tuple[str, int, str], float] = {}
    for turn in range(rounds):
        for workers in (1, MANY):
            count = (2_000 if workers == 1 else 8_000) // scale
            for name, library in LIBRARIES.items():
                url = server.url(f"{name.lower().strip('(').split(':')[0]}_{turn}_{workers}")
                library.prepare(url)
                for work, deed in (("put", library.put), ("pop + ack", library.pop)):
                    key = (work, workers, name)
                    found[key] = max(found.get(key, 0.0), in_processes(deed, url, workers, count))
    return found


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


LIBRARIES: dict[str, Any] = {"HoltMQ": HoltMQ, "procrastinate": Procrastinate, "pgqueuer": PgQueuer, FLOOR: Bare}


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


def print_rates(found: dict[tuple[str, int, str], float]) -> None:
    for work in ("put", "pop + ack"):
        print(f"\n| {work}, messages/s | 1 worker | {MANY} workers | ratio | HoltMQ is, 1 worker | {MANY} workers |")
        print("|---|---|---|---|---|---|")
        for name in LIBRARIES:
            one, many = found[work, 1, name], found[work, MANY, name]
            ours = [found[work, workers, "HoltMQ"] for workers in (1, MANY)]
            print(f"| {name} | {one:,.0f} | {many:,.0f} | {many / one:.1f} | {ours[0] / one:.1f} x | {ours[1] / many:.1f} x |")


def print_alone(server: Postgres, scale: int) -> None:
    count = 20_000 // scale
    with holtmq.open(server.url("alone")) as mq:
        queue = mq.queue("q")
        batch = [(BODY, f"orders.k{n % 100}.x") for n in range(count)]
        print(f"\nput_many of {count:,}: {rate(count, lambda: queue.put_many(batch)):,.0f} messages/s")

        def drain() -> None:
            while messages := queue.pop_many(100):
                queue.ack_many(messages)

        print(f"pop_many + ack_many of 100 at a time: {rate(count, drain):,.0f} messages/s")
        producer = mq.producer("q")

        def send_all() -> None:
            for future in [producer.send(BODY, "orders.food") for _ in range(count)]:
                future.result()

        print(f"sent by a producer, until each future is done: {rate(count, send_all):,.0f} messages/s")


def print_growth(server: Postgres, scale: int) -> None:
    found: dict[int, dict[str, float]] = {}
    for size in (1_000, 10_000, 100_000, 1_000_000 // scale):
        with holtmq.open(server.url(f"growth_{size}")) as mq:
            queue, keys = mq.queue("q"), min(size, 10_000)
            for start in range(0, size, 50_000):
                part = range(start, min(start + 50_000, size))
                queue.put_many([(BODY, f"orders.k{n % keys}.{'eu' if n % 2 else 'us'}") for n in part])
            found[size] = pattern_times(queue, keys, POPPED)
    sizes = list(found)
    print("\n| µs for pop + ack, by pattern | " + " | ".join(f"{size:,}" for size in sizes) + " | ratio |")
    print("|---|" + "---|" * (len(sizes) + 1))
    for name in found[sizes[0]]:
        times = [found[size][name] for size in sizes]
        print(f"| {name} | " + " | ".join(f"{each:.0f}" for each in times) + f" | {times[-1] / times[0]:.2f} |")


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
