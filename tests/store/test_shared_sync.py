"""With full durability, processes that share a file sync its WAL themselves: before a call returns, once for all threads."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import holtmq
from holtmq.errors import StoreError
from holtmq.store.sqlite import database as database_module
from holtmq.store.sqlite.shared_sync import SharedSync, can_share_syncs
from tests.deadline import PATIENCE_S, eventually

pytestmark = pytest.mark.skipif(not can_share_syncs(), reason="SQLite syncs by itself here")


class Disk:
    """Stands for `os.fdatasync`: counts syncs, holds them up, or lets them fail."""

    def __init__(self) -> None:
        self.begun = 0
        self.failures = 0
        self._is_free = threading.Event()
        self._is_free.set()

    def __call__(self, descriptor: int) -> None:
        self.begun += 1
        assert self._is_free.wait(PATIENCE_S)
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, "Input/output error")

    def hold(self) -> None:
        self._is_free.clear()

    def release(self) -> None:
        self._is_free.set()

    def count(self, deed: Callable[[], object]) -> int:
        """Return the number of syncs that a call needs."""
        before = self.begun
        deed()
        return self.begun - before


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(os, "fdatasync", disk)
    yield disk
    disk.release()


@pytest.fixture
def mq(disk: Disk, tmp_path: Path) -> Iterator[holtmq.EmbeddedBroker]:
    with holtmq.open(tmp_path / "a.db") as mq:
        yield mq


@pytest.fixture
def queue(mq: holtmq.EmbeddedBroker) -> holtmq.QueueHandle:
    mq.declare_queue("dead")
    queue = mq.declare_queue("q", dead_letter_queue="dead")
    queue.put("first", "a known key")
    return queue


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def test_what_must_survive_a_power_cut_waits_for_one_sync(disk: Disk, queue: holtmq.QueueHandle) -> None:
    queue.put_many([("m", "a known key")] * 5)
    held = queue.pop_many(5)
    assert disk.count(lambda: queue.put("m", "a known key")) == 1
    assert disk.count(lambda: queue.put("m", "a new key")) == 1
    assert disk.count(lambda: queue.put_many([("m", "k")] * 3)) == 1
    assert disk.count(held[0].ack) == 1
    assert disk.count(held[1].reject) == 1
    assert disk.count(held[2].retry) == 1
    assert disk.count(lambda: queue.ack_many(held[3:])) == 1
    assert queue.size() == 7


def test_a_lease_does_not_wait_for_the_disk(disk: Disk, queue: holtmq.QueueHandle) -> None:
    queue.put("second", "k")

    def lease() -> None:
        first, second = queue.pop(), queue.pop("k")
        assert first is not None
        assert second is not None
        second.extend(100)
        queue.give_back([first])
        queue.size()

    assert disk.count(lease) == 0


def test_a_transaction_waits_once_at_its_end(disk: Disk, mq: holtmq.EmbeddedBroker, queue: holtmq.QueueHandle) -> None:
    def replace() -> None:
        with mq.transaction():
            message = queue.pop()
            assert message is not None
            message.ack()
            queue.put("result", "k")
            assert disk.begun == before

    before = disk.begun
    assert disk.count(replace) == 1


def test_threads_share_a_sync(
    disk: Disk, mq: holtmq.EmbeddedBroker, queue: holtmq.QueueHandle, pool: ThreadPoolExecutor
) -> None:
    before = disk.begun
    disk.hold()
    puts = [pool.submit(queue.put, "m", "a known key")]
    eventually(lambda: disk.begun == before + 1, "the first sync")
    puts += [pool.submit(queue.put, "m", "a known key") for _ in range(5)]
    eventually(lambda: mq.database.commits.waiting == 5, "five threads that wait")
    assert not any(put.done() for put in puts)
    disk.release()
    assert len({put.result(PATIENCE_S) for put in puts}) == 6
    assert disk.begun == before + 2


def test_a_sync_that_runs_already_does_not_count(tmp_path: Path, disk: Disk, pool: ThreadPoolExecutor) -> None:
    (tmp_path / "wal").touch()
    sync = SharedSync(str(tmp_path / "wal"))
    disk.hold()
    first = pool.submit(sync.wait)
    eventually(lambda: disk.begun == 1, "the first sync")
    late = [pool.submit(sync.wait) for _ in range(3)]
    disk.release()
    for waiting in (first, *late):
        waiting.result(PATIENCE_S)
    assert 2 <= disk.begun <= 4
    sync.close()


def test_a_commit_after_a_failed_sync_is_not_confirmed(disk: Disk, queue: holtmq.QueueHandle) -> None:
    disk.failures = 1
    with pytest.raises(StoreError, match=r"the disk reported an error when its WAL was synced .* unknown"):
        queue.put("doubtful", "k")


def test_after_a_failed_sync_the_wal_is_written_to_the_file(
    disk: Disk, mq: holtmq.EmbeddedBroker, queue: holtmq.QueueHandle
) -> None:
    """The operating system drops what it failed to write, so the next sync would succeed without it."""
    wal = Path(f"{mq.path}-wal")
    assert wal.stat().st_size > 0
    disk.failures = 1
    with pytest.raises(StoreError):
        queue.put("doubtful", "k")
    assert wal.stat().st_size == 0
    assert disk.count(lambda: queue.put("sure", "k")) == 1


def test_nothing_is_confirmed_until_the_wal_is_written_to_the_file(
    disk: Disk, queue: holtmq.QueueHandle, tmp_path: Path
) -> None:
    with holtmq.open(tmp_path / "a.db", timeout_s=0.01) as other:
        impatient, reader = other.queue("q"), other.database.reader()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()  # needs the WAL as it is
        queue.put("newer than the reader", "k")
        disk.failures = 1
        for _ in range(2):
            with pytest.raises(StoreError):
                impatient.put("doubtful", "k")
        reader.execute("COMMIT")
        impatient.put("sure", "k")


def test_a_failed_sync_fails_all_threads_that_wait(
    disk: Disk, mq: holtmq.EmbeddedBroker, queue: holtmq.QueueHandle, pool: ThreadPoolExecutor
) -> None:
    before = disk.begun
    disk.hold()
    first = pool.submit(queue.put, "m", "a known key")
    eventually(lambda: disk.begun == before + 1, "the first sync")
    others: list[Future[int]] = [pool.submit(queue.put, "m", "a known key") for _ in range(3)]
    eventually(lambda: mq.database.commits.waiting == 3, "three threads that wait")
    disk.failures = 2
    disk.release()
    for put in (first, *others):
        with pytest.raises(StoreError, match="was synced"):
            put.result(PATIENCE_S)


def test_closing_confirms_what_is_committed(disk: Disk, tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    mq = holtmq.open(tmp_path / "a.db")
    queue = mq.queue("q")
    before = disk.begun
    disk.hold()
    put = pool.submit(queue.put, "m", "k")
    eventually(lambda: disk.begun == before + 1, "the sync of the put")
    closing = pool.submit(mq.close)
    disk.release()
    closing.result(PATIENCE_S)
    assert put.result(PATIENCE_S)


def test_a_forked_child_syncs_for_itself(tmp_path: Path) -> None:
    with holtmq.open(tmp_path / "a.db") as mq:
        queue = mq.queue("q")
        queue.put("of the parent", "k")
        child = os.fork()
        if child == 0:
            try:
                queue.put("of the child", "k")
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        queue.put("of the parent", "k")
        assert queue.size() == 3


def exit_code(child: int) -> str:
    """Return the exit code of a child, or nothing while it runs."""
    ended, status = os.waitpid(child, os.WNOHANG)
    return str(os.waitstatus_to_exitcode(status)) if ended else ""


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(
    disk: Disk, queue: holtmq.QueueHandle, pool: ThreadPoolExecutor
) -> None:
    before = disk.begun
    disk.hold()
    put = pool.submit(queue.put, "of the parent", "a known key")
    eventually(lambda: disk.begun == before + 1, "the sync of the parent")
    child = os.fork()
    if child == 0:
        try:
            disk.release()
            queue.put("of the child", "a known key")
            os._exit(0)
        finally:
            os._exit(1)
    try:
        status = eventually(lambda: exit_code(child), "the end of the child")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    assert status == "0"
    disk.release()
    assert put.result(PATIENCE_S)


@pytest.mark.parametrize("path", ["a.db", ":memory:"])
def test_where_syncs_cannot_be_shared_sqlite_syncs(
    path: str, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "can_share_syncs", lambda: False)
    with holtmq.open(path if path == ":memory:" else tmp_path / path) as mq:
        assert mq.database.connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert disk.count(lambda: mq.queue("q").put("m", "k")) == 0
