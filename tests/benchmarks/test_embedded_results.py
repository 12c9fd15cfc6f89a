"""The benchmark of the embedded queue writes what it measured, for `benchmarks.compare`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.results import Results


def test_each_round_of_each_library_is_in_the_results(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ["--quick", "--rounds", "2", "--only", "puts", "callbacks", "--out", str(out)]
    done = subprocess.run([sys.executable, "-m", "benchmarks.embedded", *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = Results.read(out)
    puts = results.rows["put, one by one"]["messages/s"]
    assert list(puts) == list(results.versions) == ["HoltMQ", "litequeue", "persist-queue", "huey", "bare SQLite"]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in puts.values())
    assert list(results.rows["consumer callbacks, one thread"]["messages/s"]) == ["HoltMQ"]
    assert "| put, one by one |" in done.stdout
