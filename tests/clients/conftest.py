"""A broker for real clients, which can go away and come back."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.process import BrokerProcess, broker_process


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "broker.db") as broker:
        yield broker
    # Some clients leave sockets to the garbage collector: let it find them here, and not in the middle of another test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
