"""A kill -9 at any moment loses nothing that was confirmed."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress

import pytest

import holtmq
from holtmq.database_url import is_url
from holtmq.errors import StoreOwnedError
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import eventually
from tests.places import look, look_for_one
from tests.server.process import BrokerProcess, broker_process

ROUNDS = 6


class Traffic:
    """Publish numbered messages with confirms and acknowledge some of them, until the broker is gone."""

    def __init__(self, port: int, queue: str, first: int) -> None:
        self._port = port
        self._queue = queue
        self.next = first
        self.confirmed: set[int] = set()
        self.maybe_acked: set[int] = set()
        self.seen: set[int] = set()
        self._threads = [threading.Thread(target=run) for run in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def wait_for_confirms(self, count: int) -> None:
        eventually(lambda: len(self.confirmed) >= count, f"{count} confirms")

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        with suppress(OSError, ClosedError), Amqp(self._port) as amqp:
            channel = amqp.channel()
            channel.confirm()
            first, published, confirmed = self.next, 0, 0
            while True:
                for _ in range(random.randint(1, 30)):
                    published += 1
                    self.next += 1
                    channel.publish("", self._queue, b"%d" % (first + published), delivery_mode=2)
                while confirmed < published:
                    event = channel.next()
                    assert isinstance(event.method, wire.BasicAck)
                    assert event.method.multiple or event.method.delivery_tag == confirmed + 1
                    self.confirmed.update(range(first + confirmed + 1, first + event.method.delivery_tag + 1))
                    confirmed = event.method.delivery_tag

    def _consume(self) -> None:
        with suppress(OSError, ClosedError), Amqp(self._port) as amqp:
            channel = amqp.channel()
            channel.qos(50)
            channel.consume(self._queue)
            while True:
                event = channel.next(timeout_s=60)
                self.seen.add(int(event.body))
                if random.random() < 0.8:
                    self.maybe_acked.add(int(event.body))
                    channel.ack(event.method.delivery_tag)
                else:
                    channel.nack(event.method.delivery_tag, requeue=True)


def test_nothing_confirmed_is_lost_or_comes_twice_and_redeliveries_are_marked(durable_place: str) -> None:
    with broker_process(durable_place, "--durability", "normal") as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("q", durable=True)
        due: set[int] = set()
        gone: set[int] = set()
        first = 0
        for _ in range(ROUNDS):
            traffic = Traffic(broker.port, "q", first)
            traffic.wait_for_confirms(random.randint(1, 500))
            broker.kill()
            traffic.join()
            first = traffic.next + 1
            due |= traffic.confirmed
            gone |= traffic.maybe_acked
            broker.start()
            flags = _peek_flags(broker.port, "q")
            assert not [number for number, again in flags if number in traffic.seen and not again], "redelivered, not marked"
            left = [number for number, _ in flags]
            assert len(left) == len(set(left)), "a message is in the queue twice"
            assert due - set(left) <= gone, "a confirmed message is lost"
            due &= set(left)
        broker.stop()
    if not is_url(durable_place):
        assert look_for_one(durable_place, "PRAGMA integrity_check") == "ok"


def _peek(port: int, queue: str) -> list[int]:
    """Return what is in a queue, and leave it there."""
    return [number for number, _ in _peek_flags(port, queue)]


def _peek_flags(port: int, queue: str) -> list[tuple[int, bool]]:
    """Return what is in a queue, and whether it was delivered before."""
    with Amqp(port) as amqp:
        channel = amqp.channel()
        count = channel.count(queue)
        channel.consume(queue)
        found = [(int(event.body), event.method.redelivered) for event in channel.deliveries(count)]
        assert channel.count(queue) == 0
        channel.close()
    return found


def test_acknowledged_messages_do_not_come_back(durable_place: str) -> None:
    with broker_process(durable_place) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel(1)
            channel.declare("q", durable=True)
            _publish_confirmed(amqp.channel(2), "q", range(100))
            for _ in range(60):
                event = channel.get("q", no_ack=False)
                assert event is not None
                channel.ack(event.method.delivery_tag)
            channel.settle()
            _publish_confirmed(amqp.channel(2), "q", [100])  # its confirm comes with the acks before it on disk
        broker.kill()
        broker.start()
        assert _peek(broker.port, "q") == list(range(60, 101))


def _publish_confirmed(channel: Channel, queue: str, numbers: range | list[int]) -> None:
    channel.confirm()
    for number in numbers:
        channel.publish("", queue, b"%d" % number, delivery_mode=2)
    confirmed = 0
    while confirmed < len(numbers):
        event = channel.next()
        assert isinstance(event.method, wire.BasicAck)
        confirmed = event.method.delivery_tag
    channel.close()


def test_the_topology_survives_a_kill_as_soon_as_it_is_declared(durable_place: str) -> None:
    with broker_process(durable_place) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare_exchange("e", "headers", durable=True)
            channel.declare("q", durable=True, max_length=5)
            channel.bind("q", "e", "k", {"x-match": "any", "n": 1})
            channel.bind("q", "e", "k", {"x-match": "any", "n": 2})
            channel.declare("gone", durable=True)
            channel.declare("transient")
            channel.declare_exchange("transient", "fanout")
            channel.delete("gone")
        broker.kill()
        broker.start()
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare_exchange("e", "headers", durable=True)
            channel.declare("q", durable=True, max_length=5)
            for number in (1, 2, 3):
                channel.publish("e", "k", b"%d" % number, headers={"n": number})
            channel.settle()
            assert channel.drain("q") == [b"1", b"2"]
            for name in ("gone", "transient"):
                with pytest.raises(ClosedError, match="404"):
                    channel.declare(name, passive=True)
                channel = channel.reopen()


def test_transient_messages_do_not_survive_and_delivered_ones_are_marked_redelivered(durable_place: str) -> None:
    with broker_process(durable_place) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            channel.publish("", "q", b"transient", delivery_mode=1)
            channel.settle()
            _publish_confirmed(amqp.channel(2), "q", [1, 2])
            assert channel.get("q", no_ack=False) is not None
            seen = channel.get("q", no_ack=False)
            assert seen is not None
            assert seen.body == b"1"
            channel.settle()
        code, _ = broker.stop()
        assert code == 0
        broker.start()
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            events = [channel.get("q"), channel.get("q")]
            assert [(event.body, event.method.redelivered) for event in events if event] == [(b"1", True), (b"2", False)]
            assert channel.get("q") is None


def test_a_transaction_survives_whole_or_not_at_all(durable_place: str) -> None:
    with broker_process(durable_place, "--durability", "normal") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("a", durable=True)
            channel.declare("b", durable=True)
        for _ in range(6):
            committed = _commit_until_killed(broker)
            broker.start()
            a, b = _peek(broker.port, "a"), _peek(broker.port, "b")
            assert a == b, "half a transaction"
            assert committed <= set(a)


def _commit_until_killed(broker: BrokerProcess) -> set[int]:
    """Publish to two queues in each transaction. Return the numbers whose commit was answered."""
    committed: set[int] = set()

    def kill_after(count: int) -> None:
        eventually(lambda: len(committed) >= count, f"{count} commits")
        broker.process.kill()

    killer = threading.Thread(target=kill_after, args=(random.randint(1, 100),))
    killer.start()
    with suppress(OSError, ClosedError), Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        number = time.time_ns()
        while True:
            number += 1
            for queue in ("a", "b"):
                channel.publish("", queue, b"%d" % number, delivery_mode=2)
            channel.call(wire.TxCommit(), wire.TxCommitOk)
            committed.add(number)
    killer.join()
    broker.kill()
    return committed


def test_a_store_is_used_by_the_broker_and_then_by_the_library(durable_place: str) -> None:
    with holtmq.open(durable_place) as mq:
        mq.declare_queue("inbox")
        mq.queue("inbox").put({"order": 1}, "orders.new", headers={"vip": True})
    with broker_process(durable_place) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            event = channel.get("inbox")
            assert event is not None
            assert event.body == b'{"order":1}'
            assert event.properties["content_type"] == "application/json"
            assert event.properties["headers"] == {"vip": True}
            channel.confirm()
            channel.publish("", "inbox", b"from the broker", delivery_mode=2, message_id="m1", headers={"n": [1, 2]})
            channel.next()
        with pytest.raises(StoreOwnedError, match=f"amqp://127.0.0.1:{broker.port}"):
            holtmq.open(durable_place)
        broker.stop()
    with holtmq.open(durable_place) as mq:
        message = mq.queue("inbox").pop()
        assert message is not None
        assert message.text == "from the broker"
        assert message.headers == {"n": [1, 2]}
        assert message.properties["message_id"] == "m1"
        with pytest.raises(RuntimeError, match="open in another process"):
            BrokerProcess(durable_place)


def test_the_broker_delivers_a_delayed_message_of_the_library_when_it_is_due(durable_place: str) -> None:
    with holtmq.open(durable_place) as mq:
        mq.declare_queue("q")
        due = time.time() + 1.0
        mq.queue("q").put("later", "k", delay_s=1.0)
        mq.queue("q").put("now", "k")
    with broker_process(durable_place) as broker, Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.consume("q", no_ack=True)
        arrived = {channel.next().body: time.time() for _ in range(2)}
        assert arrived.keys() == {b"now", b"later"}
        assert arrived[b"later"] >= due


def test_a_deleted_queue_leaves_nothing_in_the_store(durable_place: str) -> None:
    with holtmq.open(durable_place) as mq:
        queue = mq.declare_queue("q")
        for name in ("ready", "failed", "locked"):
            queue.put(name, "k")
        failed = queue.pop()
        assert failed is not None
        failed.fail()
        assert queue.pop() is not None
        queue.put("later", "k", delay_s=100)
    with broker_process(durable_place) as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            assert channel.delete("q") == 2
        broker.stop()
    assert look(durable_place, "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM deliveries)") == [(0, 0)]
