"""Migration from MiniQ and litequeue: converts their files, and MiniQ's patterns.

Both have a table per queue with message_id, data, status and in_time; MiniQ adds a topic and, in later versions, a priority.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from holtmq.body import TEXT
from holtmq.database_url import is_url, shown_path
from holtmq.embedded.copying import copy
from holtmq.embedded.embedded_broker import EmbeddedBroker
from holtmq.errors import InvalidValueError, NotAStoreError, StoreError
from holtmq.queueing.rules import HIGHEST_PRIORITY
from holtmq.store.checksum import json_checksum
from holtmq.store.records import ID_CLOCK_BITS, DeliveryState
from holtmq.store.sqlite.data_file import refuse_lone_wal
from holtmq.table import describe

COLUMNS = {"message_id", "data", "status", "in_time"}
STATES = {0: DeliveryState.READY, 1: DeliveryState.LOCKED, 2: DeliveryState.DONE, 3: DeliveryState.FAILED}
NANOSECONDS_FROM = 10**16
"""Times above this are nanoseconds, as in litequeue; smaller ones are milliseconds, as in MiniQ."""
BATCH = 10_000
BATCH_BYTES = 16 * 1024 * 1024
LATEST_MS = 2**42
"""The latest time that a message can have, in the year 2109. Message ids begin with the time, in 43 bits."""
MOST_GROWTH = 2
"""Largest ratio of the bodies to the source file: text in UTF-16 grows by half in UTF-8. A small file with a large default
value in its schema would fill the disk."""


class PatternWarning(UserWarning):
    """A MiniQ pattern has no equivalent AMQP pattern."""


@dataclass(slots=True)
class MigrationReport:
    """The result of a migration: the number of messages in each state, for each queue."""

    source: str
    target: str
    queues: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The total number of messages."""
        return sum(sum(states.values()) for states in self.queues.values())


def migrate(source: str | Path, target: str | Path, progress: Callable[[int, int], None] | None = None) -> MigrationReport:
    """Convert a MiniQ or litequeue file to a HoltMQ file. The source is not changed.

    The target may be the URL of a PostgreSQL database. It appears when the conversion is complete; if that fails, no file is
    created. `progress` is called with the number of messages copied so far and their total.
    """
    if is_url(target):
        return _migrate_to_database(source, str(target), progress)
    if Path(target).exists():
        raise StoreError(f"{target} already exists; expected the path of a new file")
    refuse_lone_wal(str(target))
    if not Path(source).is_file():
        raise NotAStoreError(f"{source} does not exist; expected a MiniQ or litequeue file")
    unfinished = Path(f"{target}.unfinished")
    _remove(unfinished)
    try:
        report = _migrate(Path(source), Path(target), unfinished, progress or (lambda *_: None))
        unfinished.replace(target)
    finally:
        _remove(unfinished)
    return report


def _migrate_to_database(source: str | Path, target: str, progress: Callable[[int, int], None] | None) -> MigrationReport:
    """Convert to a file, which is then copied, so that the database gets all of it or no queues at all."""
    with TemporaryDirectory(prefix="holtmq-migrate-") as folder:
        converted = Path(folder) / "converted.db"
        report = migrate(source, converted, progress)
        copy(converted, target)
    return replace(report, target=shown_path(target))


def _migrate(source: Path, target: Path, unfinished: Path, progress: Callable[[int, int], None]) -> MigrationReport:
    report = MigrationReport(str(source), str(target))
    legacy = sqlite3.connect(f"file:{quote(str(source.absolute()))}?mode=ro", uri=True)
    bytes_left = MOST_GROWTH * sum(path.stat().st_size for path in (source, Path(f"{source}-wal")) if path.exists())
    try:
        legacy.execute("PRAGMA trusted_schema = OFF")
        tables = _tables(legacy, source)
        total = sum(legacy.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0] for table in tables)
        with EmbeddedBroker(unfinished, durability="off") as mq:
            for table, columns in tables.items():
                report.queues[table] = Counter()
                highest = _highest_priority(legacy, table, columns)
                mq.declare_queue(table, max_priority=min(highest, HIGHEST_PRIORITY) or None)
                for batch in _batches(legacy, table, columns):
                    bytes_left -= sum(len(message.body) for message in batch)
                    if bytes_left < 0:
                        raise InvalidValueError(f"{source} has more bytes in its messages than in the file; expected fewer")
                    _copy_batch(mq, table, batch, report.queues[table])
                    progress(report.messages, total)
            with mq.database.lock() as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError as error:
        raise NotAStoreError(f"{source} cannot be read: {error}; expected a MiniQ or litequeue file") from error
    finally:
        legacy.close()
    return report


