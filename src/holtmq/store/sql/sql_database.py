"""What the shared parts of a store require of a database, whichever it is.

Statements have `?` for their parameters. Both databases know `RETURNING` and `ON CONFLICT`; what they do not both know stays in
the folder of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from holtmq.steps import Steps

T = TypeVar("T")
TOPOLOGY = 0
"""Queues have ids from 1 on."""


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement changed."""

    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """A connection within a transaction, or with the lock of its database."""

    def execute(self, statement: str, parameters: Sequence[Any] = ..., /) -> Cursor: ...
    def executemany(self, statement: str, parameters: Iterable[Sequence[Any]], /) -> Cursor: ...


class SqlDatabase(Protocol):
    """A database that the threads of a process share: one of them at a time is in a transaction, or reads."""

    path: str
    """The path or the URL, without a password."""
    on_rollback: list[Callable[[], None]]
    """Called after a rollback, so that caches can discard what they saw in the transaction."""

    @property
    def connection(self) -> Connection:
        """The connection, for the holder of the lock."""

    @property
    def is_nested(self) -> bool:
        """Whether the current transaction is part of an outer one. Only meaningful within a transaction."""

    def lock(self) -> AbstractContextManager[Connection]:
        """Return a context that locks the connection for reading."""

    def transaction(self) -> AbstractContextManager[Connection]:
        """Return a context for a transaction, rolled back if the block raises. A nested one is part of the outer one.

        With full durability, what it changed is on disk when the outermost context has been left.
        """

    def lazy_transaction(self) -> AbstractContextManager[Connection]:
        """Return a context for a transaction that a power cut may undo."""

    def together(self, work: Callable[[Connection], T], *, is_single: bool = False) -> T:
        """Run work as a transaction, which the calls of several threads may share.

        `work` leaves everything unchanged if it raises an error of ours. Work that `is_single` executes one statement.
        """

    def serialize(self, queue_id: int) -> None:
        """Wait until no other transaction changes this queue or stream as a whole, and keep others from it until the end.

        `TOPOLOGY` stands for the topology.
        """

    def admit_puts(self) -> None:
        """Announce, at the beginning of a transaction, that it may add messages.

        `exclude_puts` of another process waits for its end, or the transaction sees what that process has changed.
        """

    def exclude_puts(self) -> None:
        """Wait for puts that are on the way, and keep new ones waiting until the end of the transaction."""

    def persist(self, work: Callable[[], T], *, is_repeatable: bool = False) -> T:
        """Run work, and again if the connection to the store was lost and nothing was changed.

        Work that is repeatable is run again even if what it did is unknown.
        """

    def clock(self) -> float:
        """Return the time that all processes agree on, in seconds since 1970."""

    def await_change(self) -> bool:
        """Wait a short while for a change by another process. Return whether there may have been one."""

    def stop_awaiting(self) -> None:
        """Called by the thread that calls `await_change`, when it no longer does."""

    def announce(self) -> None:
        """Tell other processes that something has changed, if they do not notice by themselves."""

    def size(self) -> int:
        """Return the bytes that the store takes on disk."""

    def vacuum(self) -> None:
        """Return unused space to the system."""

    def close(self) -> None: ...


class JournalDatabase(SqlDatabase, Protocol):
    """What a broker's journal requires besides. The broker has the database to itself."""

    @property
    def is_remote(self) -> bool:
        """Whether to write takes as long as the network."""

    def begin(self, wait_s: float) -> None:
        """Start a transaction that ends by `commit` or `roll_back`, which may be called by another thread.

        Another process that keeps this one from writing is waited for; StoreBusyError is raised if the wait is too long.
        """

    def commit(self) -> None:
        """End the transaction when it is on disk. StoreUnknownError: that is not known, and `has_committed` will tell."""

    def roll_back(self) -> None:
        """End the transaction without its changes. Raise nothing: a connection that fails has lost them anyway."""

    def undo(self) -> None:
        """Tell the caches that a transaction has turned out not to be committed."""

    def note_batch(self, number: int) -> None:
        """Let `has_committed` find out whether this transaction was committed."""

    def has_committed(self, number: int) -> bool:
        """Return whether the batch with this number was committed."""

    def reader(self) -> Any:
        """Return a connection for reading beside a transaction. It sees committed data only."""

    def snapshot(self, reader: Any) -> AbstractContextManager[Connection]:
        """Return a context in which all statements of a reader see the same commit."""

    def rows(self, reader: Any, statement: str, parameters: Sequence[Any]) -> Iterator[Any]:
        """Return the rows of a statement, fetched as they are needed. Within a snapshot only."""

    def translated(self, error: Exception) -> Exception | None:
        """Return an error of the database in our words, or None if it is another one."""

    def make_room(self) -> None:
        """Prepare for a transaction that removes more than it adds, on a disk that is full."""

    def check_file(self, *, at_once: bool = False) -> None:
        """Raise an error if what is written now is lost, or not ours to write."""

    def pulse(self) -> bool:
        """Show that the owner is alive. Return whether the database is still its own."""

    def cut(self) -> None:
        """Let no thread wait any more for a database that does not answer."""

    def tidy(self) -> bool:
        """Do a little of what keeps the database small. Return whether more is left."""

    def vacuum_in_steps(self) -> Steps[None]:
        """Give all free space back, in steps for the time between batches."""
