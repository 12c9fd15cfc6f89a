"""Results as tables for benchmarks/README.md: of HoltMQ the worst round, of its peers the median."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.results import OURS, Results, best, worst


def print_tables(results: Results, peers: Sequence[str] | None = None) -> None:
    """Print a table for each kind of value: HoltMQ's worst and best round, and the medians of the peers that have it."""
    if peers is None:
        peers = [name for name in results.versions if name != OURS]
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    print(f"{versions}; {results.machine}; {results.date} UTC; {results.rounds} rounds")
    for value in dict.fromkeys(value for row in results.rows.values() for value in row):
        rows = {row: values[value] for row, values in results.rows.items() if OURS in values.get(value, {})}
        measured = [peer for peer in peers if any(peer in by_broker for by_broker in rows.values())]
        ratios = "".join(f" worst / {peer} |" for peer in measured)
        print(f"\n| {value} | HoltMQ, worst | best | worst / best |{''.join(f' {peer} |' for peer in measured)}{ratios}")
        print("|---" * (4 + 2 * len(measured)) + "|")
        for row, by_broker in rows.items():
            print(line(row, value, by_broker, measured))


def line(row: str, value: str, by_broker: dict[str, list[float]], peers: Sequence[str]) -> str:
    ours, highest = worst(value, by_broker[OURS]), best(value, by_broker[OURS])
    medians = [statistics.median(by_broker[peer]) if peer in by_broker else None for peer in peers]
    cells = [shown(ours), shown(highest), ratio(min(ours, highest), max(ours, highest)), *map(shown, medians)]
    cells += [ratio(ours, median) for median in medians]
    return f"| {row} | " + " | ".join(cells) + " |"


def shown(number: float | None) -> str:
    if number is None:
        return "–"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def ratio(number: float, other: float | None) -> str:
    return f"{number / other:.2f}" if other else "–"
