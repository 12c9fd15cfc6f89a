"""A connection to PostgreSQL: how it is opened, and how the shared statements use it."""

from __future__ import annotations

import os
import re
import select
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import psycopg
from psycopg import RawCursor, RawServerCursor
from psycopg.adapt import Buffer, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo
from psycopg.types.numeric import Int8Dumper

from holtmq.database_url import EXPECTED, DatabaseUrl
from holtmq.errors import InvalidValueError
from holtmq.store.postgres.postgres_errors import is_unknown_refusal, passing_error
from holtmq.store.postgres.refused_connection import passing_state
from holtmq.store.postgres.statements import translated as with_names
from holtmq.store.postgres.text import escape_text

T = TypeVar("T")
CONNECT_TIMEOUT_S = 10
SHORTEST_TIMEOUT_S = 2
"""Time that the network is given at least."""
LONGEST_MS = 2**31 - 1
# Each query has its index. Without statistics, or with those of an empty queue, the planner might not use it.
SETTINGS = "SET enable_seqscan = off; SET enable_bitmapscan = off; SET plan_cache_mode = force_generic_plan; SET jit = off"


PLAIN_INSERT = re.compile(r"^INSERT INTO .* VALUES \([?, ]+\)$")
INSERTED_AT_ONCE = 100
"""Rows of one INSERT, which costs about as much as three of them one by one."""


class Link:
    """The socket of a connection, which another thread may cut."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.pid = raw.info.backend_pid
        self._raw = raw
        self._ends = self._with_socket(_ends)

    def cut(self) -> None:
        """Shut the socket down, so that whoever waits for it gets an error."""
        self._with_socket(self._shut)

    def _shut(self, end: socket.socket) -> None:
        if _ends(end) == self._ends:  # else it was closed meanwhile, and its number belongs to another one
            end.shutdown(socket.SHUT_RDWR)

    def _with_socket(self, use: Callable[[socket.socket], T]) -> T | None:
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._raw.fileno())) as end:
            return use(end)
        return None


def _ends(end: socket.socket) -> tuple[Any, Any]:
    return end.getsockname(), end.getpeername()


class PostgresConnection:
    """A connection as the shared statements expect it. A transaction begins with its first statement."""

    def __init__(self, begin: Callable[[str], psycopg.Cursor[Any]]) -> None:
        self._raw: psycopg.Connection[Any] | None = None
        self.link: Link | None = None
        self._begin = begin
        self.pending: str | None = None
        """The command that begins the transaction, until there is a statement."""
        self.executed = 0
        """Statements that were executed, at most. What was read is no longer sure to be true when the number has changed."""

    @property
    def is_open(self) -> bool:
        return self._raw is not None and not self._raw.closed

    def replace(self, raw: psycopg.Connection[Any] | None) -> psycopg.Connection[Any] | None:
        """Use another connection from now on. Return the one before."""
        before, self._raw = self._raw, raw
        self.link = None if raw is None else Link(raw)
        return before

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()

    @property
    def is_dead(self) -> bool:
        """Whether the connection has been lost while nobody used it. It says so without being asked."""
        return self._raw is None or _is_dead(self._raw)

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> psycopg.Cursor[Any]:
        if self.pending is not None and not parameters:
            return self._begin(statement)  # in one message with the statement
        return self.begun().execute(with_names(statement), parameters or None)

    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> psycopg.Cursor[Any]:
        cursor, rows = self.begun().cursor(), list(parameters)
        if PLAIN_INSERT.search(statement):
            while len(rows) >= INSERTED_AT_ONCE:
                some, rows = rows[:INSERTED_AT_ONCE], rows[INSERTED_AT_ONCE:]
                cursor.execute(with_names(_of_many(statement)), list(chain.from_iterable(some)))
        if rows:
            cursor.executemany(with_names(statement), rows)
        return cursor

    def fetch(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement with names of parameters. Bodies come as they are, not as text."""
        return self.begun().execute(statement, parameters or None, binary=True).fetchall()

    def change(self, statement: str, *parameters: Any) -> int:
        """Execute a statement that returns no rows. Return the number of rows that it changed."""
        return self.begun().execute(statement, parameters or None).rowcount

    def run(self, command: str) -> str | None:
        """Run commands without parameters and without a result, several in one message. Return what the last one did."""
        return self.run_all(command).statusmessage

    def run_all(self, commands: str) -> psycopg.Cursor[Any]:
        """Run commands without parameters in one message. Return the result of the last one."""
        cursor = self.begun().execute(commands, prepare=False)
        while cursor.nextset():
            pass
        return cursor

    def begun(self) -> psycopg.Connection[Any]:
        """Return the connection for a statement, in the transaction if there is one."""
        self.executed += 1
        if self.pending is not None:
            self._begin("")
        assert self._raw is not None
        return self._raw


