"""Compare the results of two runs: python -m benchmarks.compare OLD.json NEW.json

Marks a value of HoltMQ as worse if all rounds of the new run are worse than all rounds of the old one, and their medians
differ by more than 5 %. Marks it as unsteady if the worst new round is below 0.8 of the best, and the old rounds were
steadier. Exits with 1 if a value is marked. Peers tell whether the machine was as fast as before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import OURS, Results, best, is_better, is_rate, worst

NOISE = 0.05
"""A smaller change of the median means nothing, however close together the rounds are."""
STEADY = 0.8


@dataclass(frozen=True, slots=True)
class Change:
    """One value of HoltMQ in both runs."""

    row: str
    value: str
    old: list[float]
    new: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.new) / (statistics.median(self.old) or 1e-9)

    @property
    def is_worse(self) -> bool:
        value = self.value
        is_apart = is_better(value, worst(value, self.old), best(value, self.new))
        return is_apart and (self.ratio < 1 - NOISE if is_rate(value) else self.ratio > 1 + NOISE)

    @property
    def is_better(self) -> bool:
        return Change(self.row, self.value, old=self.new, new=self.old).is_worse

    @property
    def is_unsteady(self) -> bool:
        steadiness = steadiness_of(self.new)
        return is_rate(self.value) and steadiness < STEADY and steadiness < steadiness_of(self.old)

    @property
    def mark(self) -> str:
        if self.is_worse:
            return "**worse**"
        if self.is_unsteady:
            return "**unsteady**"
        return "better" if self.is_better else ""


def steadiness_of(rounds: list[float]) -> float:
    """Return the smallest round as a part of the largest."""
    return min(rounds) / (max(rounds) or 1e-9)


def changes(old: Results, new: Results) -> Iterator[Change]:
    """Yield the values that both runs contain."""
    for row, values in new.rows.items():
        for value, by_broker in values.items():
            before = old.rows.get(row, {}).get(value, {}).get(OURS)
            if before and by_broker.get(OURS):
                yield Change(row, value, before, by_broker[OURS])


def peer_speed(old: Results, new: Results) -> float | None:
    """Return the speed of the peers in the new run as a multiple of the old one: the median over all rates."""
    ratios = [
        statistics.median(rounds) / statistics.median(before)
        for row, values in new.rows.items()
        for value, by_broker in values.items()
        for broker, rounds in by_broker.items()
        if broker != OURS and is_rate(value) and (before := old.rows.get(row, {}).get(value, {}).get(broker))
    ]
    return statistics.median(ratios) if ratios else None


def report(old: Results, new: Results) -> tuple[str, bool]:
    """Return a table of all changes, and whether one of them is marked."""
    lines = ["| load | value | old | new | new / old | |", "|---|---|---|---|---|---|"]
    is_marked = False
    for change in changes(old, new):
        before, after = statistics.median(change.old), statistics.median(change.new)
        lines.append(f"| {change.row} | {change.value} | {before:,.4g} | {after:,.4g} | {change.ratio:.2f} | {change.mark} |")
        is_marked |= change.is_worse or change.is_unsteady
    lines += [f"\nMissing in the new run: {row}" for row in old.rows if row not in new.rows]
    if old.scale != new.scale:
        lines.append(f"\nThe runs differ in length: scale {old.scale:g} and {new.scale:g}.")
    speed = peer_speed(old, new)
    if speed is not None:
        lines.append(f"\nThe peers ran at {speed:.2f} times their old speed.")
    return "\n".join(lines), is_marked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args()
    text, is_marked = report(Results.read(options.old), Results.read(options.new))
    print(text)
    sys.exit(1 if is_marked else 0)


if __name__ == "__main__":
    main()
