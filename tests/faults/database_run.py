"""Rounds of work of several processes on a PostgreSQL database, with a fault in each, and an audit after it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from tests.faults.embedded_faults import kill, pause
from tests.faults.embedded_run import EmbeddedFault, EmbeddedRun
from tests.faults.ledger import Found
from tests.faults.shim import NoShim
from tests.peers.postgres import Postgres

MANY_LINES = 1_000_000
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class DatabaseRun(EmbeddedRun):
    def __init__(self, server: Postgres, seed: int) -> None:
        self.server = server
        super().__init__(server.url(), cast("Any", NoShim()), seed)

    def _take_out(self, found: Mapping[str, list[Found]]) -> None:
        """Do nothing: every run has a database of its own, which never has so many messages that they matter."""


def _database(run: EmbeddedRun) -> Postgres:
    assert isinstance(run, DatabaseRun)
    return run.server


@contextmanager
def _server_is_away(run: EmbeddedRun) -> Iterator[None]:
    """Start the server again after the block. A crash may have lost leases: the same attempt may come again."""
    run.follow(MANY_LINES)  # all that workers said before
    run.ledger.forget_attempts()
    try:
        yield
    finally:
        _database(run).start()


@contextmanager
def end_sessions(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """The server ends all sessions, several times: transactions are rolled back, or their commits get no answer."""
    for _ in range(rng.randint(1, 3)):
        with _database(run).connect() as connection:
            connection.execute(END_SESSIONS)
        run.follow(rng.randint(1, 30))
    yield


@contextmanager
def kill_the_server(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL for the server and all of its processes."""
    _database(run).kill()
    with _server_is_away(run):
        yield


@contextmanager
def restart_the_server(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    _database(run).stop(rng.choice(("fast", "immediate")))
    with _server_is_away(run):
        yield


@contextmanager
def kill_while_the_server_is_away(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL for workers that wait for the server."""
    with kill_the_server(run, rng), kill(run, rng):
        yield


DATABASE_FAULTS: tuple[EmbeddedFault, ...] = (
    kill,
    pause,
    end_sessions,
    kill_the_server,
    restart_the_server,
    kill_while_the_server_is_away,
)
