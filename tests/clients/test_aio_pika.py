"""aio-pika: confirms, consuming, dead letters, and its robust connection, which reconnects by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import aio_pika
import pytest
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError

from tests.deadline import PATIENCE_S
from tests.server.process import BrokerProcess


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}/"


def test_messages_are_confirmed_consumed_rejected_and_dead_lettered(killable_broker: BrokerProcess) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url(killable_broker)) as connection:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            await channel.set_qos(prefetch_count=2)
            exchange = await channel.declare_exchange("orders", aio_pika.ExchangeType.TOPIC, durable=True)
            dead = await channel.declare_queue("dead", durable=True)
            arguments: dict[str, Any] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            queue = await channel.declare_queue("work", durable=True, arguments=arguments)
            await queue.bind(exchange, "orders.*")
            for number in range(5):
                message = aio_pika.Message(
                    b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, headers={"n": number}
                )
                await exchange.publish(message, "orders.eu")
            with pytest.raises(DeliveryError):
                await exchange.publish(aio_pika.Message(b"lost"), "nowhere", mandatory=True)
            seen = []
            async with queue.iterator(timeout=PATIENCE_S) as messages:
                async for received in messages:
                    seen.append(received.headers["n"])
                    if received.body == b"2":
                        await received.reject(requeue=False)
                    else:
                        await received.ack()
                    if len(seen) == 5:
                        break
            assert seen == [0, 1, 2, 3, 4]
            letter = await dead.get(timeout=PATIENCE_S)
            assert letter.body == b"2"
            await letter.ack()

    asyncio.run(run())


def test_an_error_closes_the_channel_and_not_the_connection(killable_broker: BrokerProcess) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url(killable_broker)) as connection:
            channel = await connection.channel()
            await channel.declare_queue("q", durable=True)
            with pytest.raises(ChannelPreconditionFailed):
                await channel.declare_queue("q", durable=False)
            other = await connection.channel()
            await other.declare_queue("q", durable=True)

    asyncio.run(run())


def test_a_robust_connection_survives_a_killed_broker(killable_broker: BrokerProcess) -> None:
    async def run() -> None:
        connection = await aio_pika.connect_robust(url(killable_broker), reconnect_interval=0.1)
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("work", durable=True)
            received: asyncio.Queue[bytes] = asyncio.Queue()

            async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                async with message.process():
                    received.put_nowait(message.body)

            await queue.consume(take)
            await channel.default_exchange.publish(aio_pika.Message(b"before"), "work")
            assert await asyncio.wait_for(received.get(), PATIENCE_S) == b"before"
            reconnected = asyncio.Event()
            connection.reconnect_callbacks.add(lambda _: reconnected.set())
            killable_broker.kill()
            await asyncio.to_thread(killable_broker.start)
            await asyncio.wait_for(reconnected.wait(), PATIENCE_S)
            await channel.default_exchange.publish(aio_pika.Message(b"after"), "work")
            assert await asyncio.wait_for(received.get(), PATIENCE_S) == b"after"

    asyncio.run(run())


def test_a_stream_is_read_from_an_offset(killable_broker: BrokerProcess) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url(killable_broker)) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=2)
            queue = await channel.declare_queue("events", durable=True, arguments={"x-queue-type": "stream"})
            for number in range(5):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), "events")
            for offset, expected in (("first", [0, 1, 2, 3, 4]), (3, [3, 4])):
                seen: list[Any] = []
                start: dict[str, Any] = {"x-stream-offset": offset}
                async with queue.iterator(timeout=PATIENCE_S, arguments=start) as messages:
                    async for received in messages:
                        await received.ack()
                        seen.append(received.headers["x-stream-offset"])
                        if len(seen) == len(expected):
                            break
                assert seen == expected

    asyncio.run(run())
