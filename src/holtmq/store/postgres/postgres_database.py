"""A schema of a PostgreSQL database: connecting, schema versions, transactions, locks and announcements.

A process has one connection for its work, which its threads share: what several of them ask for at the same time is committed
together. Processes work side by side. They are kept apart by row locks, and by advisory locks where a rule concerns a queue
or the topology as a whole.

A connection that is lost is replaced. What had not reached the database is tried again for `timeout_s`. What may have reached
it is reported, because a second attempt could do it twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from holtmq.clock import elapsed_ns
from holtmq.database_url import DatabaseUrl
from holtmq.errors import (
    NotAStoreError,
    StoreClosedError,
    StoreError,
    StoreFencedError,
    StoreLostError,
    StoreOwnedError,
    StoreUnknownError,
    StoreVersionError,
)
from holtmq.steps import Steps
from holtmq.store.postgres.postgres_connection import PostgresConnection, PostgresReader, connect
from holtmq.store.postgres.postgres_errors import is_lost, replica_error, translated
from holtmq.store.postgres.statements import SCHEMA
from holtmq.store.postgres.statements import translated as with_names
from holtmq.store.postgres.table_sweeper import TableSweeper
from holtmq.store.records import Durability
from holtmq.store.refusal import refusal
from holtmq.store.sql.shared_commit import SharedCommits

log = logging.getLogger(__name__)

T = TypeVar("T")
TIMEOUT_S = 30.0
OLDEST_VERSION = 13
"""The oldest PostgreSQL that has all of what the statements use."""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""Pauses between attempts to connect."""
CLAIM_PATIENCE_S = 1.0
"""Time for which a new process waits for one that has just ended, by a kill for example."""
LISTEN_S = 1.0
"""Time after which a listener looks whether it is still needed."""
LOOK_ANYWAY_S = 5.0
"""Time after which waiters look again although nothing was announced."""
ROWS_AT_ONCE = 16
"""Rows that a reader of the log fetches at once. It rarely needs more."""
ANNOUNCE_EVERY_S = 0.005
"""Announcements are at least this far apart; the first one comes at once. Each of them takes the connection away from those who
put, and a lock that all who announce something compete for (benchmarks/postgres.py)."""
LOST_S = 5.0
"""Time without a pulse after which readers do not wait for a new connection: a broker could not stop meanwhile."""
CLOCK_S = 60.0
"""Time after which the clock of the server is read again."""
PUTTING = "LOCK TABLE deliveries IN ROW EXCLUSIVE MODE"
"""The lock that `exclude_puts` waits for. A statement that puts takes it anyway, before it looks at the versions."""
OWNER = "owner"
"""The purpose of the lock that a broker holds alone, and libraries share."""
LAZILY = "SET LOCAL synchronous_commit = off"
# Where the server waits for its replicas as well, that stays so.
DURABLY = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
HOLDERS = """
SELECT pid, mode FROM pg_locks
WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND objsubid = 1 AND classid::bigint = $1 AND objid::bigint = $2
"""
PULSE = f"SELECT set_config('application_name', $3, false), $4 IN (SELECT pid FROM ({HOLDERS}) AS holders)"
PULSE_NAME = "holtmq pulse of {}"
"""The application name of a connection that shows that the owner is alive, whose own connection may wait for long."""


def lock_parts(url: DatabaseUrl) -> tuple[int, int]:
    """Return the number of the owner's lock as pg_locks shows it, in two halves."""
    return divmod(url.lock_id(OWNER) & (1 << 64) - 1, 1 << 32)


