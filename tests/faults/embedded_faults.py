"""What may go wrong with the processes that use a HoltMQ file."""

from __future__ import annotations

import errno
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.embedded_run import DAY_S, EmbeddedFault, EmbeddedRun
from tests.faults.shim import Call, Outcome

ENDINGS = ("", "-wal", ".db", "-shm")


@contextmanager
def kill(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL for some of the workers."""
    for pid in rng.sample(sorted(run.workers.running), rng.randint(0, len(run.workers.running))):
        run.workers.signal(pid, signal.SIGKILL)
    yield


@contextmanager
def die_at_a_call(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL in the middle of a write, at a sync or at a read."""
    calls = rng.choice((Call.WRITE, Call.WRITE, Call.SYNC, Call.READ))
    run.shim.set_rule(calls, Outcome.DIE, ending=rng.choice(ENDINGS), skip=rng.randint(0, 100), count=rng.randint(1, 2))
    yield


@contextmanager
def pause(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGSTOP for one worker, perhaps within a transaction. The others wait for it."""
    stopped = rng.sample(sorted(run.workers.running), min(1, len(run.workers.running)))
    for pid in stopped:
        run.workers.signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            run.workers.signal(pid, signal.SIGCONT)


@contextmanager
def read_error(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    run.shim.set_rule(Call.READ, errno.EIO, ending=rng.choice(ENDINGS), skip=rng.randint(0, 20), count=rng.randint(1, 20))
    yield


@contextmanager
def write_error(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    error = rng.choice((errno.EIO, errno.ENOSPC))
    run.shim.set_rule(Call.WRITE, error, ending=rng.choice(ENDINGS), skip=rng.randint(0, 40), count=rng.randint(1, 20))
    yield


@contextmanager
def sync_error(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    run.shim.set_rule(Call.SYNC, errno.EIO, ending=rng.choice(ENDINGS), skip=rng.randint(0, 10), count=rng.randint(1, 20))
    yield


@contextmanager
def short_transfers(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """Reads and writes that do half of what they were asked, which is no error."""
    run.shim.set_rule(Call.READ | Call.WRITE, Outcome.SHORT, count=rng.randint(1, 200))
    yield


@contextmanager
def disk_full(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    run.shim.set_space(rng.randint(0, 50_000))
    yield


@contextmanager
def error_then_kill(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL for all workers while nothing can be written."""
    run.shim.set_rule(rng.choice((Call.WRITE, Call.SYNC)), errno.EIO, skip=rng.randint(0, 20), count=1000)
    yield
    for pid in run.workers.running:
        run.workers.signal(pid, signal.SIGKILL)


@contextmanager
def clock_jump(run: EmbeddedRun, rng: random.Random) -> Iterator[None]:
    """The wall clock jumps. Leases may end by that, and the order of messages may not."""
    run.shim.set_clock(rng.choice((-30 * DAY_S, -3600, 3600, 30 * DAY_S)))
    yield


FAULTS: tuple[EmbeddedFault, ...] = (
    kill,
    die_at_a_call,
    pause,
    read_error,
    write_error,
    sync_error,
    short_transfers,
    disk_full,
    error_then_kill,
    clock_jump,
)
