"""Messages that enter many queues: however many they are in one turn, queues alone cause no memory alarm."""

from __future__ import annotations

import pytest

from holtmq.topology import Binding
from tests.broker.conftest import Bench, Client

QUEUES = 100
MIB = 1024 * 1024


@pytest.fixture
def client(bench: Bench) -> Client:
    """A client of many queues behind one exchange, of a broker with little memory."""
    bench.broker.memory.limit = 16 * MIB
    client = bench.client()
    for number in range(QUEUES):
        client.declare(f"q{number}")
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", f"q{number}"))
    bench.turn()
    return client


def assert_all_arrived(bench: Bench, client: Client, bodies: list[bytes]) -> None:
    memory = bench.broker.memory
    assert not memory.is_alarmed, memory.describe()
    assert [bench.count(f"q{number}") for number in range(QUEUES)] == [len(bodies)] * QUEUES
    bench.to_disk()
    for queue in ("q0", f"q{QUEUES - 1}"):
        assert [client.get(queue) for _ in bodies] == bodies


def test_many_small_messages_in_one_turn(bench: Bench, client: Client) -> None:
    bodies = [b"%d" % number for number in range(500)]
    for body in bodies:
        client.publish("amq.fanout", "", body)
    bench.turn()
    assert_all_arrived(bench, client, bodies)


def test_one_large_message(bench: Bench, client: Client) -> None:
    client.publish("amq.fanout", "", bytes(MIB))
    bench.turn()
    assert_all_arrived(bench, client, [bytes(MIB)])


def test_a_transaction(bench: Bench, client: Client) -> None:
    client.channel.select_transactions()
    bodies = [b"%d" % number for number in range(500)]
    for body in bodies:
        client.publish("amq.fanout", "", body)
    client.channel.commit()
    bench.turn()
    assert_all_arrived(bench, client, bodies)


def test_dead_letters(bench: Bench, client: Client) -> None:
    client.declare("source", dead_letter_exchange="amq.fanout", message_ttl=1)
    bodies = [b"%d" % number for number in range(500)]
    for body in bodies:
        client.publish("", "source", body)
    bench.turn(1000)
    bench.turn()
    assert_all_arrived(bench, client, bodies)