class PostgresDatabase:
    """A schema of a database. `durability` "full" waits until the server has written a commit, "normal" and "off" do not.

    `owner` is the address of a broker that has the schema to itself; without one it is shared with other processes.
    """

    waits_for_disk = True
    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        timeout_s: float = TIMEOUT_S,
        owner: str | None = None,
        must_exist: bool = False,
    ) -> None:
        if durability not in ("full", "normal", "off"):
            raise StoreError(f"durability must be 'full', 'normal' or 'off', got {durability!r}")
        self.url = DatabaseUrl.parse(url)
        self.path = self.url.shown
        self.owner = owner
        self._must_exist = must_exist
        self.on_rollback: list[Callable[[], None]] = []
        self.commits = SharedCommits(self._commit_together)
        self._durability = durability
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._depth = 0
        self._writer: int | None = None
        self._is_closed = False
        self._clock_ahead_s, self._read_clock_at = 0.0, 0.0
        """How far the clock of the server is ahead of the time that this machine counts, and when that was read."""
        self._reading = _Reading(self)
        self._writing = _Writing(self)
        self._writing_lazily = _WritingLazily(self)
        self._listener: psycopg.Connection[Any] | None = None
        self._look_anyway_at = 0.0
        self._announcer: threading.Thread | None = None
        self._has_news = threading.Event()
        self._connection = PostgresConnection(self._begin)
        self._connecting = PostgresConnection(self._begin)
        """The next connection, before it is known to be of use."""
        self._readers: list[PostgresReader] = []
        self._pulse = PostgresReader(self._open)
        self._sweeper = TableSweeper(self._open)
        self._heard_at: float | None = None
        """When the pulse was answered last."""
        self._epoch: int | None = None
        """The epoch that began when this broker began to own the schema."""
        self._keep_connected(time.monotonic())  # one attempt: a wrong URL is reported at once
        _opened.add(self)

    @property
    def connection(self) -> PostgresConnection:
        """The connection, for the holder of the lock."""
        if self._is_closed:
            raise StoreClosedError(f"{self.path} was closed")
        if self._depth == 0 and not self._connection.is_open:
            self._keep_connected(time.monotonic() + self._timeout_s)
        return self._connection

    def clock(self) -> float:
        """Return the time of the server, in seconds since 1970. All processes see the same leases expire."""
        return elapsed_ns() / 1e9 + self._clock_ahead_s  # the clock of this machine may be set at any time

    def lock(self) -> AbstractContextManager[PostgresConnection]:
        """Return a context that locks the connection for reading and translates errors."""
        return self._reading

    def transaction(self) -> AbstractContextManager[PostgresConnection]:
        return self._writing

    def lazy_transaction(self) -> AbstractContextManager[PostgresConnection]:
        return self._writing_lazily

    @property
    def is_nested(self) -> bool:
        return self._depth > 1

    @property
    def is_in_transaction(self) -> bool:
        """Whether the holder of the lock has begun a transaction. One that is pending has not begun."""
        return self._depth > 0 and self._connection.pending is None

    def together(self, work: Callable[[PostgresConnection], T], *, is_single: bool = False) -> T:
        """Run work as a transaction, which the calls of several threads may share.

        `work` that `is_single` executes one statement. If no other thread has work, that is a transaction by itself.
        """
        if self._writer == threading.get_ident():
            return work(self.connection)
        return self.commits.run(work, is_single=is_single)

    def alone(self, work: Callable[[PostgresConnection], T], *, is_safe: bool = False) -> T:
        """Run one statement as a transaction of its own. If it `is_safe` to run it twice, a lost connection is replaced."""
        deadline = time.monotonic() + self._timeout_s
        with self._reading as connection:
            begin, connection.pending = connection.pending, None
            if self._depth and begin is None:
                return work(connection)
            if connection.is_dead:
                connection.close()
                self._keep_connected(deadline)  # nothing has been sent
            elif time.monotonic() > self._read_clock_at + CLOCK_S:
                self._read_clock(connection)
            try:
                while True:
                    try:
                        return work(connection)
                    except psycopg.Error as error:
                        if not is_lost(error):
                            raise
                        connection.close()
                        if not is_safe:
                            raise translated(error, self.path, is_unknown=True) from error
                        self._keep_connected(deadline)
            finally:
                connection.pending = begin

    def serialize(self, queue_id: int) -> None:
        self.connection.fetch("SELECT pg_advisory_xact_lock($1)", self.url.lock_id("queue") ^ queue_id)

    def admit_puts(self) -> None:
        connection = self.connection
        if connection.pending is None:
            connection.run(PUTTING)
        else:
            connection.pending = f"{connection.pending}; {PUTTING}"

    def exclude_puts(self) -> None:
        """Wait for puts that are on the way, and keep new ones waiting until the end of the transaction."""
        self.connection.run("LOCK TABLE deliveries IN SHARE ROW EXCLUSIVE MODE")

    def begin(self, wait_s: float) -> None:
        """Start a transaction of a broker. It begins with the first statement."""
        self._connection.pending = "BEGIN"
        self._depth += 1

    def commit(self) -> None:
        """Commit. After an error that tells that it failed, the caller rolls back."""
        try:
            self._end("COMMIT")
        except psycopg.Error as error:
            if not is_lost(error):
                raise
            self._depth -= 1
            raise translated(error, self.path, is_unknown=True) from error
        self._depth -= 1

    def roll_back(self) -> None:
        self._depth -= 1
        self._roll_back()

    def undo(self) -> None:
        for notice in self.on_rollback:
            notice()

    def note_batch(self, number: int) -> None:
        self._connection.change("UPDATE state SET batch = $1", number)

    def has_committed(self, number: int) -> bool:
        """Return whether a batch was committed, also to the replicas that a commit waits for.

        It may be visible here although the wait was cut short. This write is behind it, and waits for both.
        """
        with self.lock() as connection:
            ((batch,),) = connection.fetch("UPDATE state SET batch = batch RETURNING batch")
        return bool(batch == number)

    def translated(self, error: Exception) -> Exception | None:
        return translated(error, self.path) if isinstance(error, psycopg.Error) else None

    def reader(self) -> PostgresReader:
        """Return a connection for reading beside a transaction."""
        reader = PostgresReader(self._open_if_heard)
        self._readers.append(reader)
        return reader

    def _open_if_heard(self) -> psycopg.Connection[Any]:
        if self._heard_at is not None and time.monotonic() > self._heard_at + LOST_S:
            raise psycopg.OperationalError(f"the database has not answered for {LOST_S:g} s")
        return self._open()

    @contextmanager
    def snapshot(self, reader: PostgresConnection) -> Iterator[PostgresConnection]:
        reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield reader
        finally:
            with suppress(psycopg.Error):
                reader.run("ROLLBACK")

    def rows(self, reader: PostgresConnection, statement: str, parameters: Sequence[Any]) -> Iterator[Any]:
        with reader.begun().cursor(name="rows") as cursor:
            cursor.itersize = ROWS_AT_ONCE
            yield from cursor.execute(with_names(statement), parameters)

    def make_room(self) -> None:
        """Do nothing: the space is the server's."""

    def check_file(self, *, at_once: bool = False) -> None:
        """Do nothing: a commit fails if it is not ours to make."""

    def tidy(self) -> bool:
        """Notice a connection that is lost, and replace it."""
        self.alone(lambda connection: connection.run("SELECT 1"), is_safe=True)
        return False

    def pulse(self) -> bool:
        """Let the server see that the owner is alive, and return whether the schema is still its own.

        This has a connection of its own, because a transaction may take long. The standby looks for its name
        (ownership.py).
        """
        writer = self._connection.link
        if writer is None:
            return False
        try:
            ((_, is_owner),) = self._pulse.fetch(PULSE, *lock_parts(self.url), PULSE_NAME.format(writer.pid), writer.pid)
        except psycopg.Error as error:
            self._pulse.close()
            raise translated(error, self.path) from error
        self._heard_at = time.monotonic()
        if not is_owner:
            writer.cut()  # the server has ended this session already
        return bool(is_owner)

    def cut(self) -> None:
        """End all connections from our side, so that no thread waits any more for a server that does not answer."""
        for connection in (self._connection, self._connecting, self._pulse, *self._readers):
            if connection.link is not None:
                connection.link.cut()

    def vacuum_in_steps(self) -> Steps[None]:
        """Make the space of removed rows available again."""
        self.vacuum()
        yield

    def persist(self, work: Callable[[], T], *, is_repeatable: bool = False) -> T:
        deadline = time.monotonic() + self._timeout_s
        passing = (StoreLostError, StoreUnknownError) if is_repeatable else StoreLostError
        while True:
            try:
                return work()
            except passing:
                if self._writer == threading.get_ident() or time.monotonic() > deadline:
                    raise

    def await_change(self) -> bool:
        if self._is_closed:
            raise StoreClosedError(f"{self.path} was closed")
        try:
            if self._listener is None:
                self._listener = self._open()
                self._listener.execute(f"LISTEN {self.url.channel}")
                return True  # what was announced before was missed
            if any(True for _ in self._listener.notifies(timeout=LISTEN_S, stop_after=1)):
                return True
        except psycopg.Error:
            self.stop_awaiting()
            time.sleep(SHORTEST_PAUSE_S)
            return True
        # A process that dies after a commit has not announced it.
        if time.monotonic() < self._look_anyway_at:
            return False
        self._look_anyway_at = time.monotonic() + LOOK_ANYWAY_S
        return True

    def stop_awaiting(self) -> None:
        # A connection that listens but does not read fills the server's queue of announcements.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def announce(self) -> None:
        """Tell other processes that something has changed. A thread does so, soon and not too often."""
        if not self._has_news.is_set():
            self._has_news.set()
            if self._announcer is None or not self._announcer.is_alive():
                self._announcer = threading.Thread(target=self._announce_news, name="holtmq-announcer", daemon=True)
                self._announcer.start()

    def _announce_news(self) -> None:
        while not self._is_closed:
            if self._has_news.wait(LISTEN_S):
                with suppress(StoreError):
                    self._announce_now()
                time.sleep(ANNOUNCE_EVERY_S)

    def _announce_now(self) -> None:
        with self.lock() as connection:
            self._has_news.clear()
            connection.fetch("SELECT pg_notify($1, '')", self.url.channel)

    def size(self) -> int:
        with self.lock() as connection:
            found = connection.fetch(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
                "WHERE relkind = 'r' AND relnamespace = $1::regnamespace", self.url.quoted_schema,
            )  # fmt: skip
        return int(found[0][0])

    def vacuum(self) -> None:
        """Make the space of removed rows available again."""
        with self.lock() as connection:
            for table in ("deliveries", "messages", "routing_keys", "key_segments", "log_chunks", "log_slices"):
                connection.run(f"VACUUM {table}")

    def note_removed(self, number: int) -> None:
        """Count messages that the holder of the lock has removed: after some thousand, their space is made available again."""
        self._sweeper.note_removed(number)

    def close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            if self._has_news.is_set():
                with suppress(StoreError):
                    self._announce_now()
            self._is_closed = True
            self._connection.close()
            self._pulse.close()
            self._sweeper.close()
            for reader in self._readers:
                reader.close()

    def _commit_together(self, run: Callable[[PostgresConnection], None], *, is_single: bool) -> None:
        if is_single:
            self.alone(run)
            return
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                with self.transaction() as connection:
                    run(connection)
            except StoreLostError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _begin(self, statement: str) -> psycopg.Cursor[Any]:
        """Begin the transaction that is pending, with a statement that reads, on another connection if this one is lost."""
        connection, deadline = self._connection, time.monotonic() + self._timeout_s
        command, connection.pending = connection.pending, None
        assert command is not None
        while True:
            try:
                if time.monotonic() > self._read_clock_at + CLOCK_S:
                    self._read_clock(connection)
                return connection.run_all(f"{command}; {statement}")
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
                connection.close()
                self._keep_connected(deadline)

    def _end(self, command: str) -> None:
        """End the transaction, if it has begun."""
        connection = self._connection
        if connection.pending is not None:
            connection.pending = None
        elif connection.is_open:
            if connection.run(command) != command:
                raise StoreError(f"{self.path}: the transaction was rolled back, because one of its statements had failed")
        elif command == "COMMIT":
            raise StoreLostError(f"{self.path}: the connection was lost in the transaction; nothing was changed")

    def _roll_back(self) -> None:
        try:
            self._end("ROLLBACK")
        except psycopg.Error:
            self._connection.close()
        finally:
            for notice in self.on_rollback:
                notice()

    def _keep_connected(self, deadline: float) -> None:
        """Connect, again and again until the deadline."""
        pause_s = SHORTEST_PAUSE_S
        while True:
            try:
                self._connect()
            except psycopg.Error as error:
                if not is_lost(error) or time.monotonic() >= deadline:
                    raise translated(error, self.path) from error
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                return

    def _open(self) -> psycopg.Connection[Any]:
        """Return a new connection with our settings."""
        raw = connect(self.url, self._timeout_s)
        raw.execute("SET synchronous_commit = off" if self._durability != "full" else DURABLY)
        return raw

    def _connect(self) -> None:
        raw, connection = self._open(), self._connecting
        connection.replace(raw)
        try:
            self._require_primary(connection)
            self._migrate(connection)
            self._claim(connection)
            self._read_clock(connection)
        except BaseException:
            raw.close()
            raise
        finally:
            connection.replace(None)
        self._connection.replace(raw)

    def _require_primary(self, connection: PostgresConnection) -> None:
        (is_replica, version, encoding), *_ = connection.fetch(
            "SELECT pg_is_in_recovery(), current_setting('server_version_num')::bigint, current_setting('server_encoding')"
        )
        if is_replica:
            raise replica_error(self.path)
        if version < OLDEST_VERSION * 10_000:
            raise StoreError(f"{self.path} has PostgreSQL {version // 10_000}; expected version {OLDEST_VERSION} or later")
        if encoding != "UTF8":
            raise StoreError(
                f"{self.path} has the encoding {encoding}; expected UTF8: create the database with ENCODING 'UTF8'"
            )

    def _migrate(self, connection: PostgresConnection) -> None:
        """Create the tables, or migrate them from an older version, one process at a time."""
        if self._version(connection) == len(SCHEMA):
            return
        connection.run("BEGIN")
        try:
            connection.fetch("SELECT pg_advisory_xact_lock($1)", self.url.lock_id("schema"))
            version = self._version(connection)
            if version > len(SCHEMA):
                raise StoreVersionError(
                    f"{self.path} has schema version {version}, written by a newer HoltMQ; expected at most {len(SCHEMA)}"
                )
            if version == 0 and connection.fetch("SELECT to_regnamespace($1)", self.url.quoted_schema) == [(None,)]:
                connection.run(f"CREATE SCHEMA {self.url.quoted_schema}")
            for step in SCHEMA[version:]:
                connection.run(step)
            connection.change("UPDATE state SET schema_version = $1", len(SCHEMA))
            connection.run("COMMIT")
        except BaseException:
            if connection.is_open:
                connection.run("ROLLBACK")
            raise

    def _version(self, connection: PostgresConnection) -> int:
        """Return the version of the schema, 0 if it is empty or does not exist."""
        ((has_state, tables),) = connection.fetch(
            "SELECT to_regclass($1) IS NOT NULL, (SELECT count(*) FROM pg_tables WHERE schemaname = $2)",
            f"{self.url.quoted_schema}.state", self.url.schema,
        )  # fmt: skip
        if not has_state:
            if self._must_exist and not tables:
                raise NotAStoreError(
                    f"{self.path} has no HoltMQ installation in schema {self.url.schema!r}; name its schema with ?schema=NAME"
                )
            if tables:
                raise NotAStoreError(
                    f"schema {self.url.schema!r} of {self.path} has tables of another program; expected an empty schema or one "
                    "of HoltMQ: choose another name with ?schema=NAME"
                )
            return 0
        try:
            ((version, _),) = connection.fetch("SELECT schema_version, topology_version FROM state")
        except (errors.UndefinedColumn, ValueError) as error:
            raise NotAStoreError(
                f"schema {self.url.schema!r} of {self.path} has a table `state` of another program; expected one of HoltMQ"
            ) from error
        return int(version)

    def _claim(self, connection: PostgresConnection) -> None:
        """Take the lock of a broker, or that of a library, for as long as the connection lasts."""
        if not self._try_claim(connection):
            refusal, before = self._refusal(connection), self._connection.link
            if self._epoch is None:
                raise refusal
            if before is None or before.pid not in [pid for pid, _ in connection.fetch(HOLDERS, *lock_parts(self.url))]:
                raise StoreFencedError(f"this broker has lost {self.path}: {refusal}")
            connection.fetch("SELECT pg_terminate_backend($1::integer)", before.pid)
            raise psycopg.OperationalError("the server has not noticed yet that the connection before was lost")
        if self.owner is None:
            connection.change("UPDATE state SET owner = NULL, epoch = epoch + 1 WHERE owner IS NOT NULL")
        elif self._epoch is None:
            ((self._epoch,),) = connection.fetch(
                "UPDATE state SET owner = $1, epoch = epoch + 1, batch = 0 RETURNING epoch", self.owner
            )
        else:
            ((epoch,),) = connection.fetch("SELECT epoch FROM state")
            if epoch != self._epoch:
                raise StoreFencedError(f"{self.path} was used by others while this broker had lost its connection")

    def _try_claim(self, connection: PostgresConnection) -> bool:
        """Take the lock, unless another process has it, and keeps it for a moment: the server notices an end a little later."""
        lock = "pg_try_advisory_lock_shared" if self.owner is None else "pg_try_advisory_lock"
        deadline = time.monotonic() + (CLAIM_PATIENCE_S if self._epoch is None else 0.0)
        while True:
            ((is_granted,),) = connection.fetch(f"SELECT {lock}($1)", self.url.lock_id(OWNER))
            if is_granted or time.monotonic() >= deadline:
                return bool(is_granted)
            time.sleep(SHORTEST_PAUSE_S)

    def _refusal(self, connection: PostgresConnection) -> StoreOwnedError:
        found = connection.fetch(HOLDERS, *lock_parts(self.url))
        if found and found[0][1] == "ShareLock":
            return refusal(self.path, None)
        ((owner,),) = connection.fetch("SELECT owner FROM state")
        return refusal(self.path, owner or "an unknown address")

    def _read_clock(self, connection: PostgresConnection) -> None:
        before = elapsed_ns()
        ((theirs,),) = connection.fetch("SELECT extract(epoch FROM clock_timestamp())::float8")
        self._clock_ahead_s = theirs - (before + elapsed_ns()) / 2e9
        self._read_clock_at = time.monotonic()

    def _renew_after_fork(self) -> None:
        """Leave the connections to the parent, whose session would end if they were closed here."""
        for raw in (self._connection.replace(None), self._listener, self._sweeper.raw):
            if raw is not None and not raw.closed:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, raw.fileno())
                os.close(nowhere)
        self._listener = self._announcer = None
        self._sweeper = TableSweeper(self._open)
        self._connection.pending = None
        self._lock = threading.RLock()
        self._depth, self._writer = 0, None
        self._has_news = threading.Event()
        self.commits = SharedCommits(self._commit_together)
        for notice in self.on_rollback:
            notice()


