"""A SQLite file: opening, schema versions and transactions.

A process has one connection to a file, which its threads share. Between processes SQLite's lock decides; it is retried with
short pauses, so that no process sleeps for long while the file is free. With full durability the processes that share a file
commit without waiting for the disk, and share the wait afterwards (`shared_sync.py`). A broker, which has its file to itself
and commits in batches, leaves the sync to SQLite.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from holtmq.errors import NotAStoreError, StoreBusyError, StoreClosedError, StoreError, StoreVersionError
from holtmq.steps import Steps
from holtmq.store.records import Durability
from holtmq.store.sql.shared_commit import SharedCommits
from holtmq.store.sqlite.damaged_text import lenient_text
from holtmq.store.sqlite.data_file import FileWatch, prepare, wal_path
from holtmq.store.sqlite.ownership import FileClaim, system_locking
from holtmq.store.sqlite.shared_sync import SharedSync, can_share_syncs
from holtmq.store.sqlite.space import INCREMENTAL, WAL_KEPT_BYTES, FreeSpace, cut, free_pages, is_divisible
from holtmq.store.sqlite.sqlite_errors import is_busy, translated
from holtmq.store.sqlite.wal_check import WalScan, scan_wal

log = logging.getLogger(__name__)

T = TypeVar("T")
APPLICATION_ID = 0x486F6C74  # "Holt"
SCHEMA_FILES = ("schema.sql", *(f"schema-{version}.sql" for version in range(2, 9)))
STEPS = tuple(files("holtmq.store.sqlite").joinpath(name).read_text() for name in SCHEMA_FILES)
"""The migration from each schema version to the next. Each step is applied as a whole or not at all."""
TIMEOUT_S = 30.0
LOOK_EVERY_S = 0.01
"""Pause between two looks at the version of the data, which take microseconds each."""
SHORTEST_PAUSE_S = 0.00005
LONGEST_PAUSE_S = 0.001
FORK_PATIENCE_S = 0.05
"""How long a fork waits for a transaction of another thread before it lets another thread fork."""
CHECKPOINT_PAGES = {"full": 1000, "normal": 4000, "off": 4000}
"""Size of the WAL at which SQLite checkpoints it. A small WAL is reused instead of growing, which makes each sync shorter; if
calls do not wait for the disk, a large one saves work."""
LONGEST_SAVING_S = 1.0
"""Longest time to wait for readers that need the WAL, after a sync has failed. The next call tries again."""
LONGEST_STEP_WAIT_S = 1.0
"""Longest time that a step of giving space back waits for another process."""
CACHE_KIB, READER_CACHE_KIB = 32 * 1024, 4 * 1024
"""Pages that a connection keeps. One that reads beside a transaction reads a chunk once, and needs the inner pages alone."""
CHANGES_PER_LOOK, TRANSACTIONS_PER_LOOK = 2000, 250
"""Changed rows, and transactions, after which a process of the embedded library looks for free space in the file."""
TIDYING_SHARE, LONGEST_TIDYING_S = 0.1, 0.25
"""Share of its time that it then spends to give space back, and the longest time in one go."""


class SqliteDatabase:
    """A HoltMQ file. `durability` says what completed calls survive: `full` a power failure, the others a killed process.

    `owner` is the address of a broker that has the file to itself; without one the file is shared with other processes.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        timeout_s: float = TIMEOUT_S,
        steps: tuple[str, ...] = STEPS,
        owner: str | None = None,
    ) -> None:
        if durability not in ("full", "normal", "off"):
            raise StoreError(f"durability must be 'full', 'normal' or 'off', got {durability!r}")
        self.path = str(path)
        self._durability = durability
        self._timeout_s = timeout_s
        self._steps = steps
        self._lock = threading.RLock()
        self._depth = 0
        self._writer: int | None = None
        """The thread that is in a transaction."""
        self._is_closed = False
        self.on_rollback: list[Callable[[], None]] = []
        """Called after a rollback, so that caches can discard what they saw in the transaction."""
        self._reading = _Reading(self)
        self._writing = _Writing(self)
        self._writing_lazily = _WritingLazily(self)
        self._free_space = FreeSpace()
        self._changes_seen = 0
        self._transactions = 0
        self._readers: list[sqlite3.Connection] = []
        self._seen_version = 0
        """The version of the data when a waiter last looked."""
        self._looked_at = time.monotonic()
        self._owner = owner
        self._watch: FileWatch | None = None
        self._sync: SharedSync | None = None
        self.commits = SharedCommits(self._commit_together)
        if self.path != ":memory:":
            prepare(self.path)
            self._watch = FileWatch(str(Path(self.path).absolute()))
            if durability == "full" and owner is None and can_share_syncs():
                self._sync = SharedSync(wal_path(self.path))
        self._claim = _claim(self.path, owner)
        try:
            left_behind = self._left_behind()
            self._connection, self._pid = self._connect(), os.getpid()
            try:
                _opened.add(self)
                with self.lock():
                    self._migrate(left_behind)
                if self._watch is not None:
                    self._watch.start_wal()
                    self.check_file()
            except BaseException:
                self._connection.close()
                raise
        except BaseException:
            if self._claim is not None:
                self._claim.release()
            raise

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for the holder of the lock. After a fork the child opens one of its own."""
        if self._is_closed:
            raise StoreClosedError(f"{self.path} was closed")
        if self._pid != os.getpid():
            _inherited.append(self._connection)
            if self._claim is not None:
                self._claim.abandon()
                self._claim = _claim(self.path, self._owner)
            self._connection, self._pid, self._changes_seen = self._connect(), os.getpid(), 0
        return self._connection

    def check_file(self, *, at_once: bool = False) -> None:
        """Raise `StoreReplacedError` if the file was deleted, moved or replaced since it was opened.

        Every call looks at most once in 10 ms, unless it must look at once.
        """
        if self._watch is not None:
            self._watch.check(at_once=at_once)

    def lock(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context that locks the connection for reading and translates SQLite's errors."""
        return self._reading

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context for a write transaction, rolled back if the block raises. A nested one is part of the outer one.

        With full durability, what it changed is on disk when the outermost context has been left.
        """
        return self._writing

    def lazy_transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context for a write transaction that a power cut may undo.

        Whatever a later transaction changes can only be on disk together with what this one changed.
        """
        return self._writing_lazily

    def begin(self, wait_s: float) -> None:
        """Start a transaction that ends by a COMMIT of the caller's, then `end`, or by `roll_back`.

        For a writer who lets the COMMIT wait for the disk in another thread. The file is then its alone. Another process
        that holds SQLite's lock is waited for; StoreBusyError is raised if the wait is too long.
        """
        try:
            self._begin(self.connection, wait_s)
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        self._depth += 1

    is_remote = False

    def commit(self) -> None:
        """End the transaction of `begin`."""
        self.connection.execute("COMMIT")
        self._depth -= 1

    def roll_back(self) -> None:
        self._depth -= 1
        with suppress(sqlite3.Error):  # SQLite has rolled back by itself, or will when the next transaction starts
            self._roll_back(self.connection)

    def undo(self) -> None:
        """Do nothing: a commit is never in doubt."""

    def note_batch(self, number: int) -> None:
        """Do nothing: a commit is never in doubt."""

    def has_committed(self, number: int) -> bool:
        raise AssertionError("a commit in a file is never in doubt")

    def translated(self, error: Exception) -> Exception | None:
        return translated(error, self.path) if isinstance(error, sqlite3.Error) else None

    def reader(self) -> sqlite3.Connection:
        """Return a second connection for reading beside a transaction. It sees committed data only."""
        reader = self.connection
        if self.path != ":memory:":
            reader = self._connect()
            reader.execute(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
        reader.text_factory = lenient_text
        self._readers.append(reader)
        return reader

    @contextmanager
    def snapshot(self, reader: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        if reader.in_transaction:  # a database in memory, which has one connection
            yield reader
            return
        reader.execute("BEGIN")
        try:
            yield reader
        finally:
            reader.execute("ROLLBACK")

    def rows(self, reader: sqlite3.Connection, statement: str, parameters: Sequence[Any]) -> Iterator[Any]:
        return reader.execute(statement, parameters)

    def make_room(self) -> None:
        """Copy the WAL into the file as far as possible, so that the next transaction starts at its beginning."""
        with suppress(sqlite3.Error):
            self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def together(self, work: Callable[[sqlite3.Connection], T], *, is_single: bool = False) -> T:
        """Run work as a transaction. If calls wait for the disk, those of several threads share one transaction.

        `work` leaves everything unchanged if it raises an error of ours.
        """
        if self._writer == threading.get_ident():
            return work(self.connection)
        if self._sync is None:
            with self.transaction() as connection:
                return work(connection)
        return self.commits.run(work)

    def insert_alone(self, statement: str, values: tuple[object, ...]) -> int | None:
        """Insert a row by one statement, as a transaction of its own, without waiting for the disk. It saves BEGIN and COMMIT.

        Return its id, or None if it breaks a constraint.
        """
        self._lock.acquire()
        try:
            if self._watch is not None:
                self._watch.check(at_once=False)
            connection = self.connection
            try:
                return connection.execute(statement, values).lastrowid
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
            return self._when_free(partial(connection.execute, statement, values)).lastrowid
        except sqlite3.IntegrityError:
            return None
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        finally:
            self._lock.release()

    def make_durable(self) -> None:
        """Return when all commits of this process are on disk. Raise `StoreError` if that is not certain."""
        if self._sync is None:
            return
        if self._sync.is_doubtful:
            self._save_wal()
        try:
            self._sync.wait()
        except OSError as error:
            failure = StoreError(
                f"{self.path} cannot be written: the disk reported an error when its WAL was synced ({error}); "
                "whether the change was made is unknown: check the system log, and repeat the call"
            )
            with suppress(StoreError):
                self._save_wal()
            raise failure from error

    def _save_wal(self) -> None:
        """Write all that is in the WAL to the file, and start the WAL anew, because its frames may not be on disk.

        The operating system drops what it failed to write, so that a second sync succeeds without it.
        """
        with self.lock() as connection:
            assert self._sync is not None
            if self._sync.is_doubtful:
                self._when_free(partial(_checkpoint_all, connection), LONGEST_SAVING_S)
                self._sync.trust()

    @property
    def waits_for_disk(self) -> bool:
        """Whether a durable call waits for a sync that it can share."""
        return self._sync is not None

    @property
    def is_nested(self) -> bool:
        """Whether the current transaction is part of an outer one. Only meaningful within a transaction."""
        return self._depth > 1

    clock = staticmethod(time.time)
    """Returns the time, in seconds since 1970."""

    def serialize(self, queue_id: int) -> None:
        """Do nothing: a transaction keeps all others out."""

    def admit_puts(self) -> None:
        """Do nothing: a transaction keeps all others out."""

    def exclude_puts(self) -> None:
        """Do nothing: a transaction keeps all others out."""

    def persist(self, work: Callable[[], T], *, is_repeatable: bool = False) -> T:
        """Run work, once: there is no connection that could be lost."""
        return work()

    def await_change(self) -> bool:
        """Wait for a moment. Return whether another process has written to the file since the last call."""
        time.sleep(LOOK_EVERY_S)
        with self.lock() as connection:
            version = int(connection.execute("PRAGMA data_version").fetchone()[0])
        seen, self._seen_version = self._seen_version, version
        return version != seen

    def stop_awaiting(self) -> None:
        """Do nothing: waiting takes nothing that would have to be given back."""

    def announce(self) -> None:
        """Do nothing: other processes look at the file."""

    def size(self) -> int:
        return Path(self.path).stat().st_size

    def vacuum(self) -> None:
        """Rebuild the file without free pages, and truncate the WAL. An older file gives space back by itself from then on."""
        with self.lock() as connection:
            self._when_free(partial(connection.execute, f"PRAGMA auto_vacuum = {INCREMENTAL}"))
            connection.execute("PRAGMA temp_store = FILE")  # the copy of a large file does not fit into memory
            try:
                self._when_free(partial(connection.execute, "VACUUM"))
            finally:
                connection.execute("PRAGMA temp_store = MEMORY")
            cut(connection)

    def vacuum_in_steps(self) -> Steps[None]:
        """Give back all pages that are free now. No step takes more than a few milliseconds."""
        with self.lock() as connection:
            if not is_divisible(connection):
                raise StoreVersionError(
                    f"{self.path} was created by HoltMQ 0.2 or earlier and must be rebuilt before it can give space back: "
                    f"stop the broker and run `holtmq vacuum {self.path}`"
                )
            left = free_pages(connection)
        while left > 0:
            with self.lock() as connection:
                left -= self._when_free(partial(self._free_space.give_back_some, connection, left), LONGEST_STEP_WAIT_S)
                left = min(left, free_pages(connection))
            yield
        with self.lock() as connection:
            cut(connection)

    def pulse(self) -> bool:
        """Do nothing: the lock on the file tells."""
        return True

    def cut(self) -> None:
        """Do nothing: a file answers."""

    def tidy(self) -> bool:
        """Give some free space back, and cut a WAL that has grown. Takes a few milliseconds. Return whether more is left."""
        with self.lock() as connection:
            is_more = self._free_space.is_unused(connection) and self._free_space.give_back(connection)
            if not is_more and self._watch is not None and self._watch.wal_size() > WAL_KEPT_BYTES:
                cut(connection)
            return is_more

    def _tidy_now_and_then(self, connection: sqlite3.Connection) -> None:
        """Give space back after many changes, in a time that is short compared with theirs."""
        self._transactions += 1
        changes = connection.total_changes
        if changes - self._changes_seen < CHANGES_PER_LOOK and self._transactions < TRANSACTIONS_PER_LOOK:
            return
        now = time.monotonic()
        self._give_back(connection, now + min((now - self._looked_at) * TIDYING_SHARE, LONGEST_TIDYING_S))
        self._changes_seen, self._transactions, self._looked_at = changes, 0, time.monotonic()

    def _give_back(self, connection: sqlite3.Connection, deadline: float) -> None:
        with suppress(sqlite3.Error):  # the file is locked or the disk is full: there will be another time
            while self._free_space.give_back(connection) and time.monotonic() < deadline:
                pass

    def close(self) -> None:
        with self._lock:
            if not self._is_closed and self._pid == os.getpid():
                self._give_back(self._connection, time.monotonic() + LONGEST_TIDYING_S)
                if self._sync is not None:
                    self._sync.close()
                for reader in self._readers:
                    reader.close()
                self._connection.close()
                if self._claim is not None:
                    self._claim.release()
            self._is_closed = True

    def _commit_together(self, run: Callable[[sqlite3.Connection], None], *, is_single: bool) -> None:
        with self.transaction() as connection:
            run(connection)

    def _begin(self, connection: sqlite3.Connection, wait_s: float | None = None) -> None:
        if self._watch is not None:
            self._watch.check(at_once=False)  # before each transaction, so that none is confirmed which nobody will ever read
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            self._when_free(lambda: connection.execute("BEGIN IMMEDIATE"), wait_s)

    def _when_free(self, attempt: Callable[[], T], wait_s: float | None = None) -> T:
        """Retry until no other process holds the file's lock."""
        wait_s = self._timeout_s if wait_s is None else wait_s
        deadline, pause_s = None, SHORTEST_PAUSE_S
        while True:
            try:
                return attempt()
            except sqlite3.OperationalError as error:
                if not is_busy(error):
                    raise
                deadline = deadline or time.monotonic() + wait_s
                if time.monotonic() >= deadline:
                    raise StoreBusyError(f"{self.path} was locked by another process for more than {wait_s:g} s") from error
            time.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back(connection)
            raise

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        finally:
            for notice in self.on_rollback:
                notice()

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            connection = sqlite3.connect(
                _uri(self.path),
                timeout=self._timeout_s,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                uri=True,
            )
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES[self._durability]}")
            # Some systems build SQLite to overwrite all that is deleted with zeros: for a large message, once more its size.
            connection.execute("PRAGMA secure_delete = FAST")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            connection.execute(f"PRAGMA journal_size_limit = {WAL_KEPT_BYTES}")
            # The first process to open the file and the last to close it lock it for a moment. Only up to here may SQLite wait.
            connection.execute("PRAGMA busy_timeout = 0")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise translated(error, self.path) from error
        return connection

    def _left_behind(self) -> WalScan | None:
        """Return what a process that crashed has left in the WAL, or None if nothing, or if another process uses the WAL."""
        if self._watch is None or (self._claim is not None and not self._claim.is_only):
            return None
        scan = scan_wal(wal_path(self.path))
        if scan is not None and scan.is_foreign(self.path, APPLICATION_ID):
            raise NotAStoreError(
                f"{scan.path} has changes to the database of another program; expected those to a HoltMQ database: "
                f"if {self.path} is a HoltMQ database, move {scan.path} away"
            )
        return scan

    def _migrate(self, left_behind: WalScan | None) -> None:
        """Create the schema, or migrate an older one step by step. Report what the WAL has lost."""
        connection = self.connection
        version, application, tables = self._when_free(partial(_identify, connection))
        if tables and application != APPLICATION_ID:
            raise NotAStoreError(f"{self.path} belongs to another program; expected a HoltMQ database or a new file")
        if version > len(self._steps):
            raise StoreVersionError(
                f"{self.path} has schema version {version}, written by a newer HoltMQ; expected at most {len(self._steps)}"
            )
        if left_behind is not None:
            _, frames, _ = self._when_free(partial(connection.execute, "PRAGMA wal_checkpoint(PASSIVE)")).fetchone()
            if frames >= 0 and (damage := left_behind.damage(frames)) is not None:
                log.error("%s", damage)
        if version == len(self._steps):
            return
        if not tables:
            self._begin_file(connection)
        with self.transaction():
            (version,) = connection.execute(
                "PRAGMA user_version"
            ).fetchone()  # another process may have migrated the file meanwhile
            for step in self._steps[version:]:
                for statement in statements(step):
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(self._steps)}")

    def _begin_file(self, connection: sqlite3.Connection) -> None:
        """Give an empty file the settings that only an empty file takes, up to the WAL.

        Without a WAL, SQLite needs "full" for what the WAL does with "normal": otherwise it counts a page of its rollback
        journal before the page is on disk, and a power cut may leave a journal that turns the first page into zeros.
        """
        careful = "off" if self._durability == "off" else "full"
        connection.execute(f"PRAGMA synchronous = {careful}")
        for setting in (f"auto_vacuum = {INCREMENTAL}", "journal_mode = WAL"):
            self._when_free(partial(connection.execute, f"PRAGMA {setting}"))
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    @property
    def _synchronous(self) -> str:
        return self._durability if self._sync is None else "normal"


