"""The gain from two process settings, and a profile of the broker: python -m benchmarks.tuning

Runs the same load on a broker with all settings, on one with Python's default garbage collection, and on one with the
default allocator of the C library. Then profiles a persistent load with cProfile; shares are of the time that the broker's
thread spends outside uvloop.
"""

from __future__ import annotations

import cProfile
import multiprocessing
import pstats
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

from holtmq.bench import Load, run_load
from holtmq.client.address import Address
from holtmq.config import Config
from holtmq.server import run

SECONDS = 3.0
LOADS = {
    "auto-ack, 100 bytes": Load(auto_ack=True, time_s=SECONDS),
    "auto-ack, 64 KiB": Load(auto_ack=True, size=65_536, time_s=SECONDS),
}
PERSISTENT = Load(size=16, qos=500, persistent=True, confirm=1000, time_s=SECONDS)
TOP = 14


def main() -> None:
    print("| messages/s | " + " | ".join(LOADS) + " |\n|---|---|---|")
    for name in ("all settings", "Python's default garbage collection", "glibc's default allocator"):
        rates = [loaded(load, name) for load in LOADS.values()]
        print(f"| {name} | " + " | ".join(f"{rate:,.0f}" for rate in rates) + " |", flush=True)
    print("\n| where the time goes | share |\n|---|---|")
    loaded(PERSISTENT, "profile")


def loaded(load: Load, mode: str) -> float:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, mode))
    process.start()
    try:
        return run_load(Address("127.0.0.1", here.recv()), load).received_per_s
    finally:
        process.terminate()
        process.join()


def _serve(pipe: Connection, mode: str) -> None:
    default = {"P": "gc.set_threshold", "g": "holtmq.server.run.keep_freed_memory"}.get(mode[0])
    if default is not None:
        mock.patch(default).start()
    profile = cProfile.Profile() if mode == "profile" else None
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        config = Config(data=str(Path(folder) / "b.db"), amqp_port=0, http_port=-1)
        if profile is not None:
            profile.enable()
        run.serve(config, lambda server: pipe.send(int(server.address.rsplit(":", 1)[1])))
        if profile is not None:
            profile.disable()
            _print_profile(profile)


def _print_profile(profile: cProfile.Profile) -> None:
    times = {where: values[2] for where, values in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    outside = {where: own for where, own in times.items() if "runners.py" not in where[0]}
    whole = sum(outside.values())
    for (file, _, name), own in sorted(outside.items(), key=lambda item: -item[1])[:TOP]:
        print(f"| {Path(file).name} {name} | {own / whole:.0%} |")


if __name__ == "__main__":
    main()
