"""Messages that differ in nothing but their bodies enter their queues together, which must have no effect but speed."""

from __future__ import annotations

import random

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
PROPERTIES = (
    {},
    {"delivery_mode": 2},
    {"delivery_mode": 2, "headers": {"x": "y" * 200}},
    {"priority": 2},
    {"expiration": "70"},
    {"headers": {"x-publisher": "p", "x-publishing-id": 7}},
)


def publish(client: Client, bodies: list[bytes], properties: dict[str, object], *, together: bool) -> None:
    raw = encode_properties(properties)
    contents = [make_content(raw, body) for body in bodies]
    publication = client.channel.publication("amq.fanout", "", is_mandatory=True)
    for some in [contents] if together else [[content] for content in contents]:
        publication.publish(raw, some, len(bodies[0]))


def run(seed: int, *, together: bool) -> tuple[object, ...]:
    """Do random things to a broker with random queues, and return all that can be seen of them."""
    chance = random.Random(seed)
    bench = Bench()
    client, reader = bench.client(), bench.client()
    vhost = bench.broker.vhosts["/"]
    names = chance.sample(sorted(QUEUES), chance.randint(1, 4))
    for name in {*names, "plain"}:
        is_durable = name == "stream" or chance.random() < 0.5
        client.declare(name, durable=is_durable, **QUEUES[name])
    for name in names:
        vhost.bind(Binding("amq.fanout", name))
        if chance.random() < 0.3:
            reader.channel.set_prefetch(chance.randint(1, 9), is_global=False)
            reader.consume(name)
    if chance.random() < 0.7:
        client.channel.select_confirms()
    if chance.random() < 0.3:
        bench.broker.memory.limit = 64 * 1024
    seen: list[object] = []
    for step in range(chance.randint(2, 6)):
        properties, number = chance.choice(PROPERTIES), chance.choice((2, 7, 60))
        publish(client, [b"%d-%03d" % (step, place) for place in range(number)], properties, together=together)
        if chance.random() < 0.6:
            bench.turn(chance.choice((0, 30, 100)))
        if chance.random() < 0.4:
            bench.to_disk()
        if reader.deliveries and chance.random() < 0.5:
            tags = sorted(reader.channel.unsettled)[:5]
            if tags:
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
