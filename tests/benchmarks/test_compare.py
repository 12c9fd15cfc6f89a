"""What the comparison of two runs marks, and what it takes for noise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare import Change, peer_speed, report
from benchmarks.results import Results


def results(**rounds: list[float]) -> Results:
    """Return results of one row for each argument, with its rounds of messages per second."""
    return Results({"HoltMQ": "1"}, rounds=5, rows={name: {"received/s": {"HoltMQ": each}} for name, each in rounds.items()})


@pytest.mark.parametrize(
    ("value", "old", "new", "mark"),
    [
        ("received/s", [100, 105, 110], [80, 82, 99], "**worse**"),
        ("received/s", [100, 105, 110], [85, 90, 101], ""),
        ("received/s", [100, 100, 100], [97, 97, 97], ""),
        ("received/s", [80, 90, 99], [100, 105, 110], "better"),
        ("received/s", [100, 105, 110], [50, 105, 110], "**unsteady**"),
        ("received/s", [50, 105, 110], [50, 105, 110], ""),
        ("memory MiB", [100, 105, 110], [120, 121, 122], "**worse**"),
        ("memory MiB", [120, 121, 122], [100, 105, 110], "better"),
        ("idle CPU %", [0, 0, 0], [0, 0, 0], ""),
        ("idle CPU %", [0, 0, 0], [5, 5, 5], "**worse**"),
    ],
)
def test_mark_needs_rounds_that_do_not_overlap(value: str, old: list[float], new: list[float], mark: str) -> None:
    assert Change("row", value, old, new).mark == mark


def test_report_names_missing_rows_and_compares_the_rest() -> None:
    text, is_marked = report(results(a=[1, 1], gone=[1, 1]), results(a=[1, 1], added=[1, 1]))
    assert "| a | received/s | 1 | 1 | 1.00 |  |" in text
    assert "Missing in the new run: gone" in text
    assert "added" not in text
    assert not is_marked


def test_peers_tell_the_speed_of_the_machine() -> None:
    old, new = results(), results()
    for run, rate in ((old, 100.0), (new, 50.0)):
        run.add("a", "received/s", "RabbitMQ", rate)
        run.add("a", "memory MiB", "RabbitMQ", 1)
    assert peer_speed(old, new) == 0.5
    assert "The peers ran at 0.50 times their old speed." in report(old, new)[0]


@pytest.mark.parametrize(("new", "code"), [([99.0, 100.0], 0), ([50.0, 51.0], 1)])
def test_command_fails_if_a_value_is_marked(tmp_path: Path, new: list[float], code: int) -> None:
    for name, rounds in (("old", [100.0, 101.0]), ("new", new)):
        results(a=rounds).write(tmp_path / f"{name}.json")
    command = [sys.executable, "-m", "benchmarks.compare", str(tmp_path / "old.json"), str(tmp_path / "new.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    assert "| a | received/s | 100.5 |" in done.stdout