def _tables(legacy: sqlite3.Connection, source: Path) -> dict[str, set[str]]:
    names = [name for (name,) in legacy.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    columns = {name: {row[1] for row in legacy.execute(f"PRAGMA table_info({_quoted(name)})")} for name in names}
    found = {name: has for name, has in columns.items() if has >= COLUMNS}
    if not found:
        raise NotAStoreError(f"{source} has no table with {', '.join(sorted(COLUMNS))}; expected a MiniQ or litequeue file")
    return found


@dataclass(frozen=True, slots=True)
class _LegacyMessage:
    """A row whose values have been checked: a column of SQLite can hold values of any type."""

    body: bytes
    is_text: bool
    state: DeliveryState
    arrived_ms: int
    topic: str
    priority: int
    locked_ms: int | None
    settled_ms: int | None


def _batches(legacy: sqlite3.Connection, table: str, columns: set[str]) -> Iterator[list[_LegacyMessage]]:
    optional = {"topic": "NULL", "priority": "NULL", "lock_time": "NULL", "done_time": "NULL"}
    chosen = ", ".join(name if name in columns else default for name, default in optional.items())
    rows = legacy.execute(f"SELECT data, status, in_time, {chosen} FROM {_quoted(table)} ORDER BY in_time, message_id")
    batch: list[_LegacyMessage] = []
    batch_bytes = 0
    for row in rows:
        batch.append(_checked(table, *row))
        batch_bytes += len(batch[-1].body)
        if len(batch) == BATCH or batch_bytes >= BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
    if batch:
        yield batch


def _checked(
    table: str, data: object, status: object, in_time: object, topic: object, priority: object, lock_time: object,
    done_time: object,
) -> _LegacyMessage:  # fmt: skip
    """Return the message of a row, or raise InvalidValueError. Nothing is converted by guessing: no message may change."""

    def refusal(column: str, value: object, expected: str) -> InvalidValueError:
        return InvalidValueError(f"queue {table!r} has a message with {column} {describe(value)}; expected {expected}")

    def milliseconds(column: str, value: object) -> int:
        if not isinstance(value, int | float) or not 0 <= value < LATEST_MS * 1_000_000:
            raise refusal(column, value, "a time as a number of milliseconds or nanoseconds since 1970")
        time = int(value // 1_000_000 if value > NANOSECONDS_FROM else value)
        if time >= LATEST_MS:
            raise refusal(column, value, "a time before the year 2109")
        return time

    if not isinstance(data, str | bytes):
        raise refusal("data", data, "text or a blob")
    if not isinstance(status, int) or status not in STATES:
        raise refusal("status", status, "an integer from 0 to 3")
    if not isinstance(topic, str | None):
        raise refusal("topic", topic, "text")
    if not isinstance(priority, int | None):
        raise refusal("priority", priority, "an integer")
    return _LegacyMessage(
        data.encode() if isinstance(data, str) else data,
        isinstance(data, str),
        STATES[status],
        milliseconds("in_time", in_time),
        topic or "",
        priority or 0,
        milliseconds("lock_time", lock_time) if lock_time is not None else None,
        milliseconds("done_time", done_time) if done_time is not None else None,
    )


def _highest_priority(legacy: sqlite3.Connection, table: str, columns: set[str]) -> int:
    if "priority" not in columns:
        return 0
    (highest,) = legacy.execute(f"SELECT max(priority) FROM {_quoted(table)} WHERE typeof(priority) = 'integer'").fetchone()
    return max(0, highest or 0)


def _copy_batch(mq: EmbeddedBroker, queue: str, batch: list[_LegacyMessage], states: Counter[str]) -> None:
    with mq.working(queue) as (connection, queue_id, rules):
        (last,) = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
        for message in batch:
            state = message.state
            key_id = mq.intern(message.topic)
            rank = min(max(message.priority, 0), rules.max_priority)
            last = max(last + 1, message.arrived_ms << ID_CLOCK_BITS)
            properties = TEXT if message.is_text else None
            checksum = json_checksum("", message.topic, None, properties, message.body)
            connection.execute(
                "INSERT INTO messages (id, exchange, key_id, priority, created_at, properties, body, checksum) "
                "VALUES (?, '', ?, ?, ?, ?, ?, ?)",
                (last, key_id, rank, message.arrived_ms, properties, message.body, checksum),
            )
            # The process that locked a message is gone: its lease expires now, and the next pop returns it.
            lease_until = mq.now_ms() if state == DeliveryState.LOCKED else None
            attempts = 0 if state == DeliveryState.READY else 1
            settled_at = (message.settled_ms or mq.now_ms()) if state in (DeliveryState.DONE, DeliveryState.FAILED) else None
            connection.execute(
                "INSERT INTO deliveries VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?, ?)",
                (last, queue_id, state, rank, key_id, attempts, lease_until, message.locked_ms, settled_at),
            )
            states[state.name.lower()] += 1


def migrate_pattern(pattern: str) -> str:
    """Return the AMQP pattern for a MiniQ pattern, in which `*` matches any characters, including dots.

    If there is no equivalent, issue a `PatternWarning` and return the narrowest pattern that matches all the same keys.
    MiniQ ignored the case of ASCII letters; AMQP patterns are case-sensitive.
    """
    if not isinstance(pattern, str):
        raise InvalidValueError(f"a pattern must be a string, got {pattern!r}")
    if pattern == "*":
        return "#"
    if "*" in pattern.replace(".*.", "..").removeprefix("*.").removesuffix(".*").replace(".*.", "..") or "_" in pattern:
        warnings.warn(
            f"no AMQP pattern is equivalent to {pattern!r}, because AMQP wildcards match whole words; "
            "the returned pattern matches more keys",
            PatternWarning,
            stacklevel=2,
        )
    words = ["*.#" if "*" in word or "_" in word else word for word in pattern.split(".")]
    if pattern.startswith("*") and not pattern.startswith("*."):
        words[0] = "#"
    return ".".join(words)


def _quoted(name: str) -> str:
    """Return the name of a table as SQL; names cannot be parameters."""
    return '"' + name.replace('"', '""') + '"'


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)
