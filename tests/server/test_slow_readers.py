"""Clients that read slowly: deliveries to them pause, and nothing but their reading resumes the deliveries."""

from __future__ import annotations

import itertools
from pathlib import Path

from holtmq.config import Config
from holtmq.server.run import running
from holtmq.wire.methods import QueueDeclare
from tests.amqp_client import Amqp, Channel, ClosedError


def exists(channel: Channel, queue: str) -> bool:
    try:
        channel.count(queue)
    except ClosedError:
        channel.reopen()
        return False
    return True


def test_a_durable_declare_does_not_resume_deliveries_to_a_client_that_does_not_read(tmp_path: Path) -> None:
    with running(Config(data=str(tmp_path / "b.db"), amqp_port=0, http_port=-1)) as server:
        port = int(server.address.rsplit(":", 1)[1])
        with Amqp(port) as deaf, Amqp(port) as amqp:
            (slow,) = [client for client in server.clients if client.peer == deaf.socket.getsockname()]
            channel = amqp.channel()
            channel.declare("q")
            deaf.channel().consume("q", no_ack=True)
            for number in itertools.count():
                channel.put("q", bytes(1024 * 1024))
                if slow.connection.is_congested:
                    break
                assert number < 200, "the socket never filled up"
            for _ in range(20):
                channel.put("q", bytes(1024 * 1024))
            sent = slow.bytes_sent
            for number in range(5):
                deaf.send(1, QueueDeclare(0, f"d{number}", durable=True))
                while not exists(channel, f"d{number}"):
                    pass
                channel.declare(f"e{number}", durable=True)  # answered when it is on disk, and so is the other one
                channel.settle()
            assert slow.bytes_sent - sent < 1000
            assert channel.count("q") >= 20
