"""Streams: declaring them, and reading them from any place on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holtmq.table import FieldValue
from holtmq.wire import methods as wire
from tests.amqp_client import Channel, ClosedError
from tests.conformance.behaviour.rule import Scene, closing, code, rule

SECTION = "Streams"
DECLARE, CONSUME, GET, PURGE = (50, 10), (60, 20), (60, 70), (50, 30)


def declared(scene: Scene, *bodies: bytes, **arguments: FieldValue) -> tuple[Channel, str]:
    """Declare a stream and store messages, one after the other."""
    channel, queue = scene.channel(), scene.queue()
    declare(channel, queue, **arguments)
    channel.confirm()
    for body in bodies:
        append(channel, queue, body)
    return channel, queue


def append(channel: Channel, queue: str, body: bytes, **properties: Any) -> None:
    """Publish a message, and wait until it is stored."""
    channel.publish("", queue, body, **properties)
    assert isinstance(channel.next().method, wire.BasicAck)


def reader(scene: Scene, queue: str, offset: FieldValue = "first", prefetch: int = 100, **arguments: FieldValue) -> Channel:
    """Consume on a new connection."""
    channel = scene.channel()
    channel.qos(prefetch)
    given = {f"x-stream-{name.replace('_', '-')}": value for name, value in arguments.items()}
    channel.consume(queue, "c", arguments={**({} if offset is None else {"x-stream-offset": offset}), **given})
    return channel


def declare(channel: Channel, queue: str, **arguments: FieldValue) -> None:
    table = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    method = wire.QueueDeclare(0, queue, durable=True, arguments={"x-queue-type": "stream", **table})
    channel.call(method, wire.QueueDeclareOk)


def codes(scene: Scene, **arguments: FieldValue) -> dict[str, Any]:
    """Return the outcome of declaring a stream with each of these arguments."""
    return {
        f"x-{name.replace('_', '-')}": code(declare, scene.channel(), scene.queue(), **{name: value})
        for name, value in arguments.items()
    }


@rule(SECTION, "declaring a stream that is not durable, exclusive, auto-delete, or without a name", [406, 406, 406, 406])
def flags(scene: Scene) -> object:
    channels = [scene.channel() for _ in range(4)]
    return [
        code(lambda: channels[0].declare(scene.queue(), queue_type="stream")),
        code(lambda: channels[1].declare(scene.queue(), durable=True, exclusive=True, queue_type="stream")),
        code(lambda: channels[2].declare(scene.queue(), durable=True, auto_delete=True, queue_type="stream")),
        code(lambda: channels[3].declare("", durable=True, queue_type="stream")),
    ]


@rule(SECTION, "a stream with arguments of other queues", dict.fromkeys((
    "x-message-ttl", "x-expires", "x-max-length", "x-overflow", "x-dead-letter-exchange", "x-dead-letter-routing-key",
    "x-max-priority", "x-single-active-consumer", "x-delivery-limit", "x-queue-mode",
), 406))  # fmt: skip
def refused_arguments(scene: Scene) -> object:
    return codes(
        scene, message_ttl=1, expires=1000, max_length=1, overflow="drop-head", dead_letter_exchange="",
        dead_letter_routing_key="k", max_priority=1, single_active_consumer=True, delivery_limit=1, queue_mode="lazy",
    )  # fmt: skip


@rule(
    SECTION,
    "a stream with arguments that are its own, and with one that nobody knows",
    {
        "x-max-length-bytes": "nothing closed",
        "x-max-age": "nothing closed",
        "x-stream-max-segment-size-bytes": "nothing closed",
        "x-initial-cluster-size": "nothing closed",
        "x-queue-leader-locator": "nothing closed",
        "x-whatever": "nothing closed",
    },
)
def own_arguments(scene: Scene) -> object:
    return codes(
        scene, max_length_bytes=10**9, max_age="7D", stream_max_segment_size_bytes=10**6, initial_cluster_size=1,
        queue_leader_locator="client-local", whatever=1,
    )  # fmt: skip


@rule(SECTION, "x-max-age of 1Y, 1M, 1D, 1h, 1m, 1s; 7, 7d, 7 D, 1D1h, the number 7", ["nothing closed"] * 6 + [406] * 5)
def ages(scene: Scene) -> object:
    values: list[FieldValue] = ["1Y", "1M", "1D", "1h", "1m", "1s", "7", "7d", "7 D", "1D1h", 7]
    return [codes(scene, max_age=value)["x-max-age"] for value in values]


@rule(SECTION, "x-max-length-bytes and x-stream-max-segment-size-bytes below 0", [406, 406])
def negative(scene: Scene) -> object:
    return list(codes(scene, max_length_bytes=-1, stream_max_segment_size_bytes=-1).values())


@rule(SECTION, "declaring a stream again with another x-max-age", ("channel", 406, DECLARE))
def inequivalent(scene: Scene) -> object:
    channel, queue = declared(scene, max_age="1D")
    return closing(declare, channel, queue, max_age="2D")


@rule(SECTION, "consuming without a prefetch", ("channel", 406, CONSUME))
def no_prefetch(scene: Scene) -> object:
    channel, queue = declared(scene)
    return closing(lambda: channel.consume(queue))


@rule(SECTION, "consuming with a global prefetch, alone and beside that of the consumer", [406, 540])
def global_prefetch(scene: Scene) -> object:
    channel, queue = declared(scene)
    other = scene.channel()
    other.qos(10)
    for each in (channel, other):
        each.qos(10, is_global=True)
    return [code(lambda: channel.consume(queue)), code(lambda: other.consume(queue))]


@rule(SECTION, "consuming with automatic acknowledgement", ("connection", 540, CONSUME))
def no_ack(scene: Scene) -> object:
    channel, queue = declared(scene)
    channel.qos(10)
    return closing(lambda: channel.consume(queue, no_ack=True))


@rule(SECTION, "an exclusive consumer, and another one beside it", ["nothing closed", "nothing closed"])
def exclusive(scene: Scene) -> object:
    channel, queue = declared(scene)
    other = scene.channel()
    channel.qos(10)
    other.qos(10)
    return [closing(lambda: channel.consume(queue, exclusive=True)), closing(lambda: other.consume(queue))]


@rule(
    SECTION,
    "a consumer with arguments of other consumers, and with one that nobody knows",
    {"x-priority": 406, "x-cancel-on-ha-failover": 406, "x-whatever": "nothing closed"},
)
def consumer_arguments(scene: Scene) -> object:
    _, queue = declared(scene)
    outcomes = {}
    for name, value in (("x-priority", 1), ("x-cancel-on-ha-failover", True), ("x-whatever", 1)):
        channel = scene.channel()
        channel.qos(10)
        outcomes[name] = code(channel.consume, queue, arguments={name: value})
    return outcomes


@rule(
    SECTION,
    "messages have offsets from 0 on, in the header x-stream-offset; other headers stay",
    [({"x-stream-offset": 0}, b"a"), ({"x-stream-offset": 1, "k": "v"}, b"b"), ({"x-stream-offset": 2}, b"c")],
)
def offsets(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    append(channel, queue, b"b", headers={"k": "v"})
    append(channel, queue, b"c", headers={"x-stream-offset": "old"})
    return [(event.properties["headers"], event.body) for event in reader(scene, queue).deliveries(3)]


@rule(SECTION, "any number of consumers read all messages, and read them again", [[b"a", b"b"]] * 3)
def read_again(scene: Scene) -> object:
    _, queue = declared(scene, b"a", b"b")
    return [reader(scene, queue).bodies(2) for _ in range(3)]


@rule(
    SECTION,
    "of four messages, x-stream-offset first, last, next, none, 2 and an hour ago give; the fifth comes afterwards",
    {"first": b"01234", "last": b"34", "next": b"4", "None": b"4", "2": b"234", "1h": b"01234"},
)
def starts(scene: Scene) -> object:
    channel, queue = declared(scene, b"0", b"1", b"2", b"3")
    wanted: list[FieldValue] = ["first", "last", "next", None, 2, "1h"]
    readers = {str(offset): reader(scene, queue, offset) for offset in wanted}
    append(channel, queue, b"4")
    return {offset: until(one, b"4") for offset, one in readers.items()}


def until(channel: Channel, last: bytes) -> bytes:
    """Return the bodies of all deliveries up to this one."""
    bodies = [channel.bodies(1)[0]]
    while bodies[-1] != last:
        bodies += channel.bodies(1)
    return b"".join(bodies)


@rule(SECTION, "x-stream-offset with a timestamp before all messages, and with one after them", [b"ab", b"b"])
def timestamps(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    early = reader(scene, queue, datetime(2001, 1, 1, tzinfo=UTC))
    late = reader(scene, queue, datetime(2091, 1, 1, tzinfo=UTC))
    append(channel, queue, b"b")
    return [until(early, b"b"), until(late, b"b")]


@rule(SECTION, "x-stream-offset with an offset that does not exist yet waits for it", b"c")
def future_offset(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    late = reader(scene, queue, 2)
    append(channel, queue, b"b")
    append(channel, queue, b"c")
    return late.bodies(1)[0]


@rule(
    SECTION,
    "x-stream-offset of `soon`, 1w, the empty string, -1",
    [406, 406, 406, 406],
    rabbitmq=[541, 406, 541, "nothing closed"],
)
def bad_offsets(scene: Scene) -> object:
    _, queue = declared(scene)
    values: list[FieldValue] = ["soon", "1w", "", -1]
    return [code(reader, scene, queue, value) for value in values]


@rule(SECTION, "an acknowledgement makes room for one more", [b"ab", b"c", b"de"])
def credit(scene: Scene) -> object:
    _, queue = declared(scene, b"a", b"b", b"c", b"d", b"e")
    channel = reader(scene, queue, prefetch=2)
    got = [b"".join(channel.bodies(2))]
    channel.ack(1)
    got += channel.bodies(1)
    channel.ack(3, multiple=True)
    return [*got, b"".join(channel.bodies(2))]


@rule(SECTION, "basic.nack and basic.reject make room as well (RabbitMQ: in later versions)", b"abcd", rabbitmq=540)
def refused(scene: Scene) -> object:
    _, queue = declared(scene, b"a", b"b", b"c", b"d")
    channel = reader(scene, queue, prefetch=1)
    got = channel.bodies(1)
    try:
        channel.nack(1, requeue=True)
        got += channel.bodies(1)
        channel.nack(2, requeue=False)
        got += channel.bodies(1)
        channel.reject(3, requeue=True)
        got += channel.bodies(1)
    except ClosedError as error:
        return error.code
    return b"".join(got)


@rule(SECTION, "what was not acknowledged is not redelivered as such", [(False, b"a"), (False, b"b")])
def not_redelivered(scene: Scene) -> object:
    _, queue = declared(scene, b"a", b"b")
    reader(scene, queue).deliveries(2)
    return [(event.method.redelivered, event.body) for event in reader(scene, queue).deliveries(2)]


@rule(SECTION, "basic.get from a stream", ("connection", 540, GET))
def get(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    return closing(lambda: channel.get(queue))


@rule(SECTION, "purging a stream", ("connection", 540, PURGE))
def purge(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    return closing(lambda: channel.call(wire.QueuePurge(0, queue), wire.QueuePurgeOk))


@rule(SECTION, "deleting a stream that has messages and consumers, if it is empty and unused", 0)
def delete(scene: Scene) -> object:
    channel, queue = declared(scene, b"a")
    reader(scene, queue).deliveries(1)
    return channel.delete(queue, if_empty=True, if_unused=True)


@rule(SECTION, "the consumer of a stream that is deleted is cancelled", "c")
def cancelled(scene: Scene) -> object:
    channel, queue = declared(scene)
    one = reader(scene, queue)
    channel.delete(queue)
    event = one.next()
    assert isinstance(event.method, wire.BasicCancel)
    return event.method.consumer_tag


@rule(SECTION, "a transient message, and one with an expiration of 0, are stored all the same", [b"a", b"b"])
def transient(scene: Scene) -> object:
    channel, queue = declared(scene)
    append(channel, queue, b"a", delivery_mode=1)
    append(channel, queue, b"b", delivery_mode=2, expiration="0")
    return reader(scene, queue).bodies(2)


@rule(SECTION, "messages reach a stream through its bindings, and an unroutable one is returned", ([b"a"], b"b"))
def bindings(scene: Scene) -> object:
    channel, queue = declared(scene)
    channel.bind(queue, "amq.topic", f"{queue}.#")
    channel.publish("amq.topic", f"{queue}.x", b"a", mandatory=True)
    assert isinstance(channel.next().method, wire.BasicAck)
    channel.publish("amq.topic", "elsewhere", b"b", mandatory=True)
    return reader(scene, queue).bodies(1), channel.next().body


@rule(SECTION, "a stream takes part in a transaction", [b"b"])
def transaction(scene: Scene) -> object:
    _, queue = declared(scene)
    channel = scene.channel()
    channel.call(wire.TxSelect(), wire.TxSelectOk)
    channel.publish("", queue, b"a")
    channel.call(wire.TxRollback(), wire.TxRollbackOk)
    channel.publish("", queue, b"b")
    channel.call(wire.TxCommit(), wire.TxCommitOk)
    return reader(scene, queue).bodies(1)


@rule(
    SECTION,
    "x-stream-filter gives the messages whose x-stream-filter-value it names (RabbitMQ: from 3.13 on, by chunk)",
    b"ace",
    rabbitmq=b"abcde",
)
def filtered(scene: Scene) -> object:
    channel, queue = declared(scene)
    for body, value in ((b"a", "x"), (b"b", "y"), (b"c", "x"), (b"d", None), (b"e", "x")):
        append(channel, queue, body, headers={} if value is None else {"x-stream-filter-value": value})
    return until(reader(scene, queue, filter="x"), b"e")


@rule(SECTION, "x-stream-match-unfiltered gives messages without a value as well", b"acd", rabbitmq=b"abcd")
def unfiltered(scene: Scene) -> object:
    channel, queue = declared(scene)
    for body, value in ((b"a", "x"), (b"b", "y"), (b"c", "x"), (b"d", None)):
        append(channel, queue, body, headers={} if value is None else {"x-stream-filter-value": value})
    return until(reader(scene, queue, filter=["x", "z"], match_unfiltered=True), b"d")


@rule(SECTION, "a message with the x-publisher and x-publishing-id of an earlier one is stored once", b"abd", rabbitmq=b"abcd")
def deduplicated(scene: Scene) -> object:
    channel, queue = declared(scene)
    for body, number in ((b"a", 1), (b"b", 2), (b"c", 2), (b"d", 3)):
        append(channel, queue, body, headers={"x-publisher": "p", "x-publishing-id": number})
    return until(reader(scene, queue), b"d")
