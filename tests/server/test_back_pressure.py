"""Fast publishers, slow consumers, a full disk: memory stays bounded, and other clients continue to work."""

from __future__ import annotations

import resource
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from holtmq.broker import memory as memory_module
from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp
from tests.deadline import PATIENCE_S, eventually
from tests.protocol.test_connection import publish
from tests.server.process import broker_process

KIB = 1024
FAIR_SHARE_BYTES = 256 * KIB * KIB
"""The limit for three round trips of another client. The event loop reads up to 8 MiB from a socket before it turns to the
next one, so 24 MiB are usual; the rest is for a test that has to wait for a processor. Starvation would be without limit."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def little_memory(folder: Path) -> str:
    """Return the path of a configuration that limits the memory."""
    config = folder / "holtmq.toml"
    config.write_text(f'memory_bytes = {100 * KIB * KIB}\ndurability = "off"\n')
    return str(config)


@pytest.mark.parametrize("delivery_mode", [1, 2])
def test_a_backlog_is_kept_on_disk_and_delivered_in_order(tmp_path: Path, delivery_mode: int) -> None:
    with broker_process(tmp_path / "b.db", "--config", little_memory(tmp_path)) as broker:
        before = resident_bytes(broker.process.pid)
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            for number in range(60_000):
                channel.publish("", "q", b"%06d" % number + bytes(4 * KIB), delivery_mode=delivery_mode)
            channel.settle()
            assert channel.count("q") == 60_000
            growth = resident_bytes(broker.process.pid) - before
            assert growth < 160 * KIB * KIB, f"{growth // KIB // KIB} MiB for a backlog of 240 MiB"
            channel.consume("q", no_ack=True)
            assert [int(event.body[:6]) for event in channel.deliveries(60_000)] == list(range(60_000))


def test_messages_that_were_in_memory_are_paged_out_for_others(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db", "--config", little_memory(tmp_path)) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        for queue in ("a", "b", "c"):
            channel.declare(queue)
            for number in range(15_000):
                channel.publish("", queue, b"%06d" % number + bytes(4 * KIB))
            channel.settle()
        assert resident_bytes(broker.process.pid) < 250 * KIB * KIB
        for queue in ("a", "b", "c"):
            channel.consume(queue, queue, no_ack=True)
            assert [int(event.body[:6]) for event in channel.deliveries(15_000)] == list(range(15_000))
            channel.call(wire.BasicCancel(queue), wire.BasicCancelOk)


def test_a_backlog_survives_a_kill_and_the_start_does_not_load_it(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db", "--durability", "normal") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            channel.confirm()
            for number in range(30_000):
                channel.publish("", "q", b"%06d" % number + bytes(2 * KIB), delivery_mode=2)
            confirmed = 0
            while confirmed < 30_000:
                confirmed = channel.next(PATIENCE_S).method.delivery_tag
        broker.kill()
        broker.start()
        assert resident_bytes(broker.process.pid) < 120 * KIB * KIB
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            assert channel.count("q") == 30_000
            channel.qos(100)
            channel.consume("q")
            for expected in range(30_000):
                event = channel.next()
                assert int(event.body[:6]) == expected
                channel.ack(event.method.delivery_tag)


def test_a_consumer_that_stops_reading_does_not_delay_others(tmp_path: Path) -> None:
    limited = broker_process(tmp_path / "b.db", "--config", little_memory(tmp_path))
    with limited as broker, Amqp(broker.port) as deaf, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q")
        channel.declare("other")
        deaf.channel().consume("q", no_ack=True)
        before = resident_bytes(broker.process.pid)
        for _ in range(60_000):
            channel.publish("", "q", bytes(4 * KIB))
        channel.put("other", b"still alive")
        assert channel.drain("other") == [b"still alive"]
        growth = resident_bytes(broker.process.pid) - before
        assert growth < 160 * KIB * KIB, f"{growth // KIB // KIB} MiB for a backlog of 240 MiB"


def test_priorities_and_expiry_apply_to_messages_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 50)
    with running_broker() as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True, max_priority=2)
        for number in range(300):
            channel.publish("", "q", b"%d.%d" % (number % 3, number), priority=number % 3, delivery_mode=2)
        channel.settle()
        expected = [b"%d.%d" % (p, n) for p in (2, 1, 0) for n in range(300) if n % 3 == p]
        assert channel.drain("q") == expected
        channel.declare("ttl", durable=True, message_ttl=100)
        for _ in range(300):
            channel.publish("", "ttl", b"m", delivery_mode=2)
        channel.settle()
        eventually(lambda: channel.count("ttl") == 0, "all messages to expire")


def test_a_full_disk_blocks_publishers_and_recovers(tmp_path: Path) -> None:
    """While the files may not grow, confirms wait and clients are told. Nothing is lost."""
    with broker_process(tmp_path / "b.db") as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        limit_file_size(broker.process.pid, 500 * KIB)
        for number in range(200):
            channel.publish("", "q", b"%03d" % number + bytes(10 * KIB), delivery_mode=2)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionBlocked)
        with Amqp(broker.port) as other:
            assert 0 < other.channel().count("q") <= 200  # the rest waits in the socket
        limit_file_size(broker.process.pid, resource.RLIM_INFINITY)
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        confirmed = 0
        while confirmed < 200:
            confirmed = channel.next(PATIENCE_S).method.delivery_tag
        broker.kill()
        broker.start()
        with Amqp(broker.port) as amqp:
            assert [int(body[:3]) for body in amqp.channel().drain("q")] == list(range(200))


def limit_file_size(pid: int, size: int) -> None:
    """Let a process fail to write beyond this size in any file, as if the disk were full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_a_fast_publisher_does_not_starve_others(tmp_path: Path) -> None:
    """While the broker serves one client, it reads a bounded number of bytes from another that never stops publishing.

    The limit is in bytes and not in seconds, so the test does not fail on a busy machine.
    """
    with broker_process(tmp_path / "b.db") as broker, Amqp(broker.port) as fast, Amqp(broker.port) as slow:
        flood, calm = fast.channel(), slow.channel()
        flood.declare("flood", max_length=100)
        calm.declare("calm")
        chunk, sent, stop = publish(flood.number, "flood", bytes(16 * KIB)) * 16, 0, threading.Event()

        def publish_without_a_pause() -> None:
            nonlocal sent
            while not stop.is_set():
                fast.write(chunk)
                sent += len(chunk)

        publisher = threading.Thread(target=publish_without_a_pause)
        publisher.start()
        try:
            eventually(lambda: calm.count("flood") == 100, "the flood")
            progress = [sent]
            for _ in range(30):
                calm.put("calm", b"m")
                assert calm.drain("calm") == [b"m"]
                progress.append(sent)
        finally:
            stop.set()
            publisher.join()
        assert progress[-1] > progress[0], "nothing was published meanwhile"
        assert max(after - before for before, after in pairwise(progress)) < FAIR_SHARE_BYTES


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_publisher_much_faster_than_the_disk_is_throttled(tmp_path: Path, durability: str) -> None:
    with broker_process(tmp_path / "b.db", "--durability", durability) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        before = resident_bytes(broker.process.pid)
        for _ in range(300):
            channel.publish("", "q", bytes(1024 * KIB), delivery_mode=2)
        channel.settle()
        assert channel.count("q") == 300
        assert resident_bytes(broker.process.pid) - before < 250 * KIB * KIB