class _Reading:
    """The lock of a database as a reusable context."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def __enter__(self) -> PostgresConnection:
        database = self._database
        database._lock.acquire()
        try:
            return database.connection
        except BaseException:
            database._lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database._lock.release()
        if isinstance(error, psycopg.Error):
            raise translated(error, self._database.path) from error


class _Writing(_Reading):
    """A transaction as a reusable context. A nested one is part of the outer one."""

    _command = "BEGIN"

    def __enter__(self) -> PostgresConnection:
        connection = super().__enter__()
        database = self._database
        if database._depth == 0:
            connection.pending = self._command
            database._writer = threading.get_ident()
        database._depth += 1
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        database = self._database
        database._depth -= 1
        if database._depth > 0:
            super().__exit__(kind, error, trace)
            return
        database._writer = None
        if error is None:
            try:
                database._end("COMMIT")
            except (psycopg.Error, StoreError) as failure:
                database._roll_back()
                database._lock.release()
                if isinstance(failure, StoreError):
                    raise
                raise translated(failure, database.path, is_unknown=True) from failure
        else:
            database._roll_back()
        super().__exit__(kind, error, trace)


class _WritingLazily(_Writing):
    """A transaction that may be lost by a crash of the server."""

    _command = f"BEGIN; {LAZILY}"


_opened: weakref.WeakSet[PostgresDatabase] = weakref.WeakSet()


def _renew_all() -> None:
    for database in list(_opened):
        database._renew_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
