"""Long changes of the broker: what is done at once, and what is done in steps."""

from __future__ import annotations

from itertools import pairwise
from weakref import WeakSet

import pytest

from holtmq.broker import broker
from holtmq.broker.definitions_import import import_definitions
from holtmq.errors import DefinitionsError, NotAllowedError, NotFoundError
from holtmq.management.statistics import lengths
from holtmq.queueing.rules import QueueRules
from holtmq.steps import Steps, complete
from holtmq.store.sql import chunk_log
from holtmq.topology import Binding, Exchange, Policy, Queue, Topology
from tests.broker.conftest import Bench, Clock

LIMIT = Policy("short", "^q", {"max-length": 2})


def max_lengths(bench: Bench) -> dict[str, int | None]:
    """Return the maximum length of each queue."""
    rules = {queue.name: queue.rules for queue in bench.broker.vhosts["/"].queues.values()}
    return {name: each.max_length for name, each in rules.items() if isinstance(each, QueueRules)}


def test_a_policy_counts_for_new_queues_at_once_and_for_others_step_by_step(bench: Bench) -> None:
    client = bench.client()
    client.declare("q1")
    client.declare("q2")
    steps = bench.broker.set_policy(LIMIT)
    client.declare("q3")
    next(steps)
    assert max_lengths(bench) == {"q1": 2, "q2": None, "q3": 2}
    complete(steps)
    assert max_lengths(bench)["q2"] == 2


def test_of_two_policies_set_at_the_same_time_the_later_one_applies(bench: Bench) -> None:
    client = bench.client()
    client.declare("q1")
    client.declare("q2")
    first = bench.broker.set_policy(LIMIT)
    next(first)
    complete(bench.broker.set_policy(Policy("short", "^q", {"max-length": 5})))
    complete(first)
    assert set(max_lengths(bench).values()) == {5}


def test_a_queue_deleted_between_two_steps_is_left_out(bench: Bench) -> None:
    client = bench.client()
    client.declare("q1")
    client.declare("q2")
    steps = bench.broker.set_policy(LIMIT)
    next(steps)
    client.channel.declarer.delete_queue("q2", if_unused=False, if_empty=False)
    complete(steps)
    assert list(bench.broker.vhosts["/"].queues) == ["q1"]


def test_a_deleted_vhost_is_gone_at_once_and_its_name_is_free_when_it_is_empty(bench: Bench) -> None:
    vhost = bench.broker.add_vhost("v")
    for name in ("q1", "q2"):
        vhost.declare_queue(Queue(name, vhost="v"))
    vhost.declare_exchange(Exchange("x", vhost="v"))
    vhost.bind(Binding("x", "q1", vhost="v"))
    steps = bench.broker.remove_vhost("v")
    with pytest.raises(NotFoundError):
        bench.broker.vhost("v")
    next(steps)
    with pytest.raises(NotAllowedError, match="'v' is being deleted"):
        bench.broker.add_vhost("v")
    with pytest.raises(DefinitionsError, match="'v' is being deleted"):
        complete(import_definitions(bench.broker, Topology(queues=(Queue("q", vhost="v"),))))
    complete(steps)
    assert not vhost.queues
    assert not bench.broker.add_vhost("v").queues
    bench.to_disk()


def test_an_import_overtaken_by_a_conflicting_declaration_says_so(bench: Bench) -> None:
    client = bench.client()
    topology = Topology(queues=(Queue("a"), Queue("b", durable=True)))
    steps = import_definitions(bench.broker, topology)
    while "a" not in bench.broker.vhosts["/"].queues:
        next(steps)
    client.declare("b", durable=False)
    with pytest.raises(DefinitionsError, match="the broker was changed during the import"):
        complete(steps)


def test_an_import_yields_after_every_object_and_applies_all_policies_once(bench: Bench) -> None:
    names = [f"q{number}" for number in range(20)]
    policies = tuple(Policy(f"p{number}", "^q", {"max-length": number}, priority=number) for number in range(5))
    topology = Topology(queues=tuple(map(Queue, names)), policies=policies)
    complete(import_definitions(bench.broker, topology))
    count = sum(1 for _ in import_definitions(bench.broker, topology))
    assert 5 * len(names) <= count < 10 * len(names)
    assert set(max_lengths(bench).values()) == {4}


def test_the_policy_of_a_queue_follows_every_change(bench: Bench) -> None:
    """The name of a queue is matched once; the result must not outlive the policies or the queue."""
    registry, client = bench.broker.vhosts["/"].router.registry, bench.client()
    assert registry.queue_policy("q") is None
    complete(bench.broker.set_policy(LIMIT))
    client.declare("q")
    assert registry.queue_policy("q") == LIMIT
    complete(bench.broker.remove_policy("/", "short"))
    assert registry.queue_policy("q") is None
    client.channel.declarer.delete_queue("q", if_unused=False, if_empty=False)
    complete(bench.broker.set_policy(LIMIT))
    assert registry.queue_policy("q") == LIMIT


