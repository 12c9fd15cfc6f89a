"""Messages in a queue are counted with what they really take, whatever they have in common."""

from __future__ import annotations

import itertools
import random
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holtmq.broker.alike import AlikeMessages
from holtmq.broker.memory import ALIKE_BYTES, MESSAGE_BYTES
from holtmq.broker.queued_message import Origin, QueuedMessage
from holtmq.topology import Binding
from holtmq.wire.content import Properties, encode_properties, make_content
from tests.broker.conftest import Bench, Client

NUMBER = 2000
KINDS: dict[str, Callable[[int], tuple[str, Mapping[str, Any]]]] = {
    "short keys": lambda number: (f"key.{number:08}", {}),
    "long keys": lambda number: (f"{number:0250}", {}),
    "ids": lambda number: ("key", {"message_id": f"{number:036}"}),
    "ids of 100 bytes": lambda number: ("key", {"message_id": f"{number:0100}"}),
    "long ids": lambda number: ("key", {"message_id": f"{number:0250}"}),
    "headers": lambda number: ("key", {"headers": {"name": f"{number:02000}"}}),
    "long keys and ids": lambda number: (f"{number:0250}", {"message_id": f"{number:0100}"}),
}
"""A routing key and properties for each message, by what is its own."""


@pytest.fixture
def client(bench: Bench) -> Client:
    client = bench.client()
    client.declare("q")
    bench.broker.vhosts["/"].bind(Binding("amq.fanout", "q"))
    return client


def put_together(client: Client, number: int, body: bytes = b"", **properties: object) -> None:
    raw = encode_properties(properties)
    publication = client.channel.publication("amq.fanout", "key", is_mandatory=False)
    publication.publish(raw, [make_content(raw, body) for _ in range(number)])


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_which_each_has_something_of_its_own_take_no_more_than_is_counted(
    bench: Bench, client: Client, kind: str
) -> None:
    def publish() -> None:
        for number in range(NUMBER):
            key, properties = KINDS[kind](number)
            client.publish("amq.fanout", key, b"", **properties)

    assert real_share(bench, publish) < 1


@pytest.mark.parametrize("size", [0, 100, 1000])
def test_messages_that_have_all_but_the_body_in_common_are_counted_as_what_they_take(
    bench: Bench, client: Client, size: int
) -> None:
    assert 0.7 < real_share(bench, lambda: put_together(client, NUMBER, bytes(size))) < 1


def real_share(bench: Bench, publish: Callable[[], None]) -> float:
    """Return how much memory is in use for messages, as a share of what is counted."""
    tracemalloc.start()
    try:
        before, counted = tracemalloc.get_traced_memory()[0], bench.broker.memory.total
        publish()
        bench.turn()
        return (tracemalloc.get_traced_memory()[0] - before) / (bench.broker.memory.total - counted)
    finally:
        tracemalloc.stop()


def test_messages_that_leave_are_no_longer_counted(bench: Bench, client: Client) -> None:
    memory = bench.broker.memory
    put_together(client, 100)
    bench.turn()
    assert memory.queues == MESSAGE_BYTES + 99 * ALIKE_BYTES
    put_together(client, 50, app_id="another")
    bench.turn()
    assert memory.queues == 2 * MESSAGE_BYTES + (99 + 49) * ALIKE_BYTES
    for _ in range(60):
        client.get("q")
    bench.turn()
    assert memory.queues == 2 * MESSAGE_BYTES + (39 + 49) * ALIKE_BYTES
    for _ in range(90):
        client.get("q")
    bench.turn()
    assert memory.queues == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_count_is_that_of_neighbours_with_the_same_run(seed: int) -> None:
    """Messages enter in runs and one by one, and leave at both ends."""
    chance, alike = random.Random(seed), AlikeMessages()
    lane: list[tuple[int, int]] = []  # the run and the id of each message
    origin, properties, last_id = Origin("", ""), Properties(bytes(2)), 0
    for run in range(60):
        for _ in range(chance.randint(0, 2)):
            last_id += chance.randint(1, 3)
            lane.append((-last_id, last_id))
        number = chance.randint(1, 6)
        lane += [(run, last_id + place) for place in range(1, number + 1)]
        alike.add(last_id + 1, last_id + number)
        last_id += number
        lane = lane[chance.choice((0, 0, 3, 9)) :]
        left = len(lane) - chance.choice((0, 0, 0, 2, 50))
        lane = lane[: max(0, left)]
        ready = [QueuedMessage(message_id, origin, properties, b"", 0, 1) for _, message_id in lane]
        expected = sum(one[0] == next_one[0] for one, next_one in itertools.pairwise(lane))
        assert alike.among(ready) == expected
