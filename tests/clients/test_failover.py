"""Clients that know two brokers find the standby when the active one is killed, and what was confirmed is there."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aio_pika
import kombu
import pika
import pytest

from tests.clients.test_celery import application, worker
from tests.clients.test_node import amqplib
from tests.deadline import PATIENCE_S, eventually
from tests.peers.peer import NPM, POSTGRES

if TYPE_CHECKING:
    from tests.peers.postgres import Postgres
    from tests.server.pair import Pair

__all__ = ["amqplib"]
pytestmark = pytest.mark.peer(POSTGRES)


@pytest.fixture
def pair(postgres: Postgres, tmp_path: Path) -> Iterator[Pair]:
    from tests.server.pair import pair_of_brokers

    with pair_of_brokers(postgres, tmp_path) as pair:
        yield pair


def urls(pair: Pair) -> list[str]:
    return [f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F" for broker in pair.brokers]


def test_pika(pair: Pair) -> None:
    addresses = [pika.URLParameters(url) for url in urls(pair)]
    for address in addresses:
        address.connection_attempts, address.retry_delay = 200, 0.05
    connection = pika.BlockingConnection(addresses)
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("kept", durable=True)
    channel.basic_publish("", "kept", b"confirmed", pika.BasicProperties(delivery_mode=2))
    pair.active.kill()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        channel.queue_declare("kept", passive=True)
    with pika.BlockingConnection(addresses) as again:
        assert again.channel().basic_get("kept", auto_ack=True)[2] == b"confirmed"


def test_kombu_as_celery_uses_it(pair: Pair) -> None:
    addresses = ";".join(urls(pair))
    with kombu.Connection(addresses, transport_options={"confirm_publish": True}) as connection:
        connection.SimpleQueue("kept", serializer="json").put("confirmed")
        pair.active.kill()
        with pytest.raises(connection.recoverable_connection_errors):
            read(connection)
    with kombu.Connection(addresses) as again:
        again.ensure_connection(interval_start=0.05, interval_max=0.05, max_retries=1000)
        assert read(again) == "confirmed"


def read(connection: kombu.Connection) -> object:
    queue = connection.SimpleQueue("kept", serializer="json")
    message = queue.get(timeout=PATIENCE_S)
    message.ack()
    return message.payload


def test_a_celery_application_and_its_worker(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notes, addresses = tmp_path / "notes", ";".join(urls(pair))
    patience = {"max_retries": 1000, "interval_start": 0.05, "interval_step": 0.0, "interval_max": 0.05}

    def run(tasks: Any, text: str) -> None:
        tasks.note.apply_async((str(notes), text), retry=True, retry_policy=patience)
        eventually(lambda: notes.exists() and notes.read_text().split()[-1] == text, f"the task {text}")

    with application(addresses, monkeypatch) as tasks, worker(addresses):
        run(tasks, "before")
        pair.active.kill()
        run(tasks, "after")


def test_the_robust_connection_of_aio_pika_behind_one_address(pair: Pair) -> None:
    """aio-pika knows one address only, such as that of a load balancer."""
    from tests.peers.tcp_proxy import tcp_proxy

    async def run() -> None:
        with tcp_proxy(pair.port) as balancer:
            url = f"amqp://guest:guest@127.0.0.1:{balancer.port}/"
            connection = await aio_pika.connect_robust(url, reconnect_interval=0.05)
            async with connection:
                channel = await connection.channel(publisher_confirms=True)
                queue = await channel.declare_queue("kept", durable=True)
                mode = aio_pika.DeliveryMode.PERSISTENT
                await channel.default_exchange.publish(aio_pika.Message(b"confirmed", delivery_mode=mode), "kept")
                seen: asyncio.Queue[tuple[bytes, bool | None]] = asyncio.Queue()

                async def take(message: aio_pika.abc.AbstractIncomingMessage) -> None:
                    seen.put_nowait((message.body, message.redelivered))

                await queue.consume(take)
                assert await asyncio.wait_for(seen.get(), PATIENCE_S) == (b"confirmed", False)
                balancer.aim(pair.other.port)
                pair.active.kill()
                assert await asyncio.wait_for(seen.get(), PATIENCE_S) == (b"confirmed", True)

    asyncio.run(run())


@pytest.mark.peer(NPM)
def test_amqplib(pair: Pair, amqplib: Path) -> None:
    command = ["node", "failover.mjs", *urls(pair)]
    with subprocess.Popen(command, cwd=amqplib, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "confirmed\n"
        pair.active.kill()
        assert node.stdout.readline() == "confirmed\n"
        assert node.wait(PATIENCE_S) == 0
