"""Fuzz HoltMQ with atheris: python -m tests.fuzz [--seconds N] [--store] [TARGET …]

Each target starts from its stored corpus. New inputs are kept in .fuzz, and an input that fails is printed and kept there too.
With --store, a small set of inputs that reaches the same code replaces the stored corpus.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.minimise import minimise
from tests.fuzz.targets import CORPUS, TARGETS

WORK = Path(__file__).parents[2] / ".fuzz"
FAILED = "failed-"
"""The start of the name of an input that failed once. Such inputs are kept."""
LONGEST_INPUT = 400
SLOWEST_INPUT_S = 10
MOST_MEMORY_MB = 2048
EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
WRITTEN = re.compile(r"Test unit written to (\S+)")
PROGRESS = re.compile(r"^#(\d+)\s", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    executions: int
    failure: str
    """The failing input and its traceback, or nothing."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"targets to fuzz (default: all): {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=120, help="time for each target, in seconds (default: %(default)s)")
    parser.add_argument("--store", action="store_true", help="minimise the inputs and store them as the corpus")
    options = parser.parse_args()
    total, failed = 0, []
    for name in options.targets or TARGETS:
        outcome = fuzz(name, options.seconds)
        total += outcome.executions
        print(f"{name:16} {outcome.executions:>12,} executions{'  FAILED' if outcome.failure else ''}", flush=True)
        if outcome.failure:
            failed.append(name)
            print(outcome.failure, flush=True)
        elif options.store:
            store(name)
    print(f"{'total':16} {total:>12,} executions, {len(failed)} targets failed")
    return 1 if failed else 0


def fuzz(name: str, seconds: int) -> Outcome:
    """Fuzz a target until the time is over or an input fails."""
    found = WORK / name
    found.mkdir(parents=True, exist_ok=True)
    done = _run(name, f"-max_total_time={seconds}", f"-artifact_prefix={WORK}/{name}-", str(found), *_stored(name))
    executed = EXECUTED.findall(done.stderr) or PROGRESS.findall(done.stderr)
    return Outcome(int(executed[-1]) if executed else 0, "" if done.returncode == 0 else _describe(name, done))


def store(name: str) -> None:
    """Replace the corpus of a target by a small set of known inputs that reaches the same code."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    old = [path for path in folder.iterdir() if not path.name.startswith(FAILED)]
    chosen = minimise(TARGETS[name], (path.read_bytes() for path in (*old, *(WORK / name).iterdir())))
    for path in old:
        path.unlink()
    for data in chosen:
        (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


def _stored(name: str) -> list[str]:
    return [str(CORPUS / name)] if (CORPUS / name).exists() else []


def _run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    limits = (f"-max_len={LONGEST_INPUT}", f"-timeout={SLOWEST_INPUT_S}", f"-rss_limit_mb={MOST_MEMORY_MB}")
    command = [sys.executable, "-m", "tests.fuzz.atheris_run", name, "-print_final_stats=1", *limits, *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _describe(name: str, done: subprocess.CompletedProcess[str]) -> str:
    written = WRITTEN.search(done.stderr)
    if written is None:
        return _tail(done)
    try:
        TARGETS[name](Path(written[1]).read_bytes())
    except Exception:  # noqa: BLE001  # any failure of a target is what the fuzzer looks for
        return f"{written[1]}\n{traceback.format_exc()}"
    return f"{written[1]}\n{_tail(done)}"  # too slow or too large, or it depends on the inputs before it


def _tail(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("#")]
    return "\n".join(lines[-40:])


if __name__ == "__main__":
    sys.exit(main())
