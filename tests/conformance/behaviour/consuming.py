"""Consumers: which of them gets a message, how many at once, and in which order."""

from __future__ import annotations

from collections import Counter

from holtmq.wire import methods as wire
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import last_seen

SECTION = "Consuming"
CONSUME = (60, 20)


@rule(SECTION, "consuming from a queue that does not exist", ("channel", 404, CONSUME))
def missing_queue(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.consume("no-such-queue"))


@rule(SECTION, "a consumer without a tag gets one", True)
def generated_tag(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    return channel.consume(queue).startswith("amq.ctag-")


@rule(SECTION, "a consumer tag used twice on a channel", ("connection", 530, CONSUME))
def tag_twice(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.consume(queue, "c")
    return closing(lambda: channel.consume(queue, "c"))


@rule(SECTION, "consumer tags are per channel", [(1, "c"), (2, "c")])
def tag_per_channel(scene: Scene) -> object:
    amqp, queue = scene.connect(), scene.queue()
    channels = amqp.channel(1), amqp.channel(2)
    channels[0].declare(queue)
    for channel in channels:
        channel.qos(1)
        channel.consume(queue, "c")
    channels[0].put(queue, b"1", b"2")
    return [(channel.number, channel.next().method.consumer_tag) for channel in channels]


@rule(SECTION, "cancelling a consumer that does not exist", "no-such-tag")
def cancel_unknown(scene: Scene) -> object:
    channel = scene.channel()
    return channel.call(wire.BasicCancel("no-such-tag"), wire.BasicCancelOk).consumer_tag


@rule(SECTION, "consumers of equal priority take turns", {"a": 10, "b": 10})
def round_robin(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.consume(queue, "a", no_ack=True)
    channel.consume(queue, "b", no_ack=True)
    channel.settle()
    for _ in range(20):
        channel.publish("", queue)
    return dict(Counter(event.method.consumer_tag for event in channel.deliveries(20)))


@rule(SECTION, "prefetch limits the unacknowledged messages of each consumer of the channel", (3, 7))
def prefetch(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, *[b"m"] * 10)
    channel.qos(3)
    channel.consume(queue)
    return len(channel.deliveries(3)), channel.count(queue)


@rule(SECTION, "an acknowledgement makes room for one more", ([b"1", b"2"], b"3", 1))
def prefetch_refills(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3", b"4")
    channel.qos(2)
    channel.consume(queue)
    first = channel.bodies(2)
    channel.ack(1)
    return first, channel.bodies(1)[0], channel.count(queue)


@rule(SECTION, "global prefetch limits the unacknowledged messages of all consumers of the channel together", (3, 7))
def global_prefetch(scene: Scene) -> object:
    channel, one, other = scene.channel(), scene.queue(), scene.queue()
    for queue in (one, other):
        channel.declare(queue)
        channel.put(queue, *[b"m"] * 5)
    channel.qos(3, is_global=True)
    channel.consume(one)
    channel.consume(other)
    return len(channel.deliveries(3)), channel.count(one) + channel.count(other)


@rule(SECTION, "prefetch does not apply to a consumer with automatic acknowledgement", 10)
def prefetch_no_ack(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, *[b"m"] * 10)
    channel.qos(2)
    channel.consume(queue, no_ack=True)
    return len(channel.deliveries(10))


@rule(SECTION, "prefetch_size other than 0", ("connection", 540, (60, 10)))
def prefetch_size(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.call(wire.BasicQos(1, 1), wire.BasicQosOk))


@rule(
    SECTION,
    "a consumer of higher priority is served first until its prefetch is used up",
    [("high", b"1"), ("high", b"2"), ("low", b"3")],
)
def consumer_priority(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.qos(2)
    channel.consume(queue, "low")
    channel.consume(queue, "high", arguments={"x-priority": 10})
    for body in (b"1", b"2", b"3"):
        channel.publish("", queue, body)
    seen = [(event.method.consumer_tag, event.body) for event in channel.deliveries(3)]
    return sorted(seen)


@rule(SECTION, "a second consumer beside an exclusive one", ("channel", 403, CONSUME))
def exclusive_consumer(scene: Scene) -> object:
    channel, other, queue = scene.channel(), scene.channel(), scene.queue()
    channel.declare(queue)
    channel.consume(queue, exclusive=True)
    return closing(lambda: other.consume(queue))


@rule(SECTION, "an exclusive consumer on a queue that has a consumer", ("channel", 403, CONSUME))
def exclusive_late(scene: Scene) -> object:
    channel, other, queue = scene.channel(), scene.channel(), scene.queue()
    channel.declare(queue)
    channel.consume(queue)
    return closing(lambda: other.consume(queue, exclusive=True))


@rule(
    SECTION, "single active consumer: the first gets all messages until it is cancelled, then the next", ([b"1", b"2"], [b"3"])
)
def single_active(scene: Scene) -> object:
    first, second, queue = scene.channel(), scene.channel(), scene.queue()
    first.declare(queue, single_active_consumer=True)
    first.consume(queue, "one", no_ack=True)
    second.consume(queue, "two", no_ack=True)
    first.publish("", queue, b"1")
    first.publish("", queue, b"2")
    got = first.bodies(2)
    first.cancel("one")
    first.publish("", queue, b"3")
    return got, second.bodies(1)


@rule(SECTION, "messages of higher priority are delivered first, those of equal priority in order", [b"b", b"d", b"a", b"c"])
def message_priority(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_priority=5)
    for body, priority in ((b"a", 1), (b"b", 5), (b"c", 1), (b"d", 9)):
        channel.publish("", queue, body, priority=priority)
    channel.settle()
    return channel.drain(queue)


@rule(SECTION, "without x-max-priority a message's priority is ignored", [b"a", b"b"])
def no_priority(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.publish("", queue, b"a", priority=1)
    channel.publish("", queue, b"b", priority=9)
    channel.settle()
    return channel.drain(queue)


@rule(SECTION, "get-ok gives the number of messages left, and an empty queue gives get-empty", ([2, 1, 0], None))
def get_counts(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    counts = [event.method.message_count for event in (channel.get(queue) for _ in range(3)) if event]
    return counts, channel.get(queue)


@rule(SECTION, "getting from a queue that does not exist", ("channel", 404, (60, 70)))
def get_missing(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.get("no-such-queue"))


@rule(SECTION, "delivery tags count up on a channel across its consumers", [1, 2, 3])
def delivery_tags(scene: Scene) -> object:
    channel, one, other = scene.channel(), scene.queue(), scene.queue()
    for queue in (one, other):
        channel.declare(queue)
    channel.consume(one)
    channel.consume(other)
    for queue in (one, one, other):
        channel.publish("", queue)
    return [event.method.delivery_tag for event in channel.deliveries(3)]


@rule(SECTION, "messages delivered before a cancel stay unacknowledged and can still be acknowledged", 0)
def cancel_keeps(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2")
    channel.qos(0)
    tag = channel.consume(queue)
    channel.deliveries(2)
    channel.cancel(tag)
    channel.ack(2, multiple=True)
    channel.close()
    return last_seen(lambda: scene.channel().count(queue), 0)
