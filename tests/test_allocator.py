"""Settings of the garbage collector are restored."""

from __future__ import annotations

import gc
from contextlib import ExitStack

from holtmq.allocator import SMALL_PIECES, collected_in_small_pieces


def test_blocks_that_overlap_restore_the_thresholds() -> None:
    before = gc.get_threshold()
    first, second = ExitStack(), ExitStack()
    first.enter_context(collected_in_small_pieces())
    second.enter_context(collected_in_small_pieces())
    assert gc.get_threshold() == SMALL_PIECES != before
    first.close()
    second.close()
    assert gc.get_threshold() == before
