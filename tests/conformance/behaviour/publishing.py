"""Publishing: properties, returns, confirms."""

from __future__ import annotations

from datetime import UTC, datetime

from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties
from holtmq.wire.tables import encode_value, long_string, short_string
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import last_seen

SECTION = "Publishing"
PUBLISH = (60, 40)
ODD_FIELDS = b"\x01nb\x07" + b"\x01nf\x3f\xc0\x00\x00" + b"\x01os\x00\x01"
"""Headers whose types no client would choose, and a name that occurs twice."""


@rule(SECTION, "all properties and headers arrive as they were sent", True)
def properties_survive(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    sent = {
        "content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 2, "priority": 3,
        "headers": {"a": 1, "b": "two", "c": [1, None, {"d": True}], "e": 1.5, "f": b"\xff",
                    "g": datetime(2024, 1, 2, tzinfo=UTC)},
        "correlation_id": "c", "reply_to": "r", "expiration": "60000", "message_id": "m",
        "timestamp": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "type": "t", "user_id": "guest", "app_id": "a",
    }  # fmt: skip
    channel.put(queue, b"body", **sent)
    event = channel.get(queue)
    return event is not None and event.properties == sent


@rule(SECTION, "bodies of 0 bytes, 1 byte, a frame, a frame and a byte, and a megabyte arrive whole", True)
def body_sizes(scene: Scene) -> object:
    amqp, queue = scene.connect(frame_max=4096), scene.queue()
    channel = amqp.channel()
    channel.declare(queue)
    bodies = [bytes(n % 251 for n in range(size)) for size in (0, 1, 4088, 4089, 1_000_000)]
    channel.put(queue, *bodies)
    return channel.drain(queue) == bodies


@rule(SECTION, "a mandatory message that reaches no queue is returned with 312", (312, b"lost", "nowhere"))
def mandatory(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("amq.direct", "nowhere", b"lost", mandatory=True)
    event = channel.next()
    return event.method.reply_code, event.body, event.method.routing_key


@rule(SECTION, "a return comes before the confirm", ["BasicReturn", "BasicAck"])
def return_before_confirm(scene: Scene) -> object:
    channel = scene.channel()
    channel.confirm()
    channel.publish("amq.direct", "nowhere", b"lost", mandatory=True)
    return [type(channel.next().method).__name__ for _ in range(2)]


@rule(SECTION, "confirms count the messages of the channel from 1", 5)
def confirms(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, durable=True)
    channel.confirm()
    for _ in range(5):
        channel.publish("", queue, b"m", delivery_mode=2)
    highest = 0
    while highest < 5:
        highest = max(highest, channel.next().method.delivery_tag)
    return highest


@rule(SECTION, "publishing to an exchange that does not exist", ("channel", 404, PUBLISH))
def missing_exchange(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("no-such-exchange", "k")
    return closing(channel.settle)


@rule(SECTION, "publishing to an internal exchange", ("channel", 403, PUBLISH))
def internal_exchange(scene: Scene) -> object:
    channel, exchange = scene.channel(), scene.exchange()
    channel.declare_exchange(exchange, internal=True)
    channel.publish(exchange, "k")
    return closing(channel.settle)


@rule(SECTION, "publishing to an exchange that another client has deleted", ("channel", 404, PUBLISH))
def exchange_goes(scene: Scene) -> object:
    channel, other, exchange = scene.channel(), scene.channel(), scene.exchange()
    channel.declare_exchange(exchange, "fanout")
    channel.publish(exchange, "k")
    channel.settle()
    other.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)
    channel.publish(exchange, "k")
    return closing(channel.settle)


@rule(SECTION, "publishing with the immediate flag", ("connection", 540, PUBLISH))
def immediate(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("", "k", immediate=True)
    return closing(channel.settle)


@rule(SECTION, "an expiration that is not a number", ("channel", 406, PUBLISH))
def bad_expiration(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("amq.direct", "k", expiration="soon")
    return closing(channel.settle)


@rule(SECTION, "a user_id that is not the user's name", ("channel", 406, PUBLISH))
def wrong_user(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("amq.direct", "k", user_id="somebody")
    return closing(channel.settle)


@rule(SECTION, "BCC is not delivered, CC is", {"CC": ["b"]})
def bcc_is_stripped(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"m", headers={"CC": ["b"], "BCC": ["c"]})
    event = channel.get(queue)
    return event.properties["headers"] if event else None


@rule(SECTION, "when BCC is removed, all other headers stay as they were sent, also a name that occurs twice", True)
def bcc_leaves_the_rest(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    bcc = short_string("BCC") + encode_value(["c"])
    channel.publish_raw("", queue, encode_properties({"headers": long_string(ODD_FIELDS + bcc), "app_id": "a"}), b"m")
    event = channel.get(queue)
    return event is not None and event.raw_properties == encode_properties({"headers": long_string(ODD_FIELDS), "app_id": "a"})


@rule(SECTION, "a CC header that is not an array", ("channel", 406, PUBLISH))
def bad_cc(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("amq.direct", "k", headers={"CC": "b"})
    return closing(channel.settle)


@rule(SECTION, "direct reply-to: a reply reaches the requester without a queue", (b"pong", True))
def direct_reply(scene: Scene) -> object:
    asker, answerer, queue = scene.channel(), scene.channel(), scene.queue()
    answerer.declare(queue)
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    asker.publish("", queue, b"ping", reply_to="amq.rabbitmq.reply-to")
    last_seen(lambda: answerer.count(queue), 1)
    request = answerer.get(queue)
    assert request is not None
    reply_to = request.properties["reply_to"]
    answerer.publish("", reply_to, b"pong")
    return asker.next().body, reply_to.startswith("amq.rabbitmq.reply-to.")


@rule(SECTION, "direct reply-to: the headers of a request stay as they were sent", True)
def direct_reply_headers(scene: Scene) -> object:
    asker, answerer, queue = scene.channel(), scene.channel(), scene.queue()
    answerer.declare(queue)
    asker.consume("amq.rabbitmq.reply-to", no_ack=True)
    properties = {"headers": long_string(ODD_FIELDS), "reply_to": "amq.rabbitmq.reply-to"}
    asker.publish_raw("", queue, encode_properties(properties), b"ping")
    last_seen(lambda: answerer.count(queue), 1)
    request = answerer.get(queue)
    assert request is not None
    return request.raw_properties == encode_properties({**properties, "reply_to": request.properties["reply_to"]})


@rule(SECTION, "direct reply-to without a consumer", ("channel", 406, PUBLISH))
def reply_without_consumer(scene: Scene) -> object:
    channel = scene.channel()
    channel.publish("amq.direct", "k", reply_to="amq.rabbitmq.reply-to")
    return closing(channel.settle)


@rule(SECTION, "direct reply-to with acknowledgements", ("channel", 406, (60, 20)))
def reply_with_ack(scene: Scene) -> object:
    channel = scene.channel()
    return closing(lambda: channel.consume("amq.rabbitmq.reply-to"))


@rule(SECTION, "messages of one channel arrive in order", True)
def order(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    bodies = [b"%d" % n for n in range(500)]
    channel.put(queue, *bodies)
    channel.consume(queue, no_ack=True)
    return channel.bodies(500) == bodies
