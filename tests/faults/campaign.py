"""Everything that can be done with a seed: rounds of faults, and power cuts, for the broker and for the embedded queue.

The seed determines what clients and faults do. It does not determine when a broker gets to run, so a violation that depends
on that may need several runs to appear again. Each function returns what was done, and raises ViolationError.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from holtmq.store.records import Durability
from tests.faults.broker_faults import FAULTS as BROKER_FAULTS
from tests.faults.broker_run import BrokerRun, Fault
from tests.faults.embedded_faults import FAULTS
from tests.faults.embedded_run import EmbeddedFault, EmbeddedRun
from tests.faults.power_cut import Recording, record_broker, record_embedded
from tests.faults.shim import Call, Shim

STEPS = 120
"""Length of a recording of the broker."""
ACTIONS = 150
"""Length of a recording of the embedded queue, for each of its processes."""
FIRST_SYNC = 40
"""The sync of a recording that fails, where one is to fail."""

Prepare = Callable[[Shim], None]


def broker_rounds(folder: Path, library: Path, seed: int, rounds: int, faults: Sequence[Fault] = BROKER_FAULTS) -> Counter[str]:
    (folder / "data").mkdir(parents=True)
    run = BrokerRun(folder, Shim(library, folder / "data", folder / "control"), seed, "--durability", _durability(seed))
    try:
        for number in range(rounds):
            run.round(number, faults)
    finally:
        run.close()
    return run.rounds + Counter(run.ledger.counts)


def failover_rounds(folder: Path, _: Path, seed: int, rounds: int, faults: Sequence[Fault] | None = None) -> Counter[str]:
    """Play rounds with an active broker and its standby, on a server of their own."""
    from tests.faults.failover_run import FAULTS as FAILOVER_FAULTS
    from tests.faults.failover_run import FailoverRun
    from tests.peers.postgres import running_postgres

    folder.mkdir(parents=True)
    with running_postgres() as server:
        run = FailoverRun(folder, server, seed)
        try:
            for number in range(rounds):
                run.round(number, faults or FAILOVER_FAULTS)
        finally:
            run.close()
    return run.rounds + Counter(run.ledger.counts)


def embedded_rounds(
    folder: Path, library: Path, seed: int, rounds: int, faults: Sequence[EmbeddedFault] = FAULTS
) -> Counter[str]:
    (folder / "data").mkdir(parents=True)
    run = EmbeddedRun(folder / "data" / "queue.db", Shim(library, folder / "data", folder / "control"), seed, _durability(seed))
    return _played(run, rounds, faults)


def database_rounds(folder: Path, _: Path, seed: int, rounds: int) -> Counter[str]:
    """Play rounds of the embedded queue on PostgreSQL, on a server of their own."""
    from tests.faults.database_run import DATABASE_FAULTS, DatabaseRun
    from tests.peers.postgres import running_postgres

    folder.mkdir(parents=True)
    with running_postgres() as server:
        return _played(DatabaseRun(server, seed), rounds, DATABASE_FAULTS)


def _played(run: EmbeddedRun, rounds: int, faults: Sequence[EmbeddedFault]) -> Counter[str]:
    try:
        for number in range(rounds):
            run.round(number, faults)
    finally:
        run.close()
    return run.rounds + run.errors + Counter(run.ledger.counts) + Counter(errors=run.errors.total())


def _durability(seed: int) -> Durability:
    """Return a durability. Whatever it is, a killed process loses nothing that was confirmed."""
    return get_args(Durability)[seed % 3]  # type: ignore[no-any-return]


def nothing_more(shim: Shim) -> None:
    """Prepare no other fault than the power cut."""


def one_sync_fails(shim: Shim) -> None:
    """Let a sync fail, by which the operating system may drop what was written before."""
    shim.set_rule(Call.SYNC, errno.EIO, skip=FIRST_SYNC)


def broker_recording(
    folder: Path, library: Path, seed: int, prepare: Prepare = nothing_more, durability: Durability = "full"
) -> Recording:
    folder.mkdir(parents=True)
    return record_broker(folder, library, seed, STEPS, "--durability", durability, prepare=prepare)


def embedded_recording(
    folder: Path, library: Path, seed: int, prepare: Prepare = nothing_more, durability: Durability = "full"
) -> Recording:
    folder.mkdir(parents=True)
    return record_embedded(folder, library, seed, ACTIONS, durability, prepare=prepare)


def broker_power_cuts(folder: Path, library: Path, seed: int, cuts: int, prepare: Prepare = nothing_more) -> Counter[str]:
    return _cut(broker_recording(folder, library, seed, prepare), folder, seed, cuts)


def embedded_power_cuts(folder: Path, library: Path, seed: int, cuts: int, prepare: Prepare = nothing_more) -> Counter[str]:
    return _cut(embedded_recording(folder, library, seed, prepare), folder, seed, cuts)


def _cut(recording: Recording, folder: Path, seed: int, cuts: int) -> Counter[str]:
    recording.cut_at_first_promise(folder)
    return Counter(cuts=recording.cut(seed, cuts, folder), checkpoints=recording.checkpoints)
