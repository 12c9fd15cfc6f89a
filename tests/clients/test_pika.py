"""pika: the blocking and the asyncio adapter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPConnectionError, ChannelClosedByBroker, NackError, UnroutableError

from tests.deadline import PATIENCE_S
from tests.server.process import BrokerProcess

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def connect(broker: BrokerProcess) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port))


def work_queue(channel: BlockingChannel) -> None:
    """Declare a queue bound to a topic exchange, with a dead-letter exchange."""
    channel.exchange_declare("orders", "topic", durable=True)
    channel.exchange_declare("dead", "fanout", durable=True)
    channel.queue_declare("work", durable=True, arguments={"x-dead-letter-exchange": "dead"})
    channel.queue_declare("graveyard", durable=True)
    channel.queue_bind("work", "orders", "orders.#")
    channel.queue_bind("graveyard", "dead")


def test_the_blocking_adapter_publishes_consumes_nacks_and_dead_letters(killable_broker: BrokerProcess) -> None:
    with connect(killable_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        work_queue(channel)
        for number in range(10):
            channel.basic_publish("orders", "orders.eu", b"%d" % number, PERSISTENT, mandatory=True)
        with pytest.raises(UnroutableError):
            channel.basic_publish("orders", "nowhere", b"lost", mandatory=True)
        seen = []
        for method, _, body in channel.consume("work", inactivity_timeout=PATIENCE_S):
            assert method is not None
            seen.append((body, method.redelivered))
            if body == b"3" and not method.redelivered:
                channel.basic_nack(method.delivery_tag, requeue=True)
            elif body == b"7":
                channel.basic_reject(method.delivery_tag, requeue=False)
            else:
                channel.basic_ack(method.delivery_tag)
            if len(seen) == 11:
                break
        channel.cancel()
        assert sorted(seen) == sorted([(b"%d" % n, False) for n in range(10)] + [(b"3", True)])
        method, properties, body = channel.basic_get("graveyard", auto_ack=True)
        assert body == b"7"
        assert properties.headers["x-death"][0]["reason"] == "rejected"
        assert channel.queue_declare("work", passive=True).method.message_count == 0


def test_the_blocking_adapter_continues_after_errors(killable_broker: BrokerProcess) -> None:
    with connect(killable_broker) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelClosedByBroker) as closed:
            channel.queue_declare("missing", passive=True)
        assert closed.value.reply_code == 404
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("short", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.basic_publish("", "short", b"1")
        with pytest.raises(NackError):
            channel.basic_publish("", "short", b"2")


def test_the_blocking_adapter_finds_its_messages_after_a_killed_broker(killable_broker: BrokerProcess) -> None:
    with connect(killable_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        work_queue(channel)
        channel.basic_publish("orders", "orders.eu", b"kept", PERSISTENT)
        killable_broker.kill()
        with pytest.raises(AMQPConnectionError):
            connection.process_data_events(PATIENCE_S)
    killable_broker.start()
    with connect(killable_broker) as connection:
        _, _, body = connection.channel().basic_get("work", auto_ack=True)
        assert body == b"kept"


def test_the_blocking_adapter_reads_a_stream_from_its_start_an_offset_and_a_time(killable_broker: BrokerProcess) -> None:
    everything = [(number, b"%d" % number) for number in range(5)]
    with connect(killable_broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
        for _, body in everything:
            channel.basic_publish("", "events", body, PERSISTENT)
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        for start, expected in (("first", everything), (3, everything[3:]), (an_hour_ago, everything)):
            reader = connection.channel()
            reader.basic_qos(prefetch_count=2)
            arguments = {"x-stream-offset": start}
            seen = []
            for method, properties, body in reader.consume("events", inactivity_timeout=PATIENCE_S, arguments=arguments):
                assert method is not None
                reader.basic_ack(method.delivery_tag)
                seen.append((properties.headers["x-stream-offset"], body))
                if len(seen) == len(expected):
                    break
            assert seen == expected
            reader.close()


def test_the_blocking_adapter_uses_transactions(killable_broker: BrokerProcess) -> None:
    with connect(killable_broker) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.tx_select()
        channel.basic_publish("", "q", b"1")
        channel.tx_rollback()
        channel.basic_publish("", "q", b"2")
        channel.tx_commit()
        assert channel.basic_get("q", auto_ack=True)[2] == b"2"
        assert channel.basic_get("q", auto_ack=True)[0] is None


def test_the_asyncio_adapter_publishes_with_confirms_and_consumes(killable_broker: BrokerProcess) -> None:
    async def run() -> list[bytes]:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        done: asyncio.Future[list[bytes]] = loop.create_future()
        bodies: list[bytes] = []
        confirmed = asyncio.Event()
        AsyncioConnection(pika.ConnectionParameters("127.0.0.1", killable_broker.port), on_open_callback=opened.set_result)
        connection = await asyncio.wait_for(opened, PATIENCE_S)
        channel_opened: asyncio.Future[Any] = loop.create_future()
        connection.channel(on_open_callback=channel_opened.set_result)
        channel = await asyncio.wait_for(channel_opened, PATIENCE_S)

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            bodies.append(body)
            channel.basic_ack(method.delivery_tag)
            if len(bodies) == 5 and not done.done():
                done.set_result(bodies)

        def on_confirm(frame: Any) -> None:
            if frame.method.delivery_tag == 5:
                confirmed.set()

        def on_declared(_: object) -> None:
            channel.confirm_delivery(ack_nack_callback=on_confirm)
            channel.basic_consume("q", on_message)
            for number in range(5):
                channel.basic_publish("", "q", b"%d" % number)

        channel.queue_declare("q", callback=on_declared)
        result = await asyncio.wait_for(done, PATIENCE_S)
        await asyncio.wait_for(confirmed.wait(), PATIENCE_S)
        connection.close()
        return result

    assert asyncio.run(run()) == [b"0", b"1", b"2", b"3", b"4"]
