"""Chores between turns, with time for a single step in each: clients see the result, and no state on the way to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holtmq.broker import broker as engine
from holtmq.broker import channel, fan_out
from holtmq.broker.containment import InternalErrors
from holtmq.config import Config
from holtmq.server import between_turns, client
from holtmq.server.run import running
from holtmq.server.server import Server
from holtmq.steps import Steps
from holtmq.testing import TestBroker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.deadline import eventually, last_seen

MANY = 300


@pytest.fixture(autouse=True)
def no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_turns, "SLICE_S", 0.0)
    monkeypatch.setattr(engine, "COPIES_AT_ONCE", 1)
    monkeypatch.setattr(engine, "QUEUES_AT_ONCE", 2)
    monkeypatch.setattr(channel, "COMMITTED_AT_ONCE", 10)
    monkeypatch.setattr(fan_out, "COPIES_IN_STEP", 2)


def test_a_chore_that_comes_after_long_work_begins_in_the_next_iteration_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(between_turns, "SLICE_S", 0.005)
    monkeypatch.setattr(between_turns, "perf_counter", lambda: now[0])

    async def main() -> None:
        chores = between_turns.ChoresBetweenTurns(InternalErrors(), lambda: None)
        assert chores.add("early", "nobody", nothing_in_steps).is_done
        await asyncio.sleep(0)
        chores.count_time()
        now[0] += 0.02
        late = chores.add("late", "nobody", nothing_in_steps)
        assert not late.is_done
        await asyncio.sleep(0)
        assert late.is_done

    asyncio.run(main())


def nothing_in_steps() -> Steps[None]:
    yield


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


def test_many_methods_of_one_client_are_carried_out_in_order_between_those_of_others(
    broker: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "METHODS_AT_ONCE", 2)
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, bystander = amqp.channel(), other.channel()
        for number in range(MANY):
            channel.send(wire.QueueDeclare(0, f"many-{number}", no_wait=True))
            channel.publish("", f"many-{number}", b"%d" % number)
        bystander.settle()
        assert channel.count(f"many-{MANY - 1}") == 1
        assert channel.drain("many-7") == [b"7"]
        for number in range(MANY):
            channel.send(wire.QueueDelete(0, f"many-{number}", no_wait=True))
        with pytest.raises(ClosedError, match=f"404 .*many-{MANY - 1}"):
            channel.count(f"many-{MANY - 1}")


def fan(channel: Channel, number: int = 30) -> list[str]:
    """Declare queues behind one exchange and return their names."""
    names = [f"fan-{place:02}" for place in range(number)]
    for name in names:
        channel.declare(name, durable=True)
        channel.bind(name, "amq.fanout")
    return names


def test_what_follows_a_message_to_many_queues_comes_after_it(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        names = fan(channel)
        for number in range(3):
            channel.publish("amq.fanout", "", b"to all %d" % number)
        channel.publish("", names[-1], b"to one")
        assert channel.drain(names[-1]) == [b"to all 0", b"to all 1", b"to all 2", b"to one"]
        assert [channel.count(name) for name in names] == [3] * 29 + [0]


def test_consumers_of_many_queues_all_get_their_messages(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, reader = amqp.channel(), other.channel()
        for name in fan(channel):
            reader.consume(name, name, no_ack=True)
        channel.publish("amq.fanout", "", b"to all")
        assert reader.bodies(30) == [b"to all"] * 30


def test_messages_to_many_queues_are_confirmed_and_returned_in_order(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        names = fan(channel)
        channel.confirm()
        for number in range(3):
            channel.publish("amq.fanout", "", b"%d" % number, delivery_mode=2)
        channel.publish("", "nowhere", b"returned", mandatory=True)
        answers = [channel.next().method]
        while not (isinstance(answers[-1], wire.BasicAck) and answers[-1].delivery_tag == 4):
            answers.append(channel.next().method)
        tags = [answer.delivery_tag for answer in answers if isinstance(answer, wire.BasicAck)]
        assert tags == sorted(tags)
        assert sum(isinstance(answer, wire.BasicReturn) for answer in answers) == 1
        assert [channel.count(name) for name in names] == [3] * 30


def test_a_large_transaction_is_answered_when_it_is_applied(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        names = fan(channel)
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        for number in range(20):
            channel.publish("", names[0], b"%d" % number, delivery_mode=2)
        channel.publish("amq.fanout", "", b"last", delivery_mode=2)
        channel.call(wire.TxCommit(), wire.TxCommitOk)
        assert channel.count(names[-1]) == 1
        assert channel.drain(names[0]) == [*[b"%d" % number for number in range(20)], b"last"]


def test_no_batch_ends_while_a_transaction_is_applied(broker: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    committing: list[int] = []
    sealed = engine.Broker.sealed

    def watched(self: engine.Broker) -> None:
        committing.append(len(self.committing))
        sealed(self)

    monkeypatch.setattr(engine.Broker, "sealed", watched)
    with Amqp(broker.port) as amqp, Amqp(broker.port) as other:
        channel, publisher = amqp.channel(), other.channel()
        publisher.declare("q", durable=True)
        publisher.confirm()
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        for key in ("q", "nowhere") * MANY:
            channel.publish("", key, b"m", delivery_mode=2)
        channel.send(wire.TxCommit())
        for _ in range(10):
            publisher.publish("", "q", b"m", delivery_mode=2)
            assert isinstance(publisher.next().method, wire.BasicAck)
        assert isinstance(channel.next().method, wire.TxCommitOk)
        assert channel.count("q") == MANY + 10
    assert committing
    assert not any(committing)


def test_a_large_transaction_fails_if_a_full_queue_rejects_one_of_its_messages(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        names = fan(channel)
        channel.declare("full", max_length=0, overflow="reject-publish")
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        channel.publish("", "full", b"rejected")
        channel.publish("amq.fanout", "", b"taken")
        with pytest.raises(ClosedError, match=r"406 PRECONDITION_FAILED - partial tx completion"):
            channel.call(wire.TxCommit(), wire.TxCommitOk)
        channel = channel.reopen()
        assert [channel.count(name) for name in names] == [1] * 30


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