def _uri(path: str) -> str:
    """Return a path as SQLite's URI, with which SQLite opens an existing file and never creates one by itself."""
    return "file::memory:" if path == ":memory:" else Path(path).absolute().as_uri() + "?mode=rw"


def _claim(path: str, owner: str | None) -> FileClaim | None:
    locking = system_locking()
    if path == ":memory:" or locking is None:
        return None
    try:
        return FileClaim(path, owner, locking)
    except OSError:
        return None  # the folder does not exist or is read-only, which SQLite reports, or its file system has no locks


_opened: weakref.WeakSet[SqliteDatabase] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []
"""Connections inherited through a fork. SQLite forbids using them in the child, even to close them."""
_held: list[SqliteDatabase] = []
_forking = threading.Lock()
"""Held by the thread that forks, and with it the locks of all databases in `_held`."""


def _hold_before_fork() -> None:
    """Take all locks: a fork during another thread's transaction would leave the child with a lock that is never released."""
    while True:
        _forking.acquire()
        if all(map(_hold, list(_opened))):
            return
        # Whoever has the missing lock may want to fork, too.
        _release_after_fork()
        time.sleep(LONGEST_PAUSE_S)


def _hold(database: SqliteDatabase) -> bool:
    is_held = database._lock.acquire(timeout=FORK_PATIENCE_S)
    if is_held:
        _held.append(database)
    return is_held


