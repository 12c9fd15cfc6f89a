"""A power cut at any moment loses nothing that was confirmed, with `durability="full"`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.campaign import (
    Prepare,
    broker_power_cuts,
    broker_recording,
    embedded_power_cuts,
    embedded_recording,
    nothing_more,
    one_sync_fails,
)
from tests.faults.ledger import ViolationError
from tests.faults.power_cut import Recording
from tests.faults.shim import Call, Outcome, Shim

CUTS: dict[Callable[..., dict[str, int]], int] = {broker_power_cuts: 30, embedded_power_cuts: 100}
NOTICED = "confirmed messages are lost|no queue"
JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
both = pytest.mark.parametrize("record", [broker_recording, embedded_recording], ids=["broker", "embedded"])


@pytest.mark.parametrize("power_cuts", CUTS, ids=["broker", "embedded"])
@pytest.mark.parametrize("prepare", [nothing_more, one_sync_fails], ids=["plain", "after-a-failed-sync"])
def test_nothing_confirmed_is_lost(
    power_cuts: Callable[..., dict[str, int]], prepare: Prepare, tmp_path: Path, shim_library: Path
) -> None:
    done = power_cuts(tmp_path / "run", shim_library, 1, CUTS[power_cuts], prepare)
    assert done["cuts"] == CUTS[power_cuts]
    assert done["checkpoints"] > 0


@both
def test_a_new_file_counts_no_page_of_its_journal_before_the_page_is_on_disk(
    record: Callable[..., Recording], tmp_path: Path, shim_library: Path
) -> None:
    unsynced, counted = 0, 0
    for change in record(tmp_path / "run", shim_library, 1).records:
        if change.name.endswith("-journal"):
            if change.kind == "w" and change.offset == 0 and change.data.startswith(JOURNAL_MAGIC):
                counted += 1
                assert unsynced == 0 or change.data[len(JOURNAL_MAGIC) :] == bytes(4)
            unsynced = 0 if change.kind == "e" else unsynced + (change.kind == "w" and change.offset > 0)
    assert counted > 0


@both
def test_without_full_durability_a_loss_is_noticed(
    record: Callable[..., Recording], tmp_path: Path, shim_library: Path
) -> None:
    recording = record(tmp_path / "run", shim_library, 1, durability="normal")
    with pytest.raises(ViolationError, match=NOTICED):
        recording.cut_at_first_promise(tmp_path / "run")


@both
def test_a_disk_that_ignores_syncs_is_noticed(record: Callable[..., Recording], tmp_path: Path, shim_library: Path) -> None:
    def ignore_syncs(shim: Shim) -> None:
        shim.set_rule(Call.SYNC, Outcome.SWALLOW, count=1_000_000)

    recording = record(tmp_path / "run", shim_library, 1, ignore_syncs)
    with pytest.raises(ViolationError, match=NOTICED):
        recording.cut_at_first_promise(tmp_path / "run")
