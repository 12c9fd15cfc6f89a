"""HoltMQ beside RabbitMQ and LavinMQ, in one run: python -m benchmarks.broker [--quick] [--rounds N] [--only PATTERN]

All brokers run on the same machine and receive the same load in turn; the others are halted (SIGSTOP) in the meantime. A load
ends after 1,000,000 messages or 10 s. HoltMQ writes with synchronous = FULL. The environment variable LAVINMQ is the path of
LavinMQ's program; without it, LavinMQ is left out. Prints tables for benchmarks/README.md: for HoltMQ the worst round, for its
peers the median. A complete run writes benchmarks/results/broker.json and draws benchmarks/broker.svg.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.brokers import KINDS, Broker, alone, found_kinds, running
from benchmarks.relay import relay
from benchmarks.results import FOLDER, OURS, Results, is_rate, worst
from benchmarks.rows import MESSAGES, RECEIVED, Row, rows
from benchmarks.tables import print_tables

PLOT = Path(__file__).with_name("broker.svg")
REFERENCE = "RabbitMQ"
QUICK = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorten all loads to a twentieth")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds of each row (default: 5)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="regular expression for the rows to run (default: all)")
    parser.add_argument("--backlog", type=int, default=MESSAGES, help=f"number of waiting messages (default: {MESSAGES:,})")
    parser.add_argument("--without", default="", metavar="NAME", help="a broker to leave out")
    parser.add_argument("--out", type=Path, help="write the results to this file (default: only of a complete run)")
    parser.add_argument("--draw", type=Path, nargs="+", metavar="FILE", help="only draw the plot, from results of earlier runs")
    options = parser.parse_args()
    if options.draw:
        draw([Results.read(path) for path in options.draw])
        return
    chosen = [row for row in rows(options.backlog) if re.search(options.only, row.name)]
    kinds = [kind for kind in found_kinds() if kind.name != options.without]
    scale = QUICK if options.quick else 1.0
    is_complete = not (options.quick or options.only)
    out = options.out or (FOLDER / "broker.json" if is_complete else None)
    results = run(chosen, kinds, options.rounds, scale, out)
    missing = [kind.name for kind in KINDS if kind.name not in results.versions]
    if missing:
        print(f"Not found, or left out: {', '.join(missing)}")
    print_tables(results, [kind.name for kind in KINDS if kind.name in results.versions and kind.name != OURS])
    if is_complete:
        print(f"\nrelay without AMQP: {relay(65_536, 4).per_s:,.0f} messages of 64 KiB per second")
        draw([results])


def run(chosen: Sequence[Row], kinds: Sequence[type[Broker]], rounds: int, scale: float, out: Path | None) -> Results:
    """Measure all rows, and write the results after each."""
    results = Results({}, rounds, scale)
    with ExitStack() as stack:
        is_shared = any(not row.needs_fresh_broker for row in chosen)
        shared = [stack.enter_context(running(kind)) for kind in kinds] if is_shared else []
        for row in chosen:
            for number in range(rounds):
                for place in range(len(kinds)):
                    index = (place + number) % len(kinds)
                    measure(row, kinds[index], None if row.needs_fresh_broker else shared[index], shared, scale, results)
            if out is not None:
                results.write(out)
    return results


def measure(
    row: Row, kind: type[Broker], broker: Broker | None, others: Sequence[Broker], scale: float, results: Results
) -> None:
    """Measure one row with one broker, once. Without a running broker, start one."""
    if kind.name in row.without:
        return
    if broker is None:
        with running(kind) as fresh:
            measure(row, kind, fresh, others, scale, results)
        return
    results.versions[broker.name] = broker.version
    with alone(others, broker):
        values = row.measure(broker, scale)
    for name, value in values.items():
        results.add(row.name, name, broker.name, value)
    shown = ", ".join(f"{value:,.4g} {name}" for name, value in values.items())
    print(f"{row.name}: {broker.name} {shown}", file=sys.stderr, flush=True)


def draw(parts: Sequence[Results]) -> None:
    """Draw HoltMQ's worst rate in each row as a multiple of RabbitMQ's. Of a row in several results, the last one counts."""
    ratios = {
        f"{row}, {value}" if value != RECEIVED else row: worst(value, rounds[OURS]) / statistics.median(rounds[REFERENCE])
        for results in parts
        for row, values in results.rows.items()
        for value, rounds in values.items()
        if is_rate(value) and OURS in rounds and REFERENCE in rounds
    }
    if not ratios:
        return
    figure, axes = plt.subplots(figsize=(9, 0.25 * len(ratios) + 1))
    names, values = zip(*reversed(ratios.items()), strict=True)
    axes.barh(names, values, color="#2f6f9f")
    axes.axvline(1, color="#888888", linewidth=1)
    axes.set_xlabel("messages per second in the worst round, as a multiple of RabbitMQ's median")
    for place, value in enumerate(values):
        axes.text(value, place, f" {value:.1f}", va="center")
    figure.tight_layout()
    figure.savefig(PLOT)


if __name__ == "__main__":
    main()