def test_a_policy_that_leaves_many_messages_to_drop_takes_several_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.broker.queue.DROPPED_AT_ONCE", 10)
    client = bench.client()
    client.declare("q")
    for _ in range(35):
        client.publish("", "q")
    complete(bench.broker.set_policy(LIMIT))
    counts = [bench.count("q")]
    while counts[-1] > 2:
        bench.turn(wait_ms=2)
        counts.append(bench.count("q"))
    assert counts[0] == 25
    assert counts[-1] == 2
    assert len(counts) > 2


@pytest.mark.parametrize("part", ["queues", "bindings"])
def test_an_import_that_does_not_fit_into_memory_changes_nothing(bench: Bench, part: str) -> None:
    broker = bench.broker
    bench.client().declare("q", durable=True)
    broker.memory.limit = 2 * (broker.memory.topology + 10_000)
    queues = tuple(Queue(f"q{number}") for number in range(100))
    bindings = tuple(Binding("amq.topic", "q", str(number)) for number in range(100))
    with pytest.raises(DefinitionsError, match="of the memory limit"):
        complete(import_definitions(broker, Topology(queues=queues) if part == "queues" else Topology(bindings=bindings)))
    assert list(broker.vhosts["/"].queues) == ["q"]
    assert not broker.vhosts["/"].router.registry.bindings()


def test_a_turn_dispatches_some_queues_and_the_next_ones_the_rest(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "QUEUES_AT_ONCE", 2)
    client, names = bench.client(), [f"q{number}" for number in range(5)]
    for name in names:
        client.declare(name)
        client.consume(name)
        bench.turn()
    for name in names:
        client.publish("", name)
    received = []
    while bench.broker.awake:
        bench.turn()
        received.append(len(client.deliveries))
    assert received == [2, 4, 5]


def test_a_message_to_many_queues_is_written_in_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_log, "ADDED_AT_ONCE", 2)
    client, slices = bench.client(), "SELECT count(*) FROM log_slices"
    for name in (f"q{number}" for number in range(6)):
        client.declare(name, durable=True)
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", name))
    bench.to_disk()
    client.publish("amq.fanout", "", delivery_mode=2)
    bench.broker.sealed()
    bench.journal.gather()
    assert bench.journal.begin()
    written = [bench.database.connection.execute(slices).fetchone()[0] for _ in bench.journal.write()]
    assert written[:3] == [2, 4, 6]
    bench.end_commit()
    assert [client.get(f"q{number}") for number in range(6)] == [b"m"] * 6


@pytest.mark.parametrize("part", ["exchanges", "queues", "policies", "bindings"])
def test_an_import_makes_no_vhost_without_a_name(bench: Bench, part: str) -> None:
    parts = {
        "exchanges": Exchange("e", vhost=""),
        "queues": Queue("q", vhost=""),
        "policies": Policy("p", ".*", {"max-length": 1}, vhost=""),
        "bindings": Binding("amq.topic", "q", vhost=""),
    }
    with pytest.raises(DefinitionsError, match="expected a vhost's name, got an empty one"):
        complete(import_definitions(bench.broker, Topology(**{part: (parts[part],)})))  # type: ignore[arg-type]
    assert list(bench.broker.vhosts) == ["/"]


@pytest.mark.parametrize("work", ["policy", "lengths"])
def test_queues_that_are_deleted_while_all_are_looked_at_are_freed_one_by_one(bench: Bench, work: str) -> None:
    client, vhost = bench.client(), bench.broker.vhosts["/"]
    for number in range(6):
        client.declare(f"q{number}")
    steps: Steps[object] = bench.broker.set_policy(LIMIT) if work == "policy" else lengths(vhost)
    next(steps)
    left = WeakSet(vhost.queues.values())
    for name in list(vhost.queues):
        vhost.delete_queue(vhost.queues[name])
    bench.turn()
    numbers = [len(left), *(len(left) for _ in steps), len(left)]
    assert all(before - after <= 1 for before, after in pairwise(numbers)), numbers


def test_a_purged_queue_is_empty_at_once_and_frees_its_messages_in_steps(
    bench: Bench, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holtmq.broker.vhost.FREED_AT_ONCE", 2)
    client = bench.client()
    client.declare("q")
    for _ in range(5):
        client.publish("", "q")
    bench.turn()
    clock.steps = 0
    assert bench.broker.vhosts["/"].queue("q").purge() == 5
    assert (bench.count("q"), clock.has_work) == (0, True)
    client.publish("", "q", b"after")
    clock.go_on(2)
    assert clock.has_work
    clock.go_on(5)
    assert (clock.has_work, client.get("q"), client.get("q")) == (False, b"after", None)
