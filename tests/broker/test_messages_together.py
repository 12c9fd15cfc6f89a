"""Messages that differ in nothing but their bodies enter their queues together, which must have no effect but speed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holtmq.table import FieldValue
from holtmq.topology import Binding
from holtmq.wire.content import encode_properties, make_content
from tests.broker.conftest import Bench, Client

QUEUES: dict[str, dict[str, FieldValue]] = {
    "plain": {},
    "other": {},
    "short": {"max_length": 3},
    "small": {"max_length_bytes": 40},
    "full": {"max_length": 5, "overflow": "reject-publish"},
    "old": {"message_ttl": 50},
    "ordered": {"max_priority": 3},
    "dropping": {"max_length": 2, "dead_letter_exchange": "", "dead_letter_routing_key": "plain"},
    "to-itself": {"max_length": 4, "dead_letter_exchange": "amq.fanout"},
    "stream": {"queue_type": "stream"},
}
PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "headers": {"x": "y" * 200}},
    {"priority": 2},
    {"expiration": "70"},
    {"headers": {"x-publisher": "p", "x-publishing-id": 7}},
)


def publish(client: Client, bodies: list[bytes], properties: dict[str, Any], *, together: bool) -> None:
    raw = encode_properties(properties)
    contents = [make_content(raw, body) for body in bodies]
    publication = client.channel.publication("amq.fanout", "", is_mandatory=True)
    for some in [contents] if together else [[content] for content in contents]:
        publication.publish(raw, some)


def setting(chance: random.Random) -> tuple[Bench, Client, Client, list[str]]:
    """Return a broker with random queues, a publisher, a reader that consumes some of them, and the names of the queues."""
    bench = Bench()
    client, reader = bench.client(), bench.client()
    names = chance.sample(sorted(QUEUES), chance.randint(1, 4))
    for name in sorted({*names, "plain"}):
        client.declare(name, durable=name == "stream" or chance.random() < 0.5, **QUEUES[name])
    for name in names:
        bench.broker.vhosts["/"].bind(Binding("amq.fanout", name))
        if chance.random() < 0.3:
            reader.channel.set_prefetch(chance.randint(1, 9), is_global=False)
            reader.consume(name)
    if chance.random() < 0.7:
        client.channel.select_confirms()
    if chance.random() < 0.3:
        bench.broker.memory.limit = 64 * 1024
    return bench, client, reader, names


def run(seed: int, *, together: bool) -> tuple[object, ...]:
    """Do random things to a broker with random queues, and return all that can be seen of them."""
    chance = random.Random(seed)
    bench, client, reader, names = setting(chance)
    seen: list[object] = []
    for step in range(chance.randint(2, 6)):
        properties, number = chance.choice(PROPERTIES), chance.choice((2, 7, 60))
        bodies = [b"%d-%03d" % (step, place) + bytes(place % 5) for place in range(number)]
        publish(client, bodies, properties, together=together)
        if chance.random() < 0.6:
            bench.turn(chance.choice((0, 30, 100)))
        if chance.random() < 0.4:
            bench.to_disk()
        tags = sorted(reader.channel.unsettled)[:5]
        if tags and chance.random() < 0.5:
            reader.channel.reject(tags[-1], multiple=True, requeue=chance.random() < 0.5)
        seen.append([bench.count(name) for name in names])
    bench.to_disk()
    bench.turn(1000)
    bench.to_disk()
    left = {name: [client.get(name) for _ in range(bench.count(name))] for name in names if name != "stream"}
    seen += [reader.bodies, client.refused, client.channel.confirms.published, client.channel.confirms.confirmed]
    return (*seen, len(client.returned), left, bench.broker.internal_errors.total)


@pytest.mark.parametrize("seed", range(60))
def test_the_effect_is_that_of_messages_one_by_one(seed: int) -> None:
    assert run(seed, together=True) == run(seed, together=False)
