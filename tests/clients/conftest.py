"""Tidying up after clients of others."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Collect the sockets that some clients leave to the garbage collector, before another test is blamed for them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
