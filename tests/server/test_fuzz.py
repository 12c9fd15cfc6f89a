"""Invalid input of every kind to a live broker: it causes no internal error and does not disturb other clients."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holtmq.testing import TestBroker
from holtmq.wire import methods as wire
from holtmq.wire.frames import PROTOCOL_HEADER, method_frame
from holtmq.wire.methods import METHODS, Method
from tests.amqp_client import Amqp, ClosedError, raw_socket
from tests.deadline import last_seen
from tests.protocol.test_connection import handshake, publish

ROUNDS = 150
SEQUENCES = 60
NAMES = ("", "q", "r", "amq.topic", "amq.match", "no-such", "é" * 60, "amq.rabbitmq.reply-to", "#")
TABLES: tuple[dict[str, object], ...] = (
    {}, {"x-max-length": 1}, {"x-match": "any", "a": 1}, {"x-message-ttl": -5}, {"x-priority": 3}, {"x-max-priority": 3},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}, {"x-expires": 1}, {"a": [1, None, {"b": b"\xff"}]},
)  # fmt: skip


@pytest.fixture(autouse=True)
def no_internal_error(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test whose broker logs an error."""
    logging.getLogger("holtmq").propagate = True
    with caplog.at_level(logging.ERROR, "holtmq"):
        yield
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []


def capture() -> bytes:
    """Return the bytes of an ordinary session."""
    parts = [handshake(), method_frame(1, wire.ChannelOpen()), method_frame(1, wire.QueueDeclare(0, "q"))]
    parts += [
        method_frame(1, wire.QueueBind(0, "q", "amq.topic", "a.#", False, {"x": 1})),
        method_frame(1, wire.ConfirmSelect()),
    ]
    parts += [publish(1, "q", bytes(size)) for size in (0, 10, 5000)]
    parts += [
        method_frame(1, wire.BasicConsume(0, "q", "c")),
        method_frame(1, wire.BasicAck(1)),
        method_frame(1, wire.BasicNack(2)),
    ]
    parts += [method_frame(1, wire.BasicGet(0, "q")), method_frame(1, wire.ChannelClose(200, "", 0, 0))]
    return b"".join(parts)


def test_mutated_sessions(broker: TestBroker) -> None:
    chance = random.Random(7)
    with Amqp(broker.port) as witness:
        channel = witness.channel()
        channel.declare("witness")
        for _ in range(ROUNDS):
            data = mutated(capture(), chance)
            with raw_socket(broker.port) as connection, suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
        channel.put("witness", b"unharmed")
        assert channel.drain("witness") == [b"unharmed"]


def mutated(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(PROTOCOL_HEADER) if chance.random() < 0.9 else 0, len(changed))
        match chance.randrange(4):
            case 0:
                changed[place] = chance.randrange(256)
            case 1:
                del changed[place : place + chance.randrange(1, 30)]
            case 2:
                changed[place:place] = chance.randbytes(chance.randrange(1, 30))
            case _:
                changed[place:place] = changed[place : place + chance.randrange(1, 200)]
    return bytes(changed)


def test_any_methods_in_any_order(broker: TestBroker) -> None:
    """Send methods with plausible arguments on a few channels, until one of them closes the connection."""
    chance = random.Random(11)
    kinds = [kind for kind in METHODS.values() if kind.class_id >= 20 and not kind.__name__.endswith("Ok")]
    with Amqp(broker.port) as witness:
        channel = witness.channel()
        channel.declare("witness")
        for _ in range(SEQUENCES):
            with suppress(OSError, ClosedError), Amqp(broker.port) as amqp:
                for number in (1, 2, 3):
                    amqp.channel(number)
                for _ in range(60):
                    amqp.write(any_step(chance, kinds))
                amqp.channel(4).settle()
            channel.put("witness", b"unharmed")
            assert channel.drain("witness") == [b"unharmed"]


def any_step(chance: random.Random, kinds: list[type[Method]]) -> bytes:
    number = chance.randrange(1, 4)
    if chance.random() < 0.4:
        return publish(number, chance.choice(NAMES), bytes(chance.choice((0, 1, 100, 9000))))
    kind = chance.choice(kinds)
    if kind is wire.BasicPublish and chance.random() < 0.9:
        kind = wire.QueueDeclare
    return method_frame(number, kind(*(any_argument(chance, type_) for _, type_ in kind.layout)))


def any_argument(chance: random.Random, type_: object) -> object:
    match type_:
        case "bit":
            return chance.random() < 0.3
        case "shortstr":
            return chance.choice(NAMES)
        case "longstr":
            return chance.randbytes(5)
        case "table":
            return chance.choice(TABLES)
        case _:
            return chance.choice((0, 0, 1, 2, 5))


def test_nothing_is_left_of_clients_that_disconnect_in_the_middle_of_a_frame(broker: TestBroker) -> None:
    for _ in range(20):
        amqp = Amqp(broker.port)
        channel = amqp.channel()
        channel.declare("temporary", exclusive=True)
        channel.consume("temporary")
        channel.publish("", "temporary", b"m")
        amqp.write(b"\x01\x00\x01\x00\x00\x10")
        amqp.drop()
    with Amqp(broker.port) as amqp:
        last_seen(lambda: code_of_passive_declare(amqp), 404)
        assert code_of_passive_declare(amqp) == 404


def code_of_passive_declare(amqp: Amqp) -> int:
    try:
        amqp.channel().declare("temporary", passive=True)
    except ClosedError as error:
        return error.code
    return 200
