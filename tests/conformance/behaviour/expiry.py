"""Time: of messages and of queues."""

from __future__ import annotations

from tests.conformance.behaviour.rule import Scene, closing, eventually, rule

SECTION = "Time to live"


@rule(SECTION, "a queue's message TTL", 0)
def queue_ttl(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, message_ttl=30)
    channel.put(queue, b"m")
    return eventually(lambda: channel.count(queue), 0)


@rule(SECTION, "of the queue's and the message's own the shorter one counts", (0, 1))
def shorter_counts(scene: Scene) -> object:
    channel, short, long = scene.channel(), scene.queue(), scene.queue()
    channel.declare(short, message_ttl=30)
    channel.declare(long, message_ttl=60_000)
    channel.put(short, b"m", expiration="60000")
    channel.put(long, b"m", expiration="60000")
    return eventually(lambda: channel.count(short), 0), channel.count(long)


@rule(SECTION, "a TTL of 0: only a consumer that waits gets it", ([b"now"], 0))
def ttl_zero(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, message_ttl=0)
    channel.put(queue, b"too early")
    eventually(lambda: channel.count(queue), 0)
    channel.consume(queue, "c", no_ack=True)
    channel.publish("", queue, b"now")
    bodies = channel.bodies(1)
    return bodies, channel.count(queue)


@rule(SECTION, "a message's own expiration is looked at when it comes to the front", [b"stays"])
def at_the_front(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"goes", expiration="20")
    channel.put(queue, b"stays")
    eventually(lambda: channel.count(queue), 1)
    return channel.drain(queue)


@rule(SECTION, "what a consumer holds does not expire", [(b"m", 1)])
def held_does_not_expire(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.publish("", queue, b"m", expiration="200")
    channel.settle()
    event = channel.get(queue, no_ack=False)
    channel.put(queue, b"marker", expiration="300")
    eventually(lambda: channel.count(queue), 0)
    return [(event.body, event.method.delivery_tag)] if event else []


@rule(SECTION, "a queue that nobody uses for x-expires goes", ("channel", 404, (50, 10)))
def queue_expires(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, expires=50)
    scene.connect()
    import time

    time.sleep(0.4)
    return closing(lambda: channel.declare(queue, passive=True))


@rule(SECTION, "a queue with a consumer does not expire", True)
def used_queue_stays(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, expires=50)
    channel.consume(queue)
    import time

    time.sleep(0.3)
    return channel.declare(queue, passive=True).queue == queue
