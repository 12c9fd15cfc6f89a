"""A power cut loses nothing that was confirmed, even if threads and processes share their syncs of the WAL.

The recordings have several threads in each of two processes, and checkpoints and resets of the WAL by each of them.
"""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.campaign import Prepare, nothing_more
from tests.faults.power_cut import record_embedded
from tests.faults.shim import Call, Shim

THREADS, ACTIONS, CUTS = 4, 50, 80


def slow_syncs(shim: Shim) -> None:
    """Let a sync take so long that many commits are made during it."""
    shim.set_sync_time(3)


def slow_syncs_one_of_which_fails(shim: Shim) -> None:
    """Let it fail when the file is made, and the workers are at work."""
    slow_syncs(shim)
    shim.set_rule(Call.SYNC, errno.EIO, ending="-wal", skip=60)


@pytest.mark.parametrize("prepare", [nothing_more, slow_syncs, slow_syncs_one_of_which_fails])
def test_nothing_confirmed_by_threads_and_processes_is_lost(prepare: Prepare, tmp_path: Path, shim_library: Path) -> None:
    recording = record_embedded(tmp_path, shim_library, 1, ACTIONS, threads=THREADS, prepare=prepare)
    records = recording.records
    kinds = Counter((record.kind, record.name.rpartition(".")[2]) for record in records)
    confirmed = sum(record.data.count(b"confirm ") + record.data.count(b"sync ") for record in records if record.kind == "s")
    resets = sum(1 for record in records if record.kind == "w" and record.name.endswith("-wal") and record.offset == 0)
    assert kinds["e", "db-wal"] < confirmed, "syncs were shared"
    assert recording.checkpoints > 0
    assert resets > 1
    assert recording.cut(1, CUTS, tmp_path) == CUTS
