"""Which fault comes in which round."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

F = TypeVar("F")


def scheduled(faults: Sequence[F], seed: int, number: int) -> F:
    """Return the fault of a round. Each fault comes once before any comes again, in an order that the seed determines."""
    turn, place = divmod(number, len(faults))
    return random.Random(f"{seed}.{turn}").sample(faults, len(faults))[place]
