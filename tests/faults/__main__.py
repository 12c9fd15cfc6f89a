"""Faults for hours: make soak"""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.faults.broker_faults import FAULTS
from tests.faults.campaign import (
    broker_power_cuts,
    broker_rounds,
    database_rounds,
    embedded_power_cuts,
    embedded_rounds,
    failover_rounds,
    one_sync_fails,
)
from tests.faults.ledger import ViolationError
from tests.faults.shim import build_shim

PARTS: dict[str, Callable[..., Counter[str]]] = {
    "broker": partial(broker_rounds, rounds=40),
    "failover": partial(failover_rounds, rounds=40),
    "embedded": partial(embedded_rounds, rounds=60),
    "embedded-on-postgres": partial(database_rounds, rounds=24),
    "broker-power-cut": partial(broker_power_cuts, cuts=100),
    "embedded-power-cut": partial(embedded_power_cuts, cuts=300),
    "broker-power-cut-after-failed-sync": partial(broker_power_cuts, cuts=50, prepare=one_sync_fails),
    "embedded-power-cut-after-failed-sync": partial(embedded_power_cuts, cuts=150, prepare=one_sync_fails),
}


def main() -> int:
    options = _options()
    folder = Path(tempfile.mkdtemp(prefix="holtmq-faults-"))
    library = build_shim(folder)
    seeds = [options.seed] if options.seed is not None else itertools.count(random.SystemRandom().randrange(10**6) * 1000)
    ends_at = time.monotonic() + options.hours * 3600
    total: Counter[str] = Counter()
    for seed, (name, part) in ((seed, part) for seed in seeds for part in _parts(options).items()):
        if time.monotonic() > ends_at:
            break
        where = folder / f"{seed}-{name}"
        started = time.monotonic()
        try:
            done = part(where, library, seed)
        except ViolationError as violation:
            print(f"seed {seed}, {name}: VIOLATION\n{violation}\nThe files are in {where}. To run it again:")
            print(
                " ".join(["  python -m tests.faults --seed", str(seed), "--part", name, *_as_given("--fault", options.fault)])
            )
            return 1
        print(f"seed {seed}, {name}: {time.monotonic() - started:.0f} s, {done}", flush=True)
        total += done
        shutil.rmtree(where)
    print(f"no violation in {dict(total)}")
    shutil.rmtree(folder)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Run faults with new seeds, until a guarantee is violated or the time is over.",
    )
    names = [fault.__name__ for fault in FAULTS]
    parser.add_argument("--hours", type=float, default=1.0, help="time after which to stop (default: 1)")
    parser.add_argument("--seed", type=int, help="run this seed only, once")
    parser.add_argument(
        "--part", choices=PARTS, action="append", default=[], help="part to run; may be repeated (default: all)"
    )
    parser.add_argument("--fault", choices=names, action="append", default=[], help="fault of the part broker; may be repeated")
    return parser.parse_args()


def _parts(options: argparse.Namespace) -> dict[str, Callable[..., Counter[str]]]:
    if options.fault:
        return {"broker": partial(PARTS["broker"], faults=[fault for fault in FAULTS if fault.__name__ in options.fault])}
    return {name: PARTS[name] for name in options.part or PARTS}


def _as_given(option: str, values: list[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


if __name__ == "__main__":
    sys.exit(main())
