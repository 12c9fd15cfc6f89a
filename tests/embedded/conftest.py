"""A store for each test, in a file, in memory and in PostgreSQL, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holtmq
from tests.peers.peer import POSTGRES

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres


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


@pytest.fixture(params=["file", "memory", pytest.param("postgres", marks=pytest.mark.peer(POSTGRES))])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is: a path or a URL. Only those who need the server start it."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.url()
    return str(tmp_path / "shop.db") if request.param == "file" else ":memory:"


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.peer(POSTGRES))])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is that several processes can open."""
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        return server.url()
    return str(tmp_path / "shop.db")


@pytest.fixture
def mq(place: str, clock: Clock) -> Iterator[holtmq.EmbeddedBroker]:
    with holtmq.open(place, durability="off", clock=clock) as opened:
        yield opened
