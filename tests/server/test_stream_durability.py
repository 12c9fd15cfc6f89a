"""A kill -9 at any moment leaves a stream with every confirmed message at its offset, and numbered ones once."""

from __future__ import annotations

import random
import threading
from contextlib import suppress

from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, ClosedError
from tests.deadline import eventually
from tests.server.process import BrokerProcess, broker_process

ROUNDS = 4


class Publisher:
    """Publishes numbered messages with confirms until the broker is gone."""

    def __init__(self, port: int, name: str, first: int, *, is_numbered: bool) -> None:
        self._port = port
        self._name = name
        self._is_numbered = is_numbered
        self._first = first
        self.confirmed = first
        """All numbers below are confirmed."""
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def wait_for_confirms(self, count: int) -> None:
        eventually(lambda: self.confirmed >= self._first + count, f"{count} confirms")

    def join(self) -> None:
        self._thread.join()

    def _publish(self) -> None:
        with suppress(OSError, ClosedError), Amqp(self._port) as amqp:
            channel = amqp.channel()
            channel.confirm()
            number = self._first
            while True:
                for _ in range(random.randint(1, 50)):
                    headers = {"x-publisher": self._name, "x-publishing-id": number} if self._is_numbered else None
                    channel.publish("", "s", f"{self._name} {number}".encode(), headers=headers)
                    number += 1
                while self.confirmed < number:
                    event = channel.next()
                    assert isinstance(event.method, wire.BasicAck)
                    self.confirmed = self._first + event.method.delivery_tag


def stored(broker: BrokerProcess) -> list[str]:
    """Read the whole stream, and check that its offsets have no gaps."""
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        number = channel.declare("s", passive=True).message_count
        channel.qos(500)
        channel.consume("s", "c", arguments={"x-stream-offset": "first"})
        bodies = []
        for offset in range(number):
            (event,) = channel.deliveries(1)
            assert event.properties["headers"]["x-stream-offset"] == offset
            bodies.append(event.body.decode())
            if offset % 100 == 0:
                channel.ack(event.method.delivery_tag, multiple=True)
    return bodies


def test_a_kill_loses_no_confirmed_message_and_moves_none(durable_place: str) -> None:
    with broker_process(durable_place, "--durability", "normal") as broker:
        with Amqp(broker.port) as amqp:
            amqp.channel().declare("s", durable=True, queue_type="stream")
        before: list[str] = []
        confirmed = 0
        for number in range(ROUNDS):
            plain = Publisher(broker.port, f"plain{number}", 0, is_numbered=False)
            numbered = Publisher(broker.port, "numbered", confirmed, is_numbered=True)
            for publisher in (plain, numbered):
                publisher.wait_for_confirms(random.randint(1, 500))
            broker.kill()
            plain.join()
            numbered.join()
            confirmed = numbered.confirmed
            broker.start()
            after = stored(broker)
            assert after[: len(before)] == before, "what was there has moved"
            own = [body for body in after if body.startswith(f"plain{number} ")]
            assert own[: plain.confirmed] == [f"plain{number} {one}" for one in range(plain.confirmed)]
            once = [int(body.split()[1]) for body in after if body.startswith("numbered")]
            assert once == list(range(len(once))), "a numbered message is missing, or there twice"
            assert len(once) >= confirmed
            before = after
        assert broker.stop()[0] == 0
