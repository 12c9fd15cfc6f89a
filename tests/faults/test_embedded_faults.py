"""The guarantees of the embedded queue hold on a bad day: processes killed and stopped, disks that fail, a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import database_rounds, embedded_rounds
from tests.faults.embedded_faults import FAULTS
from tests.peers.peer import POSTGRES

ROUNDS = 2 * len(FAULTS)


@pytest.mark.parametrize("seed", range(3))
def test_the_guarantees_of_the_embedded_queue_hold_under_faults(seed: int, tmp_path: Path, shim_library: Path) -> None:
    done = embedded_rounds(tmp_path / "run", shim_library, seed, ROUNDS)
    assert done["confirmed"] > 500
    assert done["acknowledged"] > 300
    assert done["errors"] > 10


@pytest.mark.peer(POSTGRES)
def test_the_guarantees_of_the_embedded_queue_hold_on_postgresql(tmp_path: Path) -> None:
    from tests.faults.database_run import DATABASE_FAULTS

    done = database_rounds(tmp_path / "run", tmp_path, 1, len(DATABASE_FAULTS))
    assert done["confirmed"] > 100
    assert done["acknowledged"] > 50
