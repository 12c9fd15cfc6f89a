"""What takes long is done in steps. Nobody sees half of it, and what fails is done again."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from holtmq.errors import NotFoundError
from holtmq.steps import Steps, complete
from holtmq.topology import Binding, Exchange, Policy, Queue
from tests.broker.conftest import Bench, Client, Clock

MANY = 300


def declare(client: Client, queue: str, **options: Any) -> None:
    flags = {"is_durable": False, "is_exclusive": False, "is_auto_delete": False, "arguments": {}, **options}
    client.channel.declarer.declare_queue(queue, **flags)


def delete(client: Client, queue: str) -> int:
    return client.channel.declarer.delete_queue(queue, if_unused=False, if_empty=False)


def bind(client: Client, queue: str, number: int = MANY) -> None:
    for key in range(number):
        client.channel.declarer.bind_queue(queue, "amq.topic", f"key.{key}", {})


def test_a_queue_with_many_bindings_is_gone_at_once_and_its_name_is_free(bench: Bench, clock: Clock) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    before = bench.broker.memory.topology
    declare(client, "q", is_durable=True)
    bind(client, "q")
    delete(client, "q")
    client.publish("amq.topic", "key.1", mandatory=True)
    assert len(client.returned) == 1
    with pytest.raises(NotFoundError):
        client.get("q")
    clock.go_on(10)
    declare(client, "q")
    bind(client, "q", 2)
    for key in range(3):
        client.publish("amq.topic", f"key.{key}")
    assert bench.count("q") == 2
    clock.go_on(10 * MANY)
    client.publish("amq.topic", "key.0")
    assert bench.count("q") == 3
    assert len(vhost.router.registry.bindings()) == 2
    delete(client, "q")
    assert bench.broker.memory.topology == before
    assert not clock.has_work


def test_an_exchange_with_many_bindings_is_gone_at_once_and_its_name_is_free(bench: Bench, clock: Clock) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    before = bench.broker.memory.topology
    client.declare("q")
    for kind in ("topic", "fanout"):
        vhost.declare_exchange(Exchange("e", kind, durable=False))
        for key in range(MANY):
            vhost.bind(Binding("e", "q", f"key.{key}"))
        assert len(vhost.router.registry.bindings_to("queue", "q")) == MANY
        vhost.delete_exchange("e")
        assert not vhost.router.registry.bindings_to("queue", "q")
        with pytest.raises(NotFoundError):
            client.publish("e", "key.1")
        clock.go_on(10)
    delete(client, "q")
    clock.go_on(10 * MANY)
    assert bench.broker.memory.topology == before
    assert not vhost.router.registry.has_ghosts


def test_a_deletion_is_in_the_file_as_a_whole_before_its_bindings_are_swept(bench: Bench, clock: Clock) -> None:
    client = bench.client()
    declare(client, "q", is_durable=True)
    bind(client, "q")
    bench.to_disk()
    delete(client, "q")
    bench.to_disk()
    assert clock.has_work
    assert bench.database.connection.execute("SELECT count(*) FROM bindings").fetchone() == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_the_file_has_the_bindings_between_what_is_durable(bench: Bench, seed: int) -> None:
    random, vhost = Random(seed), bench.broker.vhosts["/"]
    exchanges = [Exchange(f"e{number}", "fanout", number != 1, number > 1) for number in range(4)]
    queues = [Queue(f"q{number}", number > 0) for number in range(3)]
    for _ in range(150):
        exchange, other, queue = random.choice(exchanges), random.choice(exchanges), random.choice(queues)
        key, bound = random.choice("ab"), {"e": other.name in vhost.router.registry.exchanges, "q": queue.name in vhost.queues}
        to_queue, to_exchange = Binding(exchange.name, queue.name, key), Binding(exchange.name, other.name, key, {}, "exchange")
        declared = exchange.name in vhost.router.registry.exchanges
        match random.randrange(10):
            case 0:
                vhost.declare_exchange(exchange)
            case 1:
                vhost.declare_queue(queue)
            case 2 if bound["q"]:
                vhost.delete_queue(vhost.queues[queue.name])
            case 3 if random.random() < 0.5:
                vhost.delete_exchange(exchange.name)
            case 4:
                vhost.unbind(random.choice((to_queue, to_exchange)))
            case 5 | 6 if bound["e"] and declared:
                vhost.bind(to_exchange)
            case 7 | 8 | 9 if bound["q"] and declared:
                vhost.bind(to_queue)
        if random.random() < 0.3:
            bench.to_disk()
    bench.to_disk()
    registry = vhost.router.registry
    durable = {each.name for each in registry.exchanges.values() if each.durable}
    durable |= {each.name for each in registry.queues.values() if each.durable}
    expected = {each for each in registry.bindings() if {each.source, each.destination} <= durable}
    assert set(bench.journal.recover().topology.bindings) == expected


def test_exclusive_queues_of_a_closed_session_are_not_found(bench: Bench, clock: Clock) -> None:
    one, other = bench.client(), bench.client()
    for number in range(5):
        declare(one, f"own-{number}", is_exclusive=True)
    bench.broker.chores.add("closing a session", "one", one.channel.session.close)
    clock.go_on(3)
    assert clock.has_work
    with pytest.raises(NotFoundError):
        other.get("own-4")
    declare(other, "own-3", is_exclusive=True)  # and is not locked
    other.publish("", "own-3", b"new")
    clock.go_on(100)
    assert not clock.has_work
    assert other.get("own-3") == b"new"
    assert list(bench.broker.vhosts["/"].queues) == ["own-3"]


def test_a_closed_session_gets_nothing_while_its_messages_go_back(bench: Bench, clock: Clock) -> None:
    one, other = bench.client(), bench.client()
    one.declare("q")
    one.consume("q")
    for number in range(10):
        one.publish("", "q", b"%d" % number)
    bench.turn()
    assert len(one.deliveries) == 10
    bench.broker.chores.add("closing a session", "one", one.channel.session.close)
    other.consume("q")
    for _ in range(10):
        clock.go_on(2)
        bench.turn()
    clock.go_on(20)
    bench.turn()
    assert len(one.deliveries) == 10
    assert other.bodies == [b"%d" % number for number in range(10)]


def test_a_purge_keeps_the_messages_that_are_on_their_way_back(bench: Bench, clock: Clock) -> None:
    one, other = bench.client(), bench.client()
    one.declare("q", durable=True)
    for number in range(4):
        one.publish("", "q", b"%d" % number, delivery_mode=2)
    bench.to_disk()
    one.consume("q")
    bench.turn()
    bench.to_disk()
    assert len(one.deliveries) == 4
    bench.broker.chores.add("closing a session", "one", one.channel.session.close)
    clock.go_on(2)
    returned = bench.count("q")
    assert 0 < returned < 4
    other.channel.declarer.purge_queue("q")
    clock.go_on(20)
    bench.to_disk()
    assert bench.count("q") == 4 - returned
    assert [other.get("q") for _ in range(4 - returned)] == [b"%d" % number for number in range(returned, 4)]


def test_acknowledgements_that_come_while_others_are_carried_out_follow_them(bench: Bench, clock: Clock) -> None:
    client, queue = hold(bench, 2 * MANY), bench.broker.vhosts["/"].queue("q")
    client.channel.ack(MANY, multiple=True)
    clock.go_on(10)
    client.channel.ack(2 * MANY, multiple=True)
    assert MANY < client.channel.unsettled_count == queue.unsettled < 2 * MANY
    clock.go_on(3 * MANY)
    assert client.channel.unsettled_count == queue.unsettled == 0
    assert not clock.has_work


def test_a_channel_that_closes_finishes_what_its_client_asked_for(bench: Bench, clock: Clock) -> None:
    client, queue = hold(bench, 2 * MANY), bench.broker.vhosts["/"].queue("q")
    client.channel.ack(MANY, multiple=True)
    client.channel.session.close_channel(1)
    while clock.has_work:
        clock.go_on(100)
    assert (queue.unsettled, queue.message_count) == (0, MANY)
    assert client.channel.session.channels == {}


def hold(bench: Bench, number: int) -> Client:
    """Return a client that has received messages of a queue `q`."""
    client = bench.client()
    client.declare("q")
    client.consume("q")
    for _ in range(number):
        client.publish("", "q")
    bench.turn()
    assert len(client.deliveries) == number
    return client


def test_a_queue_without_consumers_goes_even_if_that_fails_at_first(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    declare(client, "auto", is_auto_delete=True)
    declare(client, "idle", arguments={"x-expires": 1000})
    tag = client.consume("auto")
    with monkeypatch.context() as patch:
        patch.setattr(vhost, "delete_queue", _fail)
        client.channel.cancel(tag)
        bench.turn(2000)
        assert set(vhost.queues) == {"auto", "idle"}
    bench.broker.chores.retry()
    assert not vhost.queues
    assert bench.broker.internal_errors.counts == {"deleting a queue": 2}


def test_many_queues_that_expire_together_go_in_steps(bench: Bench, clock: Clock) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    for number in range(MANY):
        declare(client, f"q{number}", arguments={"x-expires": 1000})
    clock.steps = 10
    bench.turn(2000)
    assert MANY - 10 <= len(vhost.queues) < MANY
    while clock.has_work:
        clock.go_on(100)
        bench.turn()
    assert not vhost.queues


def test_a_policy_can_make_a_queue_expire_sooner_than_it_was_declared_to(bench: Bench) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    declare(client, "q", arguments={"x-expires": 60_000})
    complete(bench.broker.set_policy(Policy("soon", ".*", {"expires": 1000})))
    bench.turn(500)
    assert client.get("q") is None  # and is used once more
    bench.turn(800)
    assert list(vhost.queues) == ["q"]
    bench.turn(800)
    assert not vhost.queues


def test_a_chore_that_fails_is_started_again(bench: Bench) -> None:
    done: list[int] = []

    def work() -> Steps[None]:
        for number in range(len(done), 3):
            done.append(number)
            yield
            if number == 1:
                raise ValueError("an injected error")

    chore = bench.broker.chores.add("working", "a test", work)
    assert (done, chore.is_done) == ([0, 1], False)
    bench.broker.chores.retry()
    assert (done, chore.is_done) == ([0, 1, 2], True)


def _fail(*_: object) -> int:
    raise ValueError("an injected error")


def test_no_chore_is_lost_if_starting_it_again_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    chores, done = bench.broker.chores, list[str]()

    def work(name: str) -> Steps[None]:
        if not chores_work:
            raise RuntimeError(name)
        done.append(name)
        yield

    chores_work = False
    for name in ("one", "two"):
        chores.add(name, "a test", partial(work, name))
    with monkeypatch.context() as patch:
        patch.setattr(chores, "start", fail)
        chores.retry()
    chores_work = True
    chores.retry()
    assert done == ["one", "two"]
    assert bench.broker.internal_errors.counts == {"one": 2, "two": 2}


def fail(_: object) -> None:
    raise RuntimeError("it cannot be started")
