"""An active broker and its standby on PostgreSQL, through which faults go: nothing confirmed is lost, nothing comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.campaign import failover_rounds
from tests.peers.peer import POSTGRES


@pytest.mark.peer(POSTGRES)
def test_the_guarantees_hold_across_failovers(tmp_path: Path) -> None:
    from tests.faults.failover_run import QUICK

    done = failover_rounds(tmp_path / "run", tmp_path, 1, len(QUICK), QUICK)
    assert done["confirmed"] > 100
    assert done["acknowledged"] > 100
