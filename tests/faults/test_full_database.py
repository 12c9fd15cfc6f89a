"""A database whose disk is full: publishers wait and are told why, puts fail, and nothing is lost."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import holtmq
from holtmq.errors import StoreFullError
from holtmq.testing import running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel
from tests.deadline import PATIENCE_S
from tests.faults.shim import Shim, build_shim
from tests.management.http import Http
from tests.peers.peer import GCC, POSTGRES
from tests.peers.postgres import Postgres, postgres_folder, running_postgres_in
from tests.server.test_disk_faults import blocked_reason, use_without_disk, wait_for_confirms

pytestmark = pytest.mark.peer(GCC, POSTGRES)
TABLES = Path("base")
"""Where a server has its tables, as it names them: its working directory is that of its data."""
BODY_BYTES = 10_000
CHANCE = random.Random(1)


class Disk(NamedTuple):
    """The disk of a server, except for its WAL."""

    shim: Shim
    server: Postgres

    def fill(self, left: int) -> None:
        """Leave room for some bytes."""
        self.shim.set_space(left)

    def make_room(self) -> None:
        self.shim.heal()


@pytest.fixture(scope="module")
def database() -> Iterator[Disk]:
    with postgres_folder() as folder:
        control = folder / "control"
        shim = Shim(build_shim(folder), TABLES, control)
        control.chmod(0o666)  # the server has a user of its own
        with running_postgres_in(folder, environment=shim.environment) as server:
            yield Disk(shim, server)


@pytest.fixture
def disk(database: Disk) -> Iterator[Disk]:
    yield database
    database.make_room()


def bodies(numbers: range) -> list[bytes]:
    """Return bodies that no database can compress."""
    return [b"%03d" % number + CHANCE.randbytes(BODY_BYTES) for number in numbers]


def publish(channel: Channel, some: list[bytes]) -> None:
    for body in some:
        channel.publish("", "q", body, delivery_mode=2)


def test_the_broker_blocks_publishers_until_there_is_room_and_loses_nothing(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    url, first, second = disk.server.url(), bodies(range(50)), bodies(range(50, 300))
    with running_broker(data=url, http_port=0) as broker, Amqp(broker.port) as amqp:
        assert broker.http_url is not None
        http = Http(broker.http_url)
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        publish(channel, first)
        wait_for_confirms(channel, 50)
        with caplog.at_level(logging.ERROR):
            disk.fill(500_000)
            publish(channel, second)
            assert blocked_reason(amqp) == "low on disk space"
        assert "publishers are blocked until a retry succeeds: low on disk space" in caplog.text
        assert "could not extend file" in caplog.text
        health = http.call("GET", "/api/health/checks/alarms")
        assert (health.status, health.body["alarms"]) == (503, ["disk"])
        use_without_disk(broker.port)
        disk.make_room()
        assert isinstance(amqp.next_event(0, PATIENCE_S).method, wire.ConnectionUnblocked)
        wait_for_confirms(channel, 300)
        assert http.call("GET", "/api/health/checks/alarms").status == 200
    with running_broker(data=url) as broker, Amqp(broker.port) as amqp:
        assert amqp.channel().drain("q") == first + second


def test_consumers_receive_what_is_confirmed_while_the_disk_is_full(disk: Disk) -> None:
    first, second = bodies(range(50)), bodies(range(50, 150))
    with running_broker(data=disk.server.url()) as broker, Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, consumer = amqp.channel(), other.channel()
        channel.declare("q", durable=True)
        channel.confirm()
        publish(channel, first)
        wait_for_confirms(channel, 50)
        disk.fill(0)
        publish(channel, second)
        assert blocked_reason(amqp) == "low on disk space"
        consumer.qos(10)
        consumer.consume("q")
        for body in first:
            event = consumer.next(PATIENCE_S)
            assert event.body == body
            consumer.ack(event.method.delivery_tag)
        disk.make_room()
        consumer.qos(0)
        consumer.consume("q")
        assert [consumer.next(PATIENCE_S).body for _ in second] == second
        wait_for_confirms(channel, 150)


def test_a_put_says_that_the_disk_is_full_and_what_was_put_before_is_there(disk: Disk) -> None:
    wanted = bodies(range(300))
    with holtmq.open(disk.server.url()) as mq:
        mq.declare_queue("q")
        queue = mq.queue("q")
        stored = wanted[:10]
        queue.put_many([(body, "k") for body in stored])
        disk.fill(300_000)
        with pytest.raises(StoreFullError, match=r"could not extend file .*; nothing was written"):  # noqa: PT012  # one of them
            for body in wanted[10:]:
                queue.put(body, "k")
                stored.append(body)
        assert 10 < len(stored) < 300
        with pytest.raises(StoreFullError):
            queue.put_many([(body, "k") for body in wanted])
        disk.make_room()
        queue.put(wanted[-1], "k")
        taken = [message.body for message in iter(lambda: _taken(queue), None)]
        assert taken == [*stored, wanted[-1]]


def _taken(queue: holtmq.embedded.queue_handle.QueueHandle) -> holtmq.Message | None:
    message = queue.pop()
    if message is not None:
        message.ack()
    return message
