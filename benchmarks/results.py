"""Results of a benchmark as a file: every round of every row, so that noise can be told from a change."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

FOLDER = Path(__file__).with_name("results")
OURS = "HoltMQ"


@dataclass(slots=True)
class Results:
    """What a benchmark measured, and where."""

    versions: dict[str, str]
    """The version of each broker or library that was measured."""
    rounds: int
    scale: float = 1.0
    """1, or less for a run that was shortened."""
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))
    machine: str = field(default_factory=lambda: f"{os.cpu_count()} cores, {platform.system()}, {platform.python_version()}")
    rows: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    """The rounds, by row, by name of the value, by broker."""

    def add(self, row: str, value: str, broker: str, measured: float) -> None:
        by_broker = self.rows.setdefault(row, {}).setdefault(value, {})
        by_broker.setdefault(broker, []).append(float(f"{measured:.4g}"))

    def write(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def is_better(value: str, new: float, old: float) -> bool:
    """Return whether a measured value is better than another: more of a rate, less of anything else."""
    return new > old if is_rate(value) else new < old


def is_rate(value: str) -> bool:
    return value.endswith("/s")


def worst(value: str, rounds: list[float]) -> float:
    return min(rounds) if is_rate(value) else max(rounds)


def best(value: str, rounds: list[float]) -> float:
    return max(rounds) if is_rate(value) else min(rounds)
