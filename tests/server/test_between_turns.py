"""Chores between turns, with time for a single step in each: clients see the result, and no state on the way to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holtmq.config import Config
from holtmq.server import between_turns
from holtmq.server.run import running
from holtmq.server.server import Server
from holtmq.testing import TestBroker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import eventually, last_seen

MANY = 300


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_turns, "SLICE_S", 0.0)


def declare_own(channel: Channel) -> None:
    for number in range(MANY):
        channel.send(wire.QueueDeclare(0, f"own-{number}", exclusive=True, no_wait=True))
    channel.settle()


def test_a_closed_connection_is_answered_when_its_queues_are_gone(broker: TestBroker) -> None:
    with Amqp(broker.port) as other:
        channel = other.channel()
        amqp = Amqp(broker.port)
        declare_own(amqp.channel())
        amqp.close()
        with pytest.raises(ClosedError, match="404"):
            channel.count(f"own-{MANY - 1}")
        channel = channel.reopen()
        declare_own(channel)


def test_the_queues_of_a_lost_connection_are_locked_or_gone(broker: TestBroker) -> None:
    amqp = Amqp(broker.port)
    declare_own(amqp.channel())
    amqp.drop()
    with Amqp(broker.port) as other:
        channel = other.channel()
        eventually(lambda: _declares(other, f"own-{MANY - 1}"), "the broker to notice that the connection is lost")
        for number in range(MANY):
            assert channel.declare(f"own-{number}", exclusive=True).message_count == 0
        channel.put("own-0", b"mine")
        assert channel.drain("own-0") == [b"mine"]


def _declares(amqp: Amqp, queue: str) -> bool:
    channel = amqp.channel(2)
    try:
        channel.declare(queue, exclusive=True)
    except ClosedError as error:
        channel.reopen().close()
        return "RESOURCE_LOCKED" not in str(error)
    channel.close()
    return True


def test_a_closed_channel_is_answered_when_its_messages_are_back(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel, other = amqp.channel(), amqp.channel(2)
        other.declare("q")
        other.put("q", *[b"%d" % number for number in range(MANY)])
        channel.consume("q", "c")
        channel.deliveries(MANY)
        channel.close()
        assert other.count("q") == MANY
        assert other.drain("q") == [b"%d" % number for number in range(MANY)]
        assert amqp.channel().get("q") is None


@pytest.mark.parametrize("requeue", [True, False])
def test_what_follows_a_nack_of_many_messages_comes_after_it(broker: TestBroker, requeue: bool) -> None:  # noqa: FBT001
    bodies = [b"%d" % number for number in range(MANY)]
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("dead")
        channel.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
        channel.put("q", *bodies)
        channel.consume("q", "c")
        channel.deliveries(MANY)
        channel.cancel("c")
        channel.nack(0, multiple=True, requeue=requeue)
        channel.put("q" if requeue else "dead", b"last")
        assert channel.drain("q" if requeue else "dead") == [*bodies, b"last"]


def test_a_nack_is_carried_out_although_the_client_has_left(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel = amqp.channel()
        channel.declare("dead")
        channel.declare("q", dead_letter_exchange="", dead_letter_routing_key="dead")
        channel.put("q", *[b"%d" % number for number in range(MANY)])
        channel.consume("q", "c")
        channel.deliveries(MANY)
        channel.nack(0, multiple=True, requeue=False)
        amqp.drop()
        watching = other.channel()
        assert last_seen(lambda: (watching.count("q"), watching.count("dead")), (0, MANY)) == (0, MANY)


def test_what_follows_a_deletion_on_the_same_connection_sees_nothing_of_it(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.declare_exchange("e", "topic")
        for number in range(MANY):
            channel.send(wire.QueueBind(0, "q", "e", f"key.{number}", no_wait=True))
        channel.settle()
        channel.send(wire.QueueDelete(0, "q", no_wait=True))
        channel.send(wire.QueueDeclare(0, "q", durable=True, no_wait=True))
        channel.send(wire.QueueBind(0, "q", "e", "key.7", no_wait=True))
        for number in range(MANY):
            channel.publish("e", f"key.{number}", b"%d" % number)
        assert channel.drain("q") == [b"7"]
        channel.send(wire.ExchangeDelete(0, "e", no_wait=True))
        channel.send(wire.ExchangeDeclare(0, "e", "topic", no_wait=True))
        channel.publish("e", "key.7", b"nobody")
        assert channel.drain("q") == []


def test_a_broker_that_stops_finishes_its_chores(tmp_path: Path) -> None:
    config = Config(data=str(tmp_path / "b.db"), amqp_port=0, http_port=-1, durability="off")
    with running(config) as server:
        amqp = Amqp(_port(server))
        channel = amqp.channel()
        channel.declare("q", durable=True)
        channel.put("q", *[b"%d" % number for number in range(MANY)], delivery_mode=2)
        channel.consume("q", "c")
        channel.deliveries(MANY)
        amqp.drop()
    with running(config) as server, Amqp(_port(server)) as amqp:
        assert amqp.channel().drain("q") == [b"%d" % number for number in range(MANY)]


def _port(server: Server) -> int:
    return int(server.address.rsplit(":", 1)[1])
