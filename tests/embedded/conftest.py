"""A HoltMQ file for each test, in a folder and in memory, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holtmq


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["file", "memory"])
def mq(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[holtmq.EmbeddedBroker]:
    path = tmp_path / "shop.db" if request.param == "file" else ":memory:"
    with holtmq.open(path, durability="off", clock=clock) as opened:
        yield opened
