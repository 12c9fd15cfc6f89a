"""A backlog on a slow disk: reading it keeps nobody waiting but its consumers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holtmq.broker import memory as memory_module
from holtmq.errors import StoreError
from holtmq.store.chunk import Page, PageRequest
from holtmq.store.sql.batch_journal import BatchJournal
from holtmq.testing import TestBroker, running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel
from tests.deadline import PATIENCE_S

MESSAGES = 3000


class SlowDisk:
    """Lets a page be read when it is free, or fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_free = threading.Event()
        self.is_asked = threading.Event()
        self.failures = 0
        original = BatchJournal.fetch_beside

        def fetch(journal: BatchJournal, request: PageRequest) -> Page:
            self.is_asked.set()
            assert self.is_free.wait(PATIENCE_S)
            if self.failures:
                self.failures -= 1
                raise StoreError("the disk reported an error")
            return original(journal, request)

        monkeypatch.setattr(BatchJournal, "fetch_beside", fetch)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    monkeypatch.setattr(memory_module, "WINDOW_MESSAGES", 50)
    return SlowDisk(monkeypatch)


@pytest.fixture
def broker(tmp_path: Path, disk: SlowDisk) -> Iterator[TestBroker]:
    with running_broker(data=str(tmp_path / "b.db"), durability="off") as broker:
        yield broker
        disk.is_free.set()


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[Channel]:
    """A channel to a broker with a backlog in `q`."""
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        for number in range(MESSAGES):
            channel.publish("", "q", b"%d" % number, delivery_mode=2)
        channel.settle()
        yield channel


def test_other_clients_go_on_while_a_page_is_read(broker: TestBroker, channel: Channel, disk: SlowDisk) -> None:
    with Amqp(broker.port) as other:
        channel.consume("q", no_ack=True)
        assert disk.is_asked.wait(PATIENCE_S)
        bystander = other.channel()
        bystander.declare("mine", durable=True)
        bystander.publish("", "mine", b"alive", delivery_mode=2)
        bystander.consume("mine", no_ack=True)
        assert [event.body for event in bystander.deliveries(1)] == [b"alive"]
        disk.is_free.set()
        assert [int(event.body) for event in channel.deliveries(MESSAGES)] == list(range(MESSAGES))


def test_a_page_that_cannot_be_read_is_read_again(channel: Channel, disk: SlowDisk) -> None:
    disk.failures = 1
    disk.is_free.set()
    channel.consume("q", no_ack=True)
    assert [int(event.body) for event in channel.deliveries(MESSAGES)] == list(range(MESSAGES))


def test_a_page_of_a_queue_that_was_purged_meanwhile_is_dropped(broker: TestBroker, channel: Channel, disk: SlowDisk) -> None:
    with Amqp(broker.port) as other:
        channel.consume("q", no_ack=True)
        assert disk.is_asked.wait(PATIENCE_S)
        delivered = MESSAGES - other.channel().call(wire.QueuePurge(0, "q"), wire.QueuePurgeOk).message_count
        assert [int(event.body) for event in channel.deliveries(delivered)] == list(range(delivered))
        channel.publish("", "q", b"-1", delivery_mode=2)
        disk.is_free.set()
        assert [int(event.body) for event in channel.deliveries(1)] == [-1]
