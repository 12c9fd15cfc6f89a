"""What may go wrong with a broker and its clients."""

from __future__ import annotations

import errno
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from holtmq.wire import methods as wire
from tests.deadline import PATIENCE_S
from tests.faults.broker_run import BrokerRun, Fault
from tests.faults.client import Client, Consumer
from tests.faults.ledger import ViolationError
from tests.faults.shim import Call, Outcome

DAY_S = 86_400


@contextmanager
def nothing(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    yield


@contextmanager
def kill(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL from outside, at any moment."""
    _kill(run, rng)
    yield


@contextmanager
def die_at_a_call(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL in the middle of a write, at a sync or at a read."""
    run.is_death_expected = True
    calls = rng.choice((Call.WRITE, Call.WRITE, Call.SYNC, Call.READ))
    run.shim.set_rule(calls, Outcome.DIE, ending=rng.choice(("", "-wal", ".db")), skip=rng.randint(0, 40))
    yield
    if run.is_death_expected:  # it did not come to that call
        _kill(run, rng)


@contextmanager
def terminate(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGTERM: the broker says goodbye and writes what it has."""
    _terminate(run)
    run.restart(rng)
    yield


@contextmanager
def pause(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGSTOP for a while. The clients go on."""
    run.broker.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        run.broker.process.send_signal(signal.SIGCONT)


@contextmanager
def read_error(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    run.shim.set_rule(Call.READ, errno.EIO, ending=rng.choice(("", "-wal", ".db")), skip=rng.randint(0, 10), count=_few(rng))
    yield


@contextmanager
def write_error(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    error = rng.choice((errno.EIO, errno.ENOSPC))
    run.shim.set_rule(Call.WRITE, error, ending=rng.choice(("", "-wal", ".db")), skip=rng.randint(0, 20), count=_few(rng))
    yield


@contextmanager
def sync_error(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    run.shim.set_rule(Call.SYNC, errno.EIO, ending=rng.choice(("", "-wal", ".db")), skip=rng.randint(0, 5), count=_few(rng))
    yield


@contextmanager
def short_transfers(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """Reads and writes that do half of what they were asked, which is no error."""
    run.shim.set_rule(rng.choice((Call.READ, Call.WRITE, Call.READ | Call.WRITE)), Outcome.SHORT, count=rng.randint(1, 200))
    yield


@contextmanager
def disk_full(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """No space is left. Clients that do not publish go on."""
    run.shim.set_space(rng.randint(0, 100_000))
    yield
    with Client(run.broker.port, "bystander") as client:
        client.call(wire.QueueDeclare(0, "plain", True, False, False, False, False, {}), wire.QueueDeclareOk)
        client.call(wire.QueueDeclare(0, "", False, False, True, False, False, {}), wire.QueueDeclareOk)


@contextmanager
def write_error_then_kill(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGKILL while a batch could not be written."""
    run.shim.set_rule(rng.choice((Call.WRITE, Call.SYNC)), errno.EIO, skip=rng.randint(0, 5), count=1000)
    yield
    _kill(run, rng)


@contextmanager
def disk_full_then_terminate(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """SIGTERM while the disk is full."""
    run.shim.set_space(rng.randint(0, 50_000))
    yield
    _terminate(run, codes=(0, 1))
    run.restart(rng)


@contextmanager
def error_at_start(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """A start that meets an error. It fails or succeeds, and the next one succeeds."""
    run.broker.kill()
    run.shim.set_rule(rng.choice((Call.READ, Call.WRITE, Call.SYNC)), errno.EIO, skip=rng.randint(0, 30), count=_few(rng))
    try:
        run.broker.start()
    except RuntimeError:
        pass
    else:
        run.broker.kill()
    run.restart(rng)
    yield


@contextmanager
def clock_jump(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """The wall clock jumps by up to a month, and back. No message expires by that, and no queue."""
    run.shim.set_clock(rng.choice((-30 * DAY_S, -DAY_S, -3600, 7200, DAY_S, 30 * DAY_S)))
    yield
    run.shim.set_clock(0)


@contextmanager
def locked_file(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """Another process holds the write lock of the file."""
    with closing(sqlite3.connect(run.broker.data, isolation_level=None, timeout=PATIENCE_S)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def cut_connections(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """Clients that vanish, with or without a reset, and in the middle of a frame."""
    for client in rng.sample(run.clients, rng.randint(1, len(run.clients))):
        client.cut(rng)
    run.connect(rng)
    yield


@contextmanager
def slow_readers(run: BrokerRun, rng: random.Random) -> Iterator[None]:
    """Consumers that stop to read for a while."""
    slow = [client for client in run.clients if isinstance(client, Consumer)]
    for client in slow:
        client.is_reading = False
    yield
    for client in slow:
        client.is_reading = True


def _few(rng: random.Random) -> int:
    return rng.choice((1, 1, 2))


def _kill(run: BrokerRun, rng: random.Random) -> None:
    run.broker.process.kill()
    run.broker.process.wait()
    run.restart(rng)


def _terminate(run: BrokerRun, codes: tuple[int, ...] = (0,)) -> None:
    run.broker.process.terminate()
    deadline = time.monotonic() + PATIENCE_S
    while run.broker.process.poll() is None:
        if time.monotonic() > deadline:
            raise ViolationError(f"the broker did not stop within {PATIENCE_S:g} s")
        run.exchange(0.01)
    if run.broker.process.returncode not in codes:
        raise ViolationError(f"the broker stopped with {run.broker.process.returncode}, expected one of {codes}")


FAULTS: tuple[Fault, ...] = (
    nothing,
    kill,
    die_at_a_call,
    terminate,
    pause,
    read_error,
    write_error,
    sync_error,
    short_transfers,
    disk_full,
    write_error_then_kill,
    disk_full_then_terminate,
    error_at_start,
    clock_jump,
    locked_file,
    cut_connections,
    slow_readers,
)
SLOW: tuple[Fault, ...] = (disk_full_then_terminate,)
"""Faults that take seconds. They are left to `make soak`."""
QUICK = tuple(fault for fault in FAULTS if fault not in SLOW)
