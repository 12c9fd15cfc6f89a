"""The guarantees of the broker hold on a bad day: processes killed and stopped, disks that fail, clients that vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.broker_faults import QUICK, terminate
from tests.faults.campaign import broker_rounds

ROUNDS = len(QUICK)


@pytest.mark.parametrize("seed", range(3))
def test_the_guarantees_of_the_broker_hold_under_faults(seed: int, tmp_path: Path, shim_library: Path) -> None:
    done = broker_rounds(tmp_path / "run", shim_library, seed, ROUNDS, QUICK)
    assert done["confirmed"] > 1000
    assert done["acknowledged"] > 1000


def test_a_broker_that_is_stopped_sends_nothing_after_its_last_word(tmp_path: Path, shim_library: Path) -> None:
    """Clients have answered its connection.close while their confirms still wait for the disk."""
    broker_rounds(tmp_path / "run", shim_library, 3, 2, [terminate])
