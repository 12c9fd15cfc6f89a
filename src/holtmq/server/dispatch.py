"""Each AMQP method as a call to the broker and its reply. Errors are raised; `protocol` reports them to the client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from holtmq.broker.channel import Channel
from holtmq.errors import CommandInvalidError, NotImplementedByBrokerError
from holtmq.topology import Exchange
from holtmq.wire import methods as wire
from holtmq.wire.content import Content
from holtmq.wire.methods import Method

Call: TypeAlias = Callable[[Channel, Any], Method | None]


def declare_exchange(channel: Channel, method: wire.ExchangeDeclare) -> Method | None:
    if method.passive:
        channel.declarer.require_exchange(method.exchange)
    else:
        channel.declarer.declare_exchange(
            Exchange(
                method.exchange,
                method.type,
                method.durable,
                method.auto_delete,
                method.internal,
                method.arguments,
                channel.vhost.name,
            )
        )
    return None if method.no_wait else wire.ExchangeDeclareOk()


def delete_exchange(channel: Channel, method: wire.ExchangeDelete) -> Method | None:
    channel.declarer.delete_exchange(method.exchange, if_unused=method.if_unused)
    return None if method.no_wait else wire.ExchangeDeleteOk()


def bind_exchange(channel: Channel, method: wire.ExchangeBind) -> Method | None:
    channel.declarer.bind_exchange(method.destination, method.source, method.routing_key, method.arguments)
    return None if method.no_wait else wire.ExchangeBindOk()


def unbind_exchange(channel: Channel, method: wire.ExchangeUnbind) -> Method | None:
    channel.declarer.unbind_exchange(method.destination, method.source, method.routing_key, method.arguments)
    return None if method.no_wait else wire.ExchangeUnbindOk()


def declare_queue(channel: Channel, method: wire.QueueDeclare) -> Method | None:
    if method.passive:
        queue = channel.declarer.require_queue(method.queue)
    else:
        queue = channel.declarer.declare_queue(
            method.queue,
            is_durable=method.durable,
            is_exclusive=method.exclusive,
            is_auto_delete=method.auto_delete,
            arguments=method.arguments,
        )
    return None if method.no_wait else wire.QueueDeclareOk(queue.name, queue.message_count, len(queue.consumers))


def bind_queue(channel: Channel, method: wire.QueueBind) -> Method | None:
    channel.declarer.bind_queue(method.queue, method.exchange, method.routing_key, method.arguments)
    return None if method.no_wait else wire.QueueBindOk()


def unbind_queue(channel: Channel, method: wire.QueueUnbind) -> Method:
    channel.declarer.unbind_queue(method.queue, method.exchange, method.routing_key, method.arguments)
    return wire.QueueUnbindOk()


def purge_queue(channel: Channel, method: wire.QueuePurge) -> Method | None:
    count = channel.declarer.purge_queue(method.queue)
    return None if method.no_wait else wire.QueuePurgeOk(count)


def delete_queue(channel: Channel, method: wire.QueueDelete) -> Method | None:
    count = channel.declarer.delete_queue(method.queue, if_unused=method.if_unused, if_empty=method.if_empty)
    return None if method.no_wait else wire.QueueDeleteOk(count)


def set_qos(channel: Channel, method: wire.BasicQos) -> Method:
    if method.prefetch_size:
        raise NotImplementedByBrokerError(f"prefetch_size!=0 ({method.prefetch_size}) is not supported: expected 0")
    channel.set_prefetch(method.prefetch_count, is_global=method.is_global)
    return wire.BasicQosOk()


def consume(channel: Channel, method: wire.BasicConsume) -> Method | None:
    """Start a consumer. Its first messages follow the reply, because messages are sent when the turn ends."""
    tag = channel.consume(
        method.queue,
        method.consumer_tag,
        is_auto_ack=method.no_ack,
        is_exclusive=method.exclusive,
        arguments=method.arguments,
    )
    return None if method.no_wait else wire.BasicConsumeOk(tag)


def cancel(channel: Channel, method: wire.BasicCancel) -> Method | None:
    channel.cancel(method.consumer_tag)
    return None if method.no_wait else wire.BasicCancelOk(method.consumer_tag)


def ack(channel: Channel, method: wire.BasicAck) -> None:
    channel.ack(method.delivery_tag, multiple=method.multiple)


def nack(channel: Channel, method: wire.BasicNack) -> None:
    channel.reject(method.delivery_tag, multiple=method.multiple, requeue=method.requeue)


def reject(channel: Channel, method: wire.BasicReject) -> None:
    channel.reject(method.delivery_tag, multiple=False, requeue=method.requeue)


def recover(channel: Channel, method: wire.BasicRecover) -> Method:
    channel.recover(requeue=method.requeue)
    return wire.BasicRecoverOk()


def recover_async(channel: Channel, method: wire.BasicRecoverAsync) -> None:
    channel.recover(requeue=method.requeue)


def select_confirms(channel: Channel, method: wire.ConfirmSelect) -> Method | None:
    channel.select_confirms()
    return None if method.no_wait else wire.ConfirmSelectOk()


def select_transactions(channel: Channel, _: wire.TxSelect) -> Method:
    channel.select_transactions()
    return wire.TxSelectOk()


def commit(channel: Channel, _: wire.TxCommit) -> Method:
    channel.commit()
    return wire.TxCommitOk()


def roll_back(channel: Channel, _: wire.TxRollback) -> Method:
    channel.roll_back()
    return wire.TxRollbackOk()


def flow(_: Channel, method: wire.ChannelFlow) -> Method:
    if not method.active:
        raise NotImplementedByBrokerError(
            "channel.flow with active=false is not supported: expected true; set a prefetch count instead"
        )
    return wire.ChannelFlowOk(active=True)


CALLS: Mapping[type[Method], Call] = {
    wire.ExchangeDeclare: declare_exchange,
    wire.ExchangeDelete: delete_exchange,
    wire.ExchangeBind: bind_exchange,
    wire.ExchangeUnbind: unbind_exchange,
    wire.QueueDeclare: declare_queue,
    wire.QueueBind: bind_queue,
    wire.QueueUnbind: unbind_queue,
    wire.QueuePurge: purge_queue,
    wire.QueueDelete: delete_queue,
    wire.BasicQos: set_qos,
    wire.BasicConsume: consume,
    wire.BasicCancel: cancel,
    wire.BasicAck: ack,
    wire.BasicNack: nack,
    wire.BasicReject: reject,
    wire.BasicRecover: recover,
    wire.BasicRecoverAsync: recover_async,
    wire.ConfirmSelect: select_confirms,
    wire.TxSelect: select_transactions,
    wire.TxCommit: commit,
    wire.TxRollback: roll_back,
    wire.ChannelFlow: flow,
}


def carry_out(channel: Channel, method: Method) -> Method | None:
    """Carry out a method and return the reply, or None if it has none. For basic.get see `get_message`."""
    call = CALLS.get(type(method))
    if call is None:
        raise CommandInvalidError(f"unexpected {method.label()} from a client")
    return call(channel, method)


def depends_on_disk(channel: Channel, method: Method) -> bool:
    """Return whether the reply to a method that changed nothing promises that an earlier change is on disk.

    The change may be another client's: a queue that is declared twice at the same time is durable for both.
    """
    match method:
        case wire.ExchangeDeclare():
            return method.durable and not method.passive
        case wire.QueueDeclare():
            return method.durable and not method.exclusive and not method.passive
        case wire.QueueBind() | wire.QueueUnbind() | wire.QueuePurge():
            queue = channel.vhost.find(method.queue)
            return queue is None or queue.declared.outlives_broker
        case wire.ExchangeBind() | wire.ExchangeUnbind() | wire.ExchangeDelete() | wire.QueueDelete():
            return True
        case _:
            return False


def get_message(channel: Channel, method: wire.BasicGet) -> tuple[Method, Content | None] | None:
    """Carry out basic.get and return the reply with the content of the message, if the queue had one.

    Return None if the message is being read from the store.
    """
    fetched = channel.get(method.queue, is_auto_ack=method.no_ack)
    if fetched is None:
        if channel.is_reading(method.queue):
            return None
        return wire.BasicGetEmpty(), None
    message, origin = fetched.message, fetched.message.origin
    reply = wire.BasicGetOk(fetched.tag, fetched.is_redelivered, origin.exchange, origin.routing_key, fetched.remaining)
    return reply, message.content
