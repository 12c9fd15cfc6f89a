"""Transactions."""

from __future__ import annotations

from holtmq.wire import methods as wire
from tests.amqp_client import Channel
from tests.conformance.behaviour.rule import Scene, closing, rule
from tests.deadline import last_seen

SECTION = "Transactions"


def _transactional(scene: Scene) -> tuple[Channel, str]:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue)
    channel.call(wire.TxSelect(), wire.TxSelectOk)
    return channel, queue


@rule(SECTION, "published messages are in the queue after the commit, and not before", (0, [b"1", b"2"]))
def publish(scene: Scene) -> object:
    channel, queue = _transactional(scene)
    channel.publish("", queue, b"1")
    channel.publish("", queue, b"2")
    channel.settle()
    before = scene.channel().count(queue)
    channel.call(wire.TxCommit(), wire.TxCommitOk)
    return before, scene.channel().drain(queue)


@rule(SECTION, "a rollback discards published messages", 0)
def roll_back(scene: Scene) -> object:
    channel, queue = _transactional(scene)
    channel.publish("", queue, b"1")
    channel.call(wire.TxRollback(), wire.TxRollbackOk)
    channel.call(wire.TxCommit(), wire.TxCommitOk)
    return scene.channel().count(queue)


@rule(SECTION, "an ack takes effect at the commit, and a rollback undoes it", (1, 0))
def ack(scene: Scene) -> object:
    channel, queue = _transactional(scene)
    scene.channel().put(queue, b"1")
    channel.get(queue, no_ack=False)
    channel.ack(1)
    channel.call(wire.TxRollback(), wire.TxRollbackOk)
    channel.close()
    returned = last_seen(lambda: scene.channel().count(queue), 1)
    channel = channel.reopen()
    channel.call(wire.TxSelect(), wire.TxSelectOk)
    channel.get(queue, no_ack=False)
    channel.ack(1)
    channel.call(wire.TxCommit(), wire.TxCommitOk)
    channel.close()
    return returned, scene.channel().count(queue)


@rule(SECTION, "closing a channel rolls its transaction back", 0)
def closed(scene: Scene) -> object:
    channel, queue = _transactional(scene)
    channel.publish("", queue, b"1")
    channel.close()
    return scene.channel().count(queue)


@rule(SECTION, "commit and rollback without select", [("channel", 406, (90, 20)), ("channel", 406, (90, 30))])
def without_select(scene: Scene) -> object:
    one, other = scene.channel(), scene.channel()
    return [
        closing(lambda: one.call(wire.TxCommit(), wire.TxCommitOk)),
        closing(lambda: other.call(wire.TxRollback(), wire.TxRollbackOk)),
    ]


@rule(SECTION, "confirms and transactions on one channel", [("channel", 406, (85, 10)), ("channel", 406, (90, 10))])
def mixed(scene: Scene) -> object:
    one, other = scene.channel(), scene.channel()
    one.call(wire.TxSelect(), wire.TxSelectOk)
    other.confirm()
    return [closing(one.confirm), closing(lambda: other.call(wire.TxSelect(), wire.TxSelectOk))]


@rule(
    SECTION,
    "a commit fails if a full queue rejects one of its messages, and all others are published",
    (("channel", 406, (90, 20)), [b"1"], [b"4"], 0),
)
def rejected(scene: Scene) -> object:
    channel, full, other, source = scene.channel(), scene.queue(), scene.queue(), scene.queue()
    channel.declare(full, max_length=1, overflow="reject-publish")
    channel.declare(other)
    channel.declare(source)
    channel.put(source, b"acknowledged in the transaction")
    channel.call(wire.TxSelect(), wire.TxSelectOk)
    channel.get(source, no_ack=False)
    for queue, body in ((full, b"1"), (full, b"2"), (full, b"3"), (other, b"4")):
        channel.publish("", queue, body)
    channel.ack(1)
    outcome = closing(lambda: channel.call(wire.TxCommit(), wire.TxCommitOk))
    last_seen(lambda: scene.channel().count(other), 1)
    return outcome, scene.channel().drain(full), scene.channel().drain(other), scene.channel().count(source)


@rule(SECTION, "a commit succeeds if a full queue drops its oldest message", ["commit-ok", [b"2"]])
def dropped(scene: Scene) -> object:
    channel, queue = scene.channel(), scene.queue()
    channel.declare(queue, max_length=1)
    channel.call(wire.TxSelect(), wire.TxSelectOk)
    for body in (b"1", b"2"):
        channel.publish("", queue, body)
    outcome = closing(lambda: channel.call(wire.TxCommit(), wire.TxCommitOk))
    return ["commit-ok" if outcome == "nothing closed" else outcome, scene.channel().drain(queue)]
