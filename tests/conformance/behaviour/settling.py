"""Acknowledging, rejecting, requeuing."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import last_seen

SECTION = "Settling"


def _holding(scene: Scene, count: int):  # type: ignore[no-untyped-def]
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, *[b"%d" % n for n in range(1, count + 1)])
    for _ in range(count):
        channel.get(queue, no_ack=False)
    return channel, queue


@rule(SECTION, "an ack settles one message, and a multiple ack all messages up to it", [b"3"])
def ack_multiple(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.ack(2, multiple=True)
    channel.close()
    other = scene.channel()
    return last_seen(lambda: [event.body] if (event := other.get(queue, no_ack=False)) else [], [b"3"])


@rule(SECTION, "a multiple ack of tag 0 settles all messages of the channel", 0)
def ack_all(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.ack(0, multiple=True)
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "acknowledging an unknown delivery tag", ("channel", 406, (60, 80)))
def ack_unknown(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    channel.ack(99)
    return closing(channel.settle)


@rule(SECTION, "acknowledging twice", ("channel", 406, (60, 80)))
def ack_twice(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    channel.ack(1)
    channel.ack(1)
    return closing(channel.settle)


@rule(SECTION, "acknowledging a message delivered with automatic acknowledgement", ("channel", 406, (60, 80)))
def ack_auto_acked(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1")
    channel.get(queue, no_ack=True)
    channel.ack(1)
    return closing(channel.settle)


@rule(SECTION, "nack and reject of an unknown delivery tag", [(60, 120), (60, 90)])
def nack_unknown(scene: Scene) -> object:
    channel, other = scene.channel(), scene.channel()
    channel.nack(7)
    other.reject(7)
    return [closing(channel.settle)[2], closing(other.settle)[2]]


@rule(SECTION, "a requeued message keeps its place and is marked redelivered", [(b"1", True), (b"2", False), (b"3", False)])
def requeue_in_place(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1", b"2", b"3")
    channel.get(queue, no_ack=False)
    channel.nack(1)
    seen = []
    while event := channel.get(queue):
        seen.append((event.body, event.method.redelivered))
    return seen


@rule(SECTION, "messages requeued in another order keep their places", [b"1", b"2", b"3", b"4"])
def requeue_several(scene: Scene) -> object:
    channel, queue = _holding(scene, 4)
    for tag in (3, 1, 4, 2):
        channel.nack(tag)
    channel.settle()
    return channel.drain(queue)


@rule(
    SECTION, "closing a channel requeues its unacknowledged messages in place, marked redelivered", [(b"1", True), (b"2", True)]
)
def channel_close(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.close()
    other = scene.channel()
    seen = []
    while event := other.get(queue):
        seen.append((event.body, event.method.redelivered))
    return seen


@rule(SECTION, "losing a connection requeues its unacknowledged messages", [b"1", b"2"])
def connection_loss(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.amqp.drop()
    other = scene.channel()
    last_seen(lambda: other.count(queue), 2)
    return other.drain(queue)


@rule(SECTION, "recover requeues all unacknowledged messages of the channel", [b"1", b"2"])
def recover(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.call(wire.BasicRecover(requeue=True), wire.BasicRecoverOk)
    return last_seen(lambda: channel.drain(queue), [b"1", b"2"])


@rule(SECTION, "recover without requeue", ("connection", 540, (60, 110)))
def recover_same(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    return closing(lambda: channel.call(wire.BasicRecover(requeue=False), wire.BasicRecoverOk))


@rule(SECTION, "a rejected message is removed", 0)
def reject(scene: Scene) -> object:
    channel, queue = _holding(scene, 1)
    channel.reject(1, requeue=False)
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "a multiple nack requeues all messages up to it", [b"1", b"2"])
def nack_multiple(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.nack(2, multiple=True)
    channel.settle()
    return channel.drain(queue)