class PostgresReader(PostgresConnection):
    """A connection for reading. It is opened when it is needed, and again if it is lost."""

    def __init__(self, open_connection: Callable[[], psycopg.Connection[Any]]) -> None:
        super().__init__(_nothing_pending)
        self._open = open_connection

    def begun(self) -> psycopg.Connection[Any]:
        if not self.is_open:
            self.replace(self._open())
        return super().begun()


def connect(url: DatabaseUrl, timeout_s: float) -> psycopg.Connection[Any]:
    """Return a connection with the settings that all of ours share. Those of the URL and of the environment come first."""
    given, answer_s = _given(url), min(CONNECT_TIMEOUT_S, max(SHORTEST_TIMEOUT_S, timeout_s))
    ours: dict[str, Any] = {
        "application_name": "holtmq",
        "target_session_attrs": "read-write" if "," in given.get("host", given.get("hostaddr", "")) else "any",
        "connect_timeout": int(answer_s),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": _milliseconds(max(SHORTEST_TIMEOUT_S, timeout_s)),
    }
    settings = {name: value for name, value in ours.items() if name not in given}
    conninfo = make_conninfo(url.conninfo, client_encoding="utf8", **settings)
    try:
        raw = psycopg.connect(conninfo, autocommit=True, cursor_factory=RawCursor)
    except psycopg.OperationalError as error:
        state = passing_state(conninfo, str(error), CONNECT_TIMEOUT_S) if is_unknown_refusal(error) else None
        if state is None:
            raise
        raise passing_error(state, str(error)) from error
    timer = threading.Timer(answer_s, Link(raw).cut)
    timer.start()
    try:
        raw.server_cursor_factory = RawServerCursor
        raw.adapters.register_dumper(int, Int8Dumper)
        raw.adapters.register_loader("numeric", _IntLoader)
        escape_text(raw)
        raw.execute(SETTINGS, prepare=False)
        wait_ms = _milliseconds(timeout_s)
        raw.execute(f"SET search_path = {url.quoted_schema}; SET lock_timeout = {wait_ms}", prepare=False)
    except BaseException:
        raw.close()
        raise
    finally:
        timer.cancel()
    return raw


def _given(url: DatabaseUrl) -> dict[str, str]:
    """Return the parameters of a connection that the URL or the environment sets."""
    environment = {
        option.keyword.decode(): os.environ[option.envvar.decode()]
        for option in Conninfo.get_defaults()
        if option.envvar and os.environ.get(option.envvar.decode())
    }
    try:
        return environment | {name: str(value) for name, value in conninfo_to_dict(url.conninfo).items()}
    except psycopg.ProgrammingError as error:
        text = str(error).strip()
        reason = text if text.startswith("invalid URI query parameter") else "it is malformed"  # other texts have parts of it
    raise InvalidValueError(f"libpq does not accept the URL of the database: {reason}; expected {EXPECTED}")


def _milliseconds(seconds: float) -> int:
    """Return a time for PostgreSQL, where 0 would mean to wait for ever."""
    return max(1, int(min(seconds * 1000, LONGEST_MS)))


@lru_cache(None)
def _of_many(statement: str) -> str:
    """Return the INSERT of many rows that one of a single row stands for."""
    _, separator, row = statement.partition(" VALUES ")
    return statement + f", {row}" * (INSERTED_AT_ONCE - 1) if separator else statement


def _is_dead(raw: psycopg.Connection[Any]) -> bool:
    if raw.closed:
        return True
    if not _has_input(raw.fileno()):
        return False
    try:
        raw.pgconn.consume_input()  # a notice, or the end
        return _has_input(raw.fileno())  # what ends can always be read
    except psycopg.Error:
        return True


def _has_input(descriptor: int) -> bool:
    if not hasattr(select, "poll"):
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _nothing_pending(statement: str) -> psycopg.Cursor[Any]:
    raise AssertionError(f"a reader begins its transactions itself, got {statement!r}")


class _IntLoader(Loader):
    """Loads sums of integers, which PostgreSQL returns as numeric."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data))
