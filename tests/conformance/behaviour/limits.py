"""Queue and channel limits."""

from __future__ import annotations

from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import last_seen

SECTION = "Limits"


@rule(SECTION, "max-length drops the oldest", [b"2", b"3"])
def drop_head(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=2)
    channel.put(queue, b"1", b"2", b"3")
    return channel.drain(queue)


@rule(SECTION, "max-length-bytes counts bodies", [b"bbbb", b"cccc"])
def drop_bytes(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length_bytes=10)
    channel.put(queue, b"aaaa", b"bbbb", b"cccc")
    return channel.drain(queue)


@rule(SECTION, "unacknowledged messages do not count towards the limit", (b"1", [b"2"]))
def held_does_not_count(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=1)
    channel.put(queue, b"1")
    event = channel.get(queue, no_ack=False)
    channel.put(queue, b"2")
    return event.body if event else None, channel.drain(queue)


@rule(SECTION, "reject-publish refuses the newest with a nack", (["BasicAck", "BasicNack"], [b"1"]))
def reject_publish(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=1, overflow="reject-publish")
    channel.confirm()
    seen = []
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
        seen.append(type(channel.next().method).__name__)
    return seen, channel.drain(queue)


@rule(SECTION, "reject-publish-dlx also dead-letters the newest", ([b"1"], [b"2"]))
def reject_publish_dlx(scene: Scene) -> object:
    channel, queue, dead = scene.channel(), scene.queue(), scene.queue()
    channel.declare(dead)
    channel.declare(queue, max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.put(queue, b"1", b"2")
    last_seen(lambda: channel.count(dead), 1)
    return channel.drain(queue), channel.drain(dead)


@rule(SECTION, "a max-length of 0 delivers messages to waiting consumers and keeps none", ([b"now"], 0))
def length_zero(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=0)
    channel.put(queue, b"too early")
    channel.consume(queue, no_ack=True)
    channel.publish("", queue, b"now")
    return channel.bodies(1), channel.count(queue)


@rule(SECTION, "a queue with a limit and a fast consumer loses nothing", True)
def limit_with_consumer(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=1)
    channel.consume(queue, no_ack=True)
    channel.settle()
    bodies = [b"%d" % n for n in range(20)]
    for body in bodies:
        channel.publish("", queue, body)
    return channel.bodies(20) == bodies


@rule(SECTION, "more channels than channel_max", ("connection", 530, (20, 10)), rabbitmq=("connection", 530, (0, 0)))
def too_many_channels(scene: Scene) -> object:
    amqp = scene.connect(channel_max=5)
    for number in range(1, 6):
        amqp.channel(number)
    return closing(lambda: amqp.channel(6))


@rule(SECTION, "a channel number above channel_max", ("connection", 530, (20, 10)), rabbitmq="nothing closed")
def channel_above_the_maximum(scene: Scene) -> object:
    amqp = scene.connect(channel_max=5)
    return closing(lambda: amqp.channel(6))
