"""Acknowledging, rejecting, giving back."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.conformance.behaviour.rule import Scene, closing, eventually, rule

SECTION = "Settling"


def _holding(scene: Scene, count: int):  # type: ignore[no-untyped-def]
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, *[b"%d" % n for n in range(1, count + 1)])
    for _ in range(count):
        channel.get(queue, no_ack=False)
    return channel, queue


@rule(SECTION, "an ack settles one message, a multiple ack all up to it", [b"3"])
def ack_multiple(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.ack(2, multiple=True)
    channel.close()
    other = scene.channel()
    return eventually(lambda: [event.body] if (event := other.get(queue, no_ack=False)) else [], [b"3"])


@rule(SECTION, "a multiple ack of tag 0 settles everything", 0)
def ack_all(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.ack(0, multiple=True)
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "acking a tag that was never given", ("channel", 406, (60, 80)))
def ack_unknown(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    channel.ack(99)
    return closing(channel.settle)


@rule(SECTION, "acking twice", ("channel", 406, (60, 80)))
def ack_twice(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    channel.ack(1)
    channel.ack(1)
    return closing(channel.settle)


@rule(SECTION, "acking what was delivered without need of an ack", ("channel", 406, (60, 80)))
def ack_auto_acked(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.put(queue, b"1")
    channel.get(queue, no_ack=True)
    channel.ack(1)
    return closing(channel.settle)


@rule(SECTION, "nack and reject of a tag that was never given", [(60, 120), (60, 90)])
def nack_unknown(scene: Scene) -> object:
    channel, other = scene.channel(), scene.channel()
    channel.nack(7)
    other.reject(7)
    return [closing(channel.settle)[2], closing(other.settle)[2]]


@rule(SECTION, "a message given back keeps its place and is marked redelivered", [(b"1", True), (b"2", False), (b"3", False)])
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


@rule(SECTION, "several given back in another order keep their places", [b"1", b"2", b"3", b"4"])
def requeue_several(scene: Scene) -> object:
    channel, queue = _holding(scene, 4)
    for tag in (3, 1, 4, 2):
        channel.nack(tag)
    channel.settle()
    return channel.drain(queue)


@rule(SECTION, "closing the channel gives back what it holds, in place, redelivered", [(b"1", True), (b"2", True)])
def channel_close(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.close()
    other = scene.channel()
    seen = []
    while event := other.get(queue):
        seen.append((event.body, event.method.redelivered))
    return seen


@rule(SECTION, "losing the connection gives back what it holds", [b"1", b"2"])
def connection_loss(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.amqp.drop()
    other = scene.channel()
    eventually(lambda: other.count(queue), 2)
    return other.drain(queue)


@rule(SECTION, "recover gives back all that the channel holds", [b"1", b"2"])
def recover(scene: Scene) -> object:
    channel, queue = _holding(scene, 2)
    channel.call(wire.BasicRecover(requeue=True), wire.BasicRecoverOk)
    return eventually(lambda: channel.drain(queue), [b"1", b"2"])


@rule(SECTION, "recover without requeue", ("connection", 540, (60, 110)))
def recover_same(scene: Scene) -> object:
    channel, _ = _holding(scene, 1)
    return closing(lambda: channel.call(wire.BasicRecover(requeue=False), wire.BasicRecoverOk))


@rule(SECTION, "a rejected message is gone", 0)
def reject(scene: Scene) -> object:
    channel, queue = _holding(scene, 1)
    channel.reject(1, requeue=False)
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "a multiple nack gives back all up to it", [b"1", b"2"])
def nack_multiple(scene: Scene) -> object:
    channel, queue = _holding(scene, 3)
    channel.nack(2, multiple=True)
    channel.settle()
    return channel.drain(queue)
