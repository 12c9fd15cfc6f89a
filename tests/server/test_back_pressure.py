"""Fast publishers, slow consumers, a full disk: memory stays bounded, and other clients go on."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp
from tests.server.process import broker_process

KIB = 1024


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_a_backlog_lives_on_disk_and_comes_back_in_order(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db", "--durability", "off") as broker:
        before = resident_bytes(broker.process.pid)
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q")
            for number in range(60_000):
                channel.publish("", "q", b"%06d" % number + bytes(4 * KIB))
            channel.settle()
            assert channel.count("q") == 60_000
            growth = resident_bytes(broker.process.pid) - before
            assert growth < 160 * KIB * KIB, f"{growth // KIB // KIB} MiB for a backlog of 240 MiB"
            channel.consume("q", no_ack=True)
            assert [int(event.body[:6]) for event in channel.deliveries(60_000)] == list(range(60_000))


def test_a_backlog_is_there_after_a_kill_and_the_start_does_not_read_it(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db", "--durability", "normal") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            channel.confirm()
            for number in range(30_000):
                channel.publish("", "q", b"%06d" % number + bytes(2 * KIB), delivery_mode=2)
            confirmed = 0
            while confirmed < 30_000:
                confirmed = channel.next().method.delivery_tag
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


def test_a_consumer_that_stops_reading_holds_up_nobody_else(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db") as broker, Amqp(broker.port) as deaf, Amqp(broker.port) as amqp:
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


def test_priorities_and_expiry_hold_for_what_is_on_disk() -> None:
    import holtmq.broker.queue as queue_module

    window, queue_module.WINDOW_MESSAGES = queue_module.WINDOW_MESSAGES, 50
    try:
        with running_broker() as broker, Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", max_priority=2)
            for number in range(300):
                channel.publish("", "q", b"%d.%d" % (number % 3, number), priority=number % 3)
            channel.settle()
            expected = [b"%d.%d" % (p, n) for p in (2, 1, 0) for n in range(300) if n % 3 == p]
            assert channel.drain("q") == expected
            channel.declare("ttl", message_ttl=100)
            for _ in range(300):
                channel.publish("", "ttl", b"m")
            channel.settle()
            deadline = time.monotonic() + 10
            while channel.count("ttl") and time.monotonic() < deadline:
                time.sleep(0.02)
            assert channel.count("ttl") == 0
    finally:
        queue_module.WINDOW_MESSAGES = window


def test_a_full_disk_blocks_publishers_and_recovers(tmp_path: Path) -> None:
    """The file may not grow beyond a limit for a while: confirms wait, clients are told, and nothing is lost."""
    script = tmp_path / "serve.py"
    script.write_text(SMALL_DISK)
    flag = tmp_path / "full"
    flag.touch()
    command = [sys.executable, str(script), str(tmp_path / "b.db"), str(flag)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with Amqp(port) as amqp:
                channel = amqp.channel()
                channel.declare("q", durable=True)
                channel.confirm()
                for number in range(200):
                    channel.publish("", "q", b"%03d" % number + bytes(10 * KIB), delivery_mode=2)
                blocked = amqp.next_event(0, 20)
                assert isinstance(blocked.method, wire.ConnectionBlocked)
                with Amqp(port) as other:
                    assert 0 < other.channel().count("q") <= 200  # the rest waits in the socket
                flag.unlink()
                assert isinstance(amqp.next_event(0, 20).method, wire.ConnectionUnblocked)
                confirmed = 0
                while confirmed < 200:
                    confirmed = channel.next(20).method.delivery_tag
        finally:
            process.kill()
            process.communicate()
    with broker_process(tmp_path / "b.db") as broker, Amqp(broker.port) as amqp:
        assert [int(body[:3]) for body in amqp.channel().drain("q")] == list(range(200))


SMALL_DISK = """
import sys, threading, time
from pathlib import Path
from holtmq.config import Config
from holtmq.server.run import running

with running(Config(data=sys.argv[1], amqp_port=0, http_port=-1)) as server:
    writer = server._journal._database.connection
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages + 50}")
    print(server.address.rsplit(":", 1)[1], flush=True)
    while Path(sys.argv[2]).exists():
        time.sleep(0.05)
    while True:
        try:
            writer.execute("PRAGMA max_page_count = 1000000000")
            time.sleep(3600)
        except Exception:
            time.sleep(0.01)
"""


def test_a_fast_publisher_does_not_starve_others(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db") as broker, Amqp(broker.port) as fast, Amqp(broker.port) as slow:
        channel, other = fast.channel(), slow.channel()
        channel.declare("flood")
        other.declare("calm")
        for _ in range(50):
            for _ in range(200):
                channel.publish("", "flood", bytes(KIB))
            other.put("calm", b"m")
            assert other.drain("calm") == [b"m"]
        assert channel.count("flood") == 10_000


@pytest.mark.parametrize("durability", ["full", "normal"])
def test_a_publisher_much_faster_than_the_disk_is_held_back(tmp_path: Path, durability: str) -> None:
    with broker_process(tmp_path / "b.db", "--durability", durability) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        before = resident_bytes(broker.process.pid)
        for _ in range(300):
            channel.publish("", "q", bytes(1024 * KIB), delivery_mode=2)
        channel.settle()
        assert channel.count("q") == 300
        assert resident_bytes(broker.process.pid) - before < 250 * KIB * KIB