def _release_after_fork() -> None:
    while _held:
        _held.pop()._lock.release()
    _forking.release()


def _renew_after_fork() -> None:
    """Forget the threads of the parent, which do not exist in the child, and for which it must not wait."""
    for database in _held:
        database.commits = SharedCommits(database._commit_together)
        if database._sync is not None:
            database._sync = database._sync.renewed()
    _release_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_before_fork, after_in_parent=_release_after_fork, after_in_child=_renew_after_fork)


class _Reading:
    """The lock of a database as a reusable context. A class rather than a generator: every call passes here."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        database._lock.acquire()
        try:
            return database.connection
        except BaseException:
            database._lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database._lock.release()
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._database.path) from error


class _Writing(_Reading):
    """A transaction as a reusable context. A nested one is part of the outer one."""

    def __enter__(self) -> sqlite3.Connection:
        database = self._database
        database._lock.acquire()
        try:
            connection = database.connection
            if database._depth == 0:
                database._begin(connection)
                database._writer = threading.get_ident()
        except BaseException as error:
            super().__exit__(type(error), error, error.__traceback__)
            raise
        database._depth += 1
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        database = self._database
        database._depth -= 1
        if database._depth > 0:
            super().__exit__(kind, error, trace)
            return
        database._writer = None
        try:
            if error is None:
                database._commit(database._connection)
                database._tidy_now_and_then(database._connection)
            else:
                database._roll_back(database._connection)
        except sqlite3.Error as failure:
            super().__exit__(type(failure), failure, failure.__traceback__)
            raise
        super().__exit__(kind, error, trace)
        if error is None and database._sync is not None:
            self._finish()

    def _finish(self) -> None:
        """Wait for the disk, after the lock was released."""
        self._database.make_durable()


class _WritingLazily(_Writing):
    """A transaction that may be lost by a power cut."""

    def _finish(self) -> None:
        """Leave it to the next sync."""


def _checkpoint_all(connection: sqlite3.Connection) -> None:
    """Write the whole WAL to the file and empty it. Raise SQLite's error for a busy file if a reader still needs the WAL."""
    (is_busy, *_) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    if is_busy:
        busy = sqlite3.OperationalError("the WAL is in use")
        busy.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise busy


def _identify(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return the schema version, the application id and the number of tables of a file."""
    queries = ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_schema")
    version, application, tables = (connection.execute(query).fetchone()[0] for query in queries)
    return version, application, tables


def statements(script: str) -> Iterator[str]:
    """Yield the statements of a script one by one. sqlite3's executescript would commit the surrounding transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
