"""The broker on PostgreSQL beside RabbitMQ and HoltMQ on a file: python -m benchmarks.postgres_broker [--quick] [--rounds N]

All of them run on the same machine and receive the same load in turn. PostgreSQL has synchronous_commit = on and its own
defaults otherwise. Prints for each row the median of each broker, and the worst round on PostgreSQL as a multiple of it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg

from benchmarks.broker import QUICK, run
from benchmarks.brokers import Broker, HoltMQ, RabbitMQ, running
from benchmarks.results import Results, best, worst
from benchmarks.rows import CONFIRMED, SENT, LoadRow, ten_to_ten
from benchmarks.tables import ratio, shown
from holtmq.bench import run_load
from holtmq.database_url import DatabaseUrl
from tests.peers.peer import RABBITMQ
from tests.peers.postgres import running_postgres
from tests.server.process import BrokerProcess

ROWS = (
    LoadRow("persistent, confirmed, acked", CONFIRMED),
    LoadRow("persistent, confirmed, acked, 10 to 10", ten_to_ten(CONFIRMED)),
    LoadRow("persistent, confirmed, no consumer", replace(CONFIRMED, consumers=0), (SENT,)),
)
TABLES = ("log_chunks", "log_slices")
CYCLE = replace(CONFIRMED, messages=200_000, late_s=math.inf, time_s=3600)
"""Fills a queue, and then drains it."""


class HoltMQOnPostgres(HoltMQ):
    name = "HoltMQ on PostgreSQL"

    def __init__(self) -> None:
        super().__init__()
        self._running = ExitStack()

    @property
    def data(self) -> Path:
        return self._server.data

    def start(self) -> None:
        if self._process is None:
            self._server = self._running.enter_context(running_postgres({}))
            self._url = self._server.url()
            self._process = BrokerProcess(self._url, "--log-level", "error")
        else:
            self._process.start()
        self.port, self.pid = self._process.port, self._process.process.pid

    def table_mb(self, table: str) -> float:
        """Return what a table takes, with its indexes and large values, in MB."""
        url = DatabaseUrl.parse(self._url)
        with psycopg.connect(url.conninfo) as connection:
            found = connection.execute("SELECT pg_total_relation_size(%s)", (f"{url.schema}.{table}",)).fetchone()
        assert found is not None
        return float(found[0]) / 1e6

    def close(self) -> None:
        super().close()
        self._running.close()


KINDS: Sequence[type[Broker]] = (HoltMQOnPostgres, HoltMQ, RabbitMQ)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorten all loads to a twentieth")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of each row (default: 5)")
    parser.add_argument("--out", type=Path, help="write the results to this file")
    parser.add_argument("--soak", type=float, default=0.0, metavar="MINUTES", help="fill and drain a queue for so long")
    options = parser.parse_args()
    if options.soak:
        soak(options.soak * 60)
        return
    kinds = [kind for kind in KINDS if kind is not RabbitMQ or RABBITMQ.is_installed]
    print_table(run(ROWS, kinds, options.rounds, QUICK if options.quick else 1.0, options.out))


def soak(seconds: float) -> None:
    """Fill a queue and drain it, again and again. Prints what the tables take, several times."""
    with running(HoltMQOnPostgres) as broker:
        assert isinstance(broker, HoltMQOnPostgres)
        print("| seconds | messages | " + " | ".join(f"{table}, MB" for table in TABLES) + " |")
        print("|---" * (2 + len(TABLES)) + "|")
        started, moved = time.monotonic(), 0
        for step in range(7):
            while time.monotonic() < started + seconds * step / 6:
                run_load(broker.address, CYCLE)
                moved += CYCLE.messages
            sizes = " | ".join(f"{broker.table_mb(table):.1f}" for table in TABLES)
            print(f"| {time.monotonic() - started:.0f} | {moved:,} | {sizes} |", flush=True)


def print_table(results: Results) -> None:
    ours, *others = (kind.name for kind in KINDS if kind.name in results.versions)
    print(f"{results.machine}; {results.date} UTC; {results.rounds} rounds")
    ratios = "".join(f" {other} | worst / {other} |" for other in others)
    print(f"\n| row | value | {ours}, worst | best |{ratios}")
    print("|---" * (4 + 2 * len(others)) + "|")
    for row, values in results.rows.items():
        for value, by_broker in values.items():
            if ours in by_broker:
                lowest = worst(value, by_broker[ours])
                cells = [row, value, shown(lowest), shown(best(value, by_broker[ours]))]
                for other in others:
                    median = statistics.median(by_broker[other]) if other in by_broker else None
                    cells += [shown(median), ratio(lowest, median)]
                print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
