"""Exchanges and queues: declared, declared again, deleted."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.conformance.behaviour.rule import Scene, closing, code, rule
from tests.deadline import last_seen

SECTION = "Declaring"
DECLARE = (50, 10)
EXCHANGE_DECLARE = (40, 10)


@rule(SECTION, "declare-ok gives the name and the numbers of ready messages and consumers", (True, 2, 1))
def declare_ok(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    other = scene.channel()
    other.qos(1)
    other.consume(queue)
    other.deliveries(1)
    answer = channel.declare(queue)
    return answer.queue == queue, answer.message_count, answer.consumer_count


@rule(SECTION, "a queue without a name gets one that starts with amq.gen-", (True, True))
def server_named(scene: Scene) -> object:
    channel = scene.channel()
    one, other = (channel.declare(exclusive=True).queue for _ in range(2))
    return one.startswith("amq.gen-"), one != other


@rule(
    SECTION, 'queue name "" means the last queue declared on the channel, and an empty routing key then means its name', [b"m"]
)
def last_declared(scene: Scene) -> object:
    channel, exchange = scene.channel(), scene.exchange()
    channel.declare_exchange(exchange)
    queue = channel.declare(exclusive=True).queue
    channel.bind("", exchange, "")
    channel.publish(exchange, queue)
    channel.settle()
    return channel.drain("")


@rule(SECTION, 'queue name "" on a channel that has declared no queue', ("channel", 404, (50, 20)))
def none_declared(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.bind("", "amq.topic", "k"))


@rule(SECTION, 'a passive declare of queue name "" does not mean the last queue', ("channel", 404, DECLARE))
def passive_without_name(scene: Scene) -> object:
    channel = scene.channel()
    channel.declare(exclusive=True)
    return closing(lambda: channel.declare("", passive=True))


@rule(SECTION, "a passive declare of the default exchange", ("channel", 403, EXCHANGE_DECLARE))
def passive_default_exchange(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare_exchange("", passive=True))


@rule(SECTION, "declaring a queue again with another durability", ("channel", 406, DECLARE))
def other_durability(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, durable=True)
    return closing(lambda: channel.declare(queue))


@rule(SECTION, "declaring a queue again with another auto-delete", ("channel", 406, DECLARE))
def other_auto_delete(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    return closing(lambda: channel.declare(queue, auto_delete=True))


@rule(SECTION, "declaring a queue again with another known argument", ("channel", 406, DECLARE))
def other_argument(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, message_ttl=1000)
    return closing(lambda: channel.declare(queue, message_ttl=2000))


@rule(SECTION, "declaring a queue again with another unknown argument", 1)
def other_unknown_argument(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, color="red")
    channel.put(queue, b"m")
    return last_seen(lambda: channel.declare(queue, color="blue").message_count, 1)


@rule(SECTION, "declaring a shared queue as exclusive", ("channel", 405, DECLARE))
def other_exclusive(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    return closing(lambda: channel.declare(queue, exclusive=True))


@rule(
    SECTION,
    "an exclusive queue used by another connection: declare, bind, consume, get, purge, delete, passive declare",
    [405] * 7,
)
def exclusive_to_others(scene: Scene) -> object:
    owner, queue = scene.channel(), scene.queue()
    owner.declare(queue, exclusive=True)
    other = scene.connect()
    seen = []
    for attempt in (
        lambda c: c.declare(queue, exclusive=True),
        lambda c: c.bind(queue, "amq.topic", "k"),
        lambda c: c.consume(queue),
        lambda c: c.get(queue),
        lambda c: c.call(wire.QueuePurge(0, queue), wire.QueuePurgeOk),
        lambda c: c.delete(queue),
        lambda c: c.declare(queue, passive=True),
    ):
        channel = other.channel()
        seen.append(code(attempt, channel))
    return seen


@rule(SECTION, "an exclusive queue is deleted with its connection", ("channel", 404, DECLARE))
def exclusive_goes(scene: Scene) -> object:
    owner, queue = scene.connect(), scene.queue()
    owner.channel().declare(queue, exclusive=True)
    owner.close()
    channel = scene.channel()
    return closing(lambda: channel.declare(queue, passive=True))


@rule(
    SECTION,
    "an auto-delete queue is deleted with its last consumer, and not before it had one",
    (True, ("channel", 404, DECLARE)),
)
def auto_delete_goes(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, auto_delete=True)
    scene.channel().declare(queue, passive=True)
    is_there = channel.declare(queue, passive=True).queue == queue
    channel.consume(queue, "c")
    channel.cancel("c")
    return is_there, closing(lambda: channel.declare(queue, passive=True))


@rule(SECTION, "passive declare of a queue that does not exist", ("channel", 404, DECLARE))
def passive_missing(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare("no-such-queue", passive=True))


@rule(SECTION, "passive declare checks the name only, and changes nothing", (1, [b"by topic"]))
def passive_name_only(scene: Scene) -> object:
    channel, queue, exchange = scene.channel(), scene.queue(), scene.exchange()
    channel.declare(queue, durable=True, max_length=5)
    channel.declare_exchange(exchange, "topic")
    channel.declare_exchange(exchange, "fanout", passive=True)
    channel.bind(queue, exchange, "a.*")
    channel.publish(exchange, "a.b", b"by topic")
    channel.publish(exchange, "b.b", b"by fanout")
    channel.settle()
    return last_seen(lambda: channel.count(queue), 1), channel.drain(queue)


@rule(SECTION, "passive declare of an exchange that does not exist", ("channel", 404, EXCHANGE_DECLARE))
def passive_missing_exchange(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare_exchange("no-such-exchange", passive=True))


@rule(SECTION, "declaring a queue with a name in amq.", ("channel", 403, DECLARE))
def reserved_queue(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare("amq.mine"))


@rule(SECTION, "declaring an exchange with a name in amq.", ("channel", 403, EXCHANGE_DECLARE))
def reserved_exchange(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare_exchange("amq.mine"))


@rule(SECTION, "declaring a predeclared exchange as it is", [b"amq.direct", b"amq.topic", b"amq.match"])
def predeclared(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    for name, type_ in (("amq.direct", "direct"), ("amq.topic", "topic"), ("amq.match", "headers")):
        channel.declare_exchange(name, type_, durable=True)
        channel.bind(queue, name, queue)
        channel.publish(name, queue, name.encode())
    channel.settle()
    return channel.drain(queue)


@rule(
    SECTION, "declaring an exchange of an unknown type",
    ("channel", 406, EXCHANGE_DECLARE), rabbitmq=("connection", 503, EXCHANGE_DECLARE),
)  # fmt: skip
def unknown_type(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.declare_exchange("e", "no-such-type"))


@rule(SECTION, "declaring an exchange again with another type, durability, auto-delete or internal flag", [406] * 4)
def other_exchange(scene: Scene) -> object:
    amqp, exchange, seen = scene.connect(), scene.exchange(), []
    amqp.channel().declare_exchange(exchange, "topic")
    for change in ({"kind": "fanout"}, {"durable": True}, {"auto_delete": True}, {"internal": True}):
        channel = amqp.channel(2)
        seen.append(code(channel.declare_exchange, exchange, **{"kind": "topic", **change}))
    return seen


@rule(SECTION, "deleting a queue or an exchange that does not exist", 0)
def delete_missing(scene: Scene) -> object:
    channel = scene.channel()
    channel.call(wire.ExchangeDelete(0, "no-such-exchange"), wire.ExchangeDeleteOk)
    return channel.delete("no-such-queue")


@rule(SECTION, "delete-ok gives the number of messages that were deleted with the queue", 2)
def delete_count(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2")
    return channel.delete(queue)


@rule(SECTION, "deleting a queue if unused, with a consumer", ("channel", 406, (50, 40)))
def delete_used(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.consume(queue)
    return closing(lambda: channel.delete(queue, if_unused=True))


@rule(SECTION, "deleting a queue if empty, with a message", ("channel", 406, (50, 40)))
def delete_filled(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1")
    return closing(lambda: channel.delete(queue, if_empty=True))


@rule(SECTION, "deleting an exchange if unused, with a binding", ("channel", 406, (40, 20)))
def delete_used_exchange(scene: Scene) -> object:
    channel, queue, exchange = scene.channel(), scene.queue(), scene.exchange()
    channel.declare(queue)
    channel.declare_exchange(exchange)
    channel.bind(queue, exchange, "k")
    return closing(lambda: channel.call(wire.ExchangeDelete(0, exchange, if_unused=True), wire.ExchangeDeleteOk))


@rule(
    SECTION,
    "deleting a queue cancels its consumers, and notifies clients with the capability consumer_cancel_notify",
    ("c", True),
)
def delete_cancels(scene: Scene) -> object:
    consumer, deaf, channel, queue = scene.channel(), scene.channel(capabilities={}), scene.channel(), scene.queue()
    channel.declare(queue)
    consumer.consume(queue, "c")
    deaf.consume(queue)
    channel.delete(queue)
    event = consumer.next()
    assert isinstance(event.method, wire.BasicCancel)
    return event.method.consumer_tag, deaf.is_silent()


@rule(SECTION, "an invalid value of a queue argument", [406] * 9)
def bad_arguments(scene: Scene) -> object:
    amqp, seen = scene.connect(), []
    for arguments in (
        {"message_ttl": -1}, {"message_ttl": "1000"}, {"expires": 0}, {"max_length": -1}, {"max_length_bytes": "big"},
        {"max_priority": 256}, {"overflow": "explode"}, {"dead_letter_exchange": 5}, {"dead_letter_routing_key": "k"},
    ):  # fmt: skip
        channel, queue = amqp.channel(), scene.queue()
        seen.append(code(channel.declare, queue, **arguments))
    return seen


@rule(SECTION, "purge removes ready messages, and not unacknowledged ones", (2, [b"1"]))
def purge(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    channel.get(queue, no_ack=False)
    purged = channel.call(wire.QueuePurge(0, queue), wire.QueuePurgeOk).message_count
    channel.nack(1)
    return purged, last_seen(lambda: channel.drain(queue), [b"1"])


@rule(SECTION, "purging a queue that does not exist", ("channel", 404, (50, 30)))
def purge_missing(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.call(wire.QueuePurge(0, "no-such-queue"), wire.QueuePurgeOk))


@rule(SECTION, "binding to a missing exchange, or a missing queue", [("channel", 404, (50, 20))] * 2)
def bind_missing(scene: Scene) -> object:
    amqp, queue = scene.connect(), scene.queue()
    channel = amqp.channel()
    channel.declare(queue)
    first = closing(lambda: channel.bind(queue, "no-such-exchange", "k"))
    channel = amqp.channel()
    return [first, closing(lambda: channel.bind("no-such-queue", "amq.topic", "k"))]


@rule(
    SECTION,
    "unbinding with arguments that differ from those of the binding",
    ("channel", 406, (50, 50)),
    rabbitmq="nothing closed",
)
def unbind_mismatch(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.bind(queue, "amq.topic", "k", {"n": 1})
    return closing(lambda: channel.call(wire.QueueUnbind(0, queue, "amq.topic", "k", {"n": 2}), wire.QueueUnbindOk))
