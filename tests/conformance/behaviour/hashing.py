"""The exchange type x-consistent-hash, which is a plugin of RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping

from holtmq.table import FieldValue
from tests.amqp_client import Channel
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import eventually

SECTION = "Consistent hash"
HASH = "x-consistent-hash"
BIND, UNBIND, EXCHANGE_DECLARE = (50, 20), (50, 50), (40, 10)


def hashing(scene: Scene, *weights: str, arguments: Mapping[str, FieldValue] | None = None) -> tuple[Channel, str, list[str]]:
    """Declare an exchange, and a queue for each weight."""
    channel, exchange, queues = scene.channel(), scene.exchange(), [scene.queue() for _ in weights]
    channel.declare_exchange(exchange, HASH, arguments=arguments)
    for queue, weight in zip(queues, weights, strict=True):
        channel.declare(queue)
        channel.bind(queue, exchange, weight)
    return channel, exchange, queues


def taken(channel: Channel, queues: list[str], count: int) -> list[tuple[bytes, int]]:
    """Take this many messages out of some queues. Return the body of each and the number of its queue, sorted."""
    found: list[tuple[bytes, int]] = []

    def take() -> bool:
        for number, queue in enumerate(queues):
            found.extend((body, number) for body in channel.drain(queue))
        return len(found) >= count

    eventually(take, f"{count} messages in {len(queues)} queues")
    return sorted(found)


@rule(SECTION, "each of 200 routing keys reaches one of three queues, none of them is idle, and again the same", (200, 3, True))
def by_routing_key(scene: Scene) -> object:
    channel, exchange, queues = hashing(scene, "1", "1", "2")
    rounds = []
    for _ in range(2):
        for number in range(200):
            channel.publish(exchange, f"key.{number}", str(number).encode())
        rounds.append(taken(channel, queues, 200))
    return len(rounds[0]), len({queue for _, queue in rounds[0]}), rounds[0] == rounds[1]


@rule(
    SECTION, "hash-header: the header decides, not the routing key; all messages without it reach one queue", (200, 3, 1, True)
)
def by_header(scene: Scene) -> object:
    channel, exchange, queues = hashing(scene, "1", "1", "2", arguments={"hash-header": "h"})
    rounds = []
    for key in ("a", "b"):
        for number in range(200):
            channel.publish(exchange, key, str(number).encode(), headers={"h": f"value {number}"})
        rounds.append(taken(channel, queues, 200))
    for number in range(20):
        channel.publish(exchange, str(number), str(number).encode(), headers={"other": number})
    without = taken(channel, queues, 20)
    used = ({queue for _, queue in some} for some in (rounds[0], without))
    return len(rounds[0]), *map(len, used), rounds[0] == rounds[1]


@rule(SECTION, "CC adds no queue, and does not change it: 20 messages with the same key reach one queue", (20, 1))
def with_more_keys(scene: Scene) -> object:
    channel, exchange, queues = hashing(scene, "1", "1", "1", "1")
    for number in range(20):
        channel.publish(exchange, "k", str(number).encode(), headers={"CC": [f"{number}.{n}" for n in range(10)]})
    found = taken(channel, queues, 20)
    return len(found), len({queue for _, queue in found})


for _text, _weight in (("a word", "heavy"), ("zero", "0"), ("negative", "-1"), ("a fraction", "1.5"), ("empty", "")):

    @rule(SECTION, f"binding with a weight that is {_text}", ("channel", 406, BIND))
    def bad_weight(scene: Scene, weight: str = _weight) -> object:
        channel, exchange, (queue,) = hashing(scene, "1")
        return closing(lambda: channel.bind(queue, exchange, weight))


@rule(SECTION, "declaring with hash-header and hash-property", ("channel", 406, EXCHANGE_DECLARE))
def both_arguments(scene: Scene) -> object:
    arguments: dict[str, FieldValue] = {"hash-header": "h", "hash-property": "message_id"}
    return closing(lambda: hashing(scene, arguments=arguments))


@rule(SECTION, "declaring with hash-property", ("channel", 406, EXCHANGE_DECLARE), rabbitmq="nothing closed")
def hash_property(scene: Scene) -> object:
    return closing(lambda: hashing(scene, arguments={"hash-property": "message_id"}))


@rule(
    SECTION,
    "declaring with a hash-header that is a number",
    ("channel", 406, EXCHANGE_DECLARE),
    rabbitmq=("connection", 541, (0, 0)),
)
def header_that_is_no_name(scene: Scene) -> object:
    return closing(lambda: hashing(scene, arguments={"hash-header": 7}))


@rule(SECTION, "declaring again with another hash-header", "nothing closed")
def other_header(scene: Scene) -> object:
    channel, exchange, _ = hashing(scene, arguments={"hash-header": "h"})
    return closing(lambda: channel.declare_exchange(exchange, HASH, arguments={"hash-header": "g"}))


@rule(SECTION, "the weights of several bindings of a queue add up", True, rabbitmq=False)
def added_weights(scene: Scene) -> object:
    channel, exchange, queues = hashing(scene, "1", "1")
    channel.bind(queues[0], exchange, "18")
    for number in range(200):
        channel.publish(exchange, f"key.{number}")
    return sum(queue == 0 for _, queue in taken(channel, queues, 200)) > 150


@rule(SECTION, "a queue that is bound twice stays bound when one of the bindings is removed", [b"m"], rabbitmq=[])
def bound_twice(scene: Scene) -> object:
    from holtmq.wire import methods as wire

    channel, exchange, (queue,) = hashing(scene, "1")
    channel.bind(queue, exchange, "2")
    channel.call(wire.QueueUnbind(0, queue, exchange, "1", {}), wire.QueueUnbindOk)
    channel.publish(exchange, "k")
    channel.settle()
    return channel.drain(queue)
