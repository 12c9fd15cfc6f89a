"""The guarantees of the embedded queue hold on a bad day: processes killed and stopped, disks that fail, a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import embedded_rounds
from tests.faults.embedded_faults import FAULTS

ROUNDS = 2 * len(FAULTS)


@pytest.mark.parametrize("seed", range(3))
def test_the_guarantees_of_the_embedded_queue_hold_under_faults(seed: int, tmp_path: Path, shim_library: Path) -> None:
    done = embedded_rounds(tmp_path / "run", shim_library, seed, ROUNDS)
    assert done["confirmed"] > 500
    assert done["acknowledged"] > 300
    assert done["errors"] > 10
