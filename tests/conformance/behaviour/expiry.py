"""Expiry of messages and of queues."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.amqp_client import ClosedError
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import eventually, last_seen

SECTION = "Time to live"


@rule(SECTION, "a queue's message TTL", 0)
def queue_ttl(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, message_ttl=30)
    channel.put(queue, b"m")
    return last_seen(lambda: channel.count(queue), 0)


@rule(SECTION, "the shorter of the queue's and the message's TTL applies", (0, 1))
def shorter_counts(scene: Scene) -> object:
    channel, short, long = scene.channel(), scene.queue(), scene.queue()
    channel.declare(short, message_ttl=30)
    channel.declare(long, message_ttl=60_000)
    channel.put(short, b"m", expiration="60000")
    channel.put(long, b"m", expiration="60000")
    return last_seen(lambda: channel.count(short), 0), last_seen(lambda: channel.count(long), 1)


@rule(SECTION, "a message with a TTL of 0 is delivered only to a consumer that is waiting", ([b"now"], 0))
def ttl_zero(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, message_ttl=0)
    channel.put(queue, b"too early")
    last_seen(lambda: channel.count(queue), 0)
    channel.consume(queue, "c", no_ack=True)
    channel.publish("", queue, b"now")
    bodies = channel.bodies(1)
    return bodies, channel.count(queue)


@rule(SECTION, "a message's own expiration is checked when it reaches the head of the queue", [b"stays"])
def at_the_front(scene: Scene) -> object:
    channel, queue, dead = scene.channel(), scene.queue(), scene.queue()
    channel.declare(dead)
    channel.declare(queue, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.put(queue, b"goes", expiration="20")
    channel.put(queue, b"stays")
    last_seen(lambda: channel.count(dead), 1)
    return channel.drain(queue)


@rule(SECTION, "an unacknowledged message does not expire", (b"held", [b"ready"], "nothing closed"))
def unacknowledged_does_not_expire(scene: Scene) -> object:
    channel, queue, dead = scene.channel(), scene.queue(), scene.queue()
    channel.declare(dead)
    channel.declare(queue, dead_letter_exchange="", dead_letter_routing_key=dead)
    channel.qos(1)
    channel.consume(queue)
    for body in (b"held", b"ready"):
        channel.publish("", queue, body, expiration="1")
    held = channel.next()
    last_seen(lambda: channel.count(dead), 1)
    expired = channel.drain(dead)
    channel.ack(held.method.delivery_tag)
    return held.body, expired, closing(channel.settle)


@rule(SECTION, "a queue that is unused for x-expires is deleted", ("channel", 404, (50, 10)))
def queue_expires(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, expires=50)
    _wait_until_deleted(scene, queue)
    return closing(lambda: channel.declare(queue, passive=True))


@rule(SECTION, "a queue with a consumer does not expire", [b"still here"])
def used_queue_stays(scene: Scene) -> object:
    channel, used, unused = scene.channel(), scene.queue(), scene.queue()

    def is_used() -> bool:
        """Declare the queue and consume from it, unless it has expired between the two."""
        channel.declare(used, expires=50)
        try:
            channel.consume(used, no_ack=True)
        except ClosedError:
            channel.reopen()
            return False
        return True

    eventually(is_used, "a consumer before the queue expires")
    channel.declare(unused, expires=50)
    _wait_until_deleted(scene, unused)
    channel.publish("", used, b"still here")
    return channel.bodies(1)


def _wait_until_deleted(scene: Scene, queue: str) -> None:
    """Publish to the queue until its messages are returned. Declaring it would count as a use."""
    channel = scene.channel()
    channel.confirm()

    def is_deleted() -> bool:
        channel.publish("", queue, mandatory=True)
        is_returned = isinstance(channel.next().method, wire.BasicReturn)
        if is_returned:
            channel.next()  # the confirm
        return is_returned

    eventually(is_deleted, "the queue to expire")
