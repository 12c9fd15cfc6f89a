"""A disk that is full, locked or broken: publishers wait and are told why, everybody else goes on, and nothing is lost."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel
from tests.deadline import PATIENCE_S
from tests.server.process import BrokerProcess, broker_process
from tests.server.test_back_pressure import limit_file_size

KIB = 1024
ENOUGH = 300
"""Messages of 10 KiB that fit on no disk of the tests here."""


@contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """Hold SQLite's write lock, as the sqlite3 shell does in a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")


def publish(channel: Channel, numbers: range) -> None:
    for number in numbers:
        channel.publish("", "q", b"%03d" % number + bytes(10 * KIB), delivery_mode=2)


def blocked_reason(amqp: Amqp) -> str:
    method = amqp.next_event(0, PATIENCE_S).method
    assert isinstance(method, wire.ConnectionBlocked)
    return method.reason


def wait_for_confirms(channel: Channel, count: int) -> None:
    confirmed = 0
    while confirmed < count:
        confirmed = channel.next(PATIENCE_S).method.delivery_tag


def use_without_disk(port: int) -> None:
    """Do everything that needs no disk. Each call would time out if it were held up."""
    with Amqp(port) as amqp:
        channel = amqp.channel()
        channel.count("q")
        channel.declare_exchange("amq.topic", "topic", passive=True)
        name = channel.declare("", exclusive=True).queue
        channel.declare("transient")
        channel.bind(name, "amq.topic", "k")
        channel.consume(name, no_ack=True)
        channel.delete("transient")
        transaction = amqp.channel(2)
        transaction.call(wire.TxSelect(), wire.TxSelectOk)
        transaction.call(wire.TxCommit(), wire.TxCommitOk)
        assert channel.get(name) is None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path / "b.db") as broker:
        yield broker


def test_a_lock_held_by_another_process_does_not_freeze_the_broker(broker: BrokerProcess) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        with locked(broker.data):
            publish(channel, range(10))
            assert blocked_reason(amqp) == "another process has locked the data file"
            use_without_disk(broker.port)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        wait_for_confirms(channel, 10)
    broker.kill()
    broker.start()
    with Amqp(broker.port) as amqp:
        assert amqp.channel().count("q") == 10


def test_what_needs_no_disk_works_on_a_full_disk(broker: BrokerProcess) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        limit_file_size(broker.process.pid, 1000 * KIB)
        publish(channel, range(ENOUGH))
        assert blocked_reason(amqp) == "the broker cannot write to its disk"
        use_without_disk(broker.port)


def test_consumers_drain_a_full_disk_and_make_room_for_publishers(broker: BrokerProcess) -> None:
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, drain = amqp.channel(), other.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        publish(channel, range(50))
        wait_for_confirms(channel, 50)
        limit_file_size(broker.process.pid, 1000 * KIB)
        publish(channel, range(50, ENOUGH))
        blocked_reason(amqp)
        drain.qos(20)
        drain.consume("q")
        for expected in range(ENOUGH):
            event = drain.next(PATIENCE_S)
            assert int(event.body[:3]) == expected
            drain.ack(event.method.delivery_tag)
        wait_for_confirms(channel, ENOUGH)


@pytest.mark.parametrize("method", [wire.QueuePurge(0, "q"), wire.QueueDelete(0, "q")])
def test_a_purge_or_a_deletion_makes_room(broker: BrokerProcess, method: wire.Method) -> None:
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        limit_file_size(broker.process.pid, 1000 * KIB)
        publish(channel, range(ENOUGH))
        blocked_reason(amqp)
        other.channel().send(method)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)


def test_a_broker_on_a_full_disk_stops_with_an_error_and_keeps_what_it_confirmed(broker: BrokerProcess) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        publish(channel, range(10))
        wait_for_confirms(channel, 10)
        limit_file_size(broker.process.pid, 1000 * KIB)
        publish(channel, range(10, ENOUGH))
        blocked_reason(amqp)
        code, log = broker.stop_while(amqp)
    assert code == 1
    last = log.splitlines()[-1]
    assert "cannot be written: the disk reported an error (SQLITE_IOERR_WRITE)" in last
    assert "The broker stopped without writing" in last
    assert "Traceback" not in log
    broker.start()
    with Amqp(broker.port) as amqp:
        assert [int(body[:3]) for body in amqp.channel().drain("q")][:10] == list(range(10))


def test_publishers_are_blocked_before_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(tmp_path)

    def leave(free_bytes: int) -> None:
        values = list(real[:10])
        values[4] = free_bytes // real.f_frsize  # f_bavail
        monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(values))

    with running_broker(tmp_path / "b.db", disk_free_bytes=10 * KIB * KIB) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        leave(9 * KIB * KIB)
        channel.publish("", "q", b"m", delivery_mode=2)
        assert blocked_reason(amqp) == "low on disk space"
        use_without_disk(broker.port)
        leave(20 * KIB * KIB)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        wait_for_confirms(channel, 1)
