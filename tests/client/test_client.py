"""The blocking client: addresses, refused and lost connections, and publishing with confirms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.client.address import Address, Tls, without_password
from holtmq.client.blocking_connection import BlockingConnection, ConnectionLostError, RefusedError
from holtmq.client.publisher import Outgoing, Publisher, PublishError
from holtmq.errors import InvalidValueError
from holtmq.testing import TestBroker
from tests.amqp_client import Amqp, Channel
from tests.deadline import eventually

PLAIN = bytes(2)
"""Encoded properties, none of which is set."""


@pytest.fixture
def channel(broker: TestBroker) -> Iterator[Channel]:
    with Amqp(broker.port) as amqp:
        yield amqp.channel()


def connect(broker: TestBroker) -> BlockingConnection:
    return BlockingConnection(Address(broker.host, broker.port))


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("amqp://h", Address("h", 5672)),
        ("amqp://h/", Address("h", 5672)),
        ("amqp://u:p%40@h:7/a%2Fb", Address("h", 7, "u", "p@", "a/b")),
        ("amqps://h", Address("h", 5671, tls=Tls())),
    ],
)
def test_uris_have_the_syntax_and_defaults_of_rabbitmq(uri: str, address: Address) -> None:
    assert Address.parse(uri) == address


@pytest.mark.parametrize("uri", ["http://u:secret@h", "amqp://", "amqp://u:secret@h:port", "h:5672"])
def test_errors_about_invalid_uris_do_not_contain_the_password(uri: str) -> None:
    with pytest.raises(InvalidValueError, match="expected a URI as in amqp://") as caught:
        Address.parse(uri)
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    address = Address.parse("amqp://u:secret@h")
    assert "secret" not in repr(address) + str(address) + without_password("amqp://u:secret@h")


def test_wrong_passwords_and_unreachable_brokers_raise_different_errors(broker: TestBroker) -> None:
    with pytest.raises(RefusedError, match="ACCESS_REFUSED"):
        BlockingConnection(Address(broker.host, broker.port, password="wrong"))
    with pytest.raises(ConnectionLostError, match=r"no broker at amqp://127\.0\.0\.1:1/%2F"):
        BlockingConnection(Address("127.0.0.1", 1))


def test_messages_are_published_with_frames_of_any_size(broker: TestBroker, channel: Channel) -> None:
    channel.declare("q")
    bodies = [b"", b"x", b"y" * 131_064, b"z" * 131_065, b"w" * 500_000]
    publisher = Publisher(lambda: connect(broker))
    publisher.publish(Outgoing("", "q", PLAIN, body) for body in bodies)
    publisher.flush()
    publisher.close()
    assert channel.drain("q") == bodies
    assert publisher.published.confirmed == len(bodies)


def test_refused_messages_are_resent_until_the_broker_accepts_them(broker: TestBroker, channel: Channel) -> None:
    channel.declare("q", max_length=2, overflow="reject-publish")
    publisher = Publisher(lambda: connect(broker), retries=50)
    publisher.publish(Outgoing("", "q", PLAIN, b"%d" % n) for n in range(3))
    eventually(lambda: channel.get("q"), "a message in the queue")
    publisher.flush()
    publisher.close()
    assert publisher.published.confirmed == 3
    assert channel.count("q") == 2


def test_messages_that_the_broker_never_accepts_are_an_error(broker: TestBroker, channel: Channel) -> None:
    channel.declare("q", max_length=1, overflow="reject-publish")
    publisher = Publisher(lambda: connect(broker), retries=1)
    publisher.publish(Outgoing("", "q", PLAIN, b"%d" % n) for n in range(3))
    with pytest.raises(PublishError, match=r"the broker refused 2 messages \(nack\) after 1 retries"):
        publisher.flush()
    publisher.close()


def test_a_maximum_rate_sends_messages_one_by_one_and_not_in_bursts(
    broker: TestBroker, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel.declare("q")
    waiting: list[int] = []

    def pause(_: float) -> None:
        publisher.flush()
        waiting.append(channel.count("q"))

    publisher = Publisher(lambda: connect(broker), rate=2)
    monkeypatch.setattr("time.sleep", pause)
    publisher.publish(Outgoing("", "q", PLAIN, b"%d" % n) for n in range(4))
    monkeypatch.undo()
    publisher.flush()
    publisher.close()
    assert waiting == [0, 1, 2, 3]


def test_a_missing_exchange_is_not_retried(broker: TestBroker) -> None:
    publisher = Publisher(lambda: connect(broker))
    publisher.publish([Outgoing("nothing", "q", PLAIN, b"")])
    with pytest.raises(RefusedError, match="no exchange 'nothing'") as caught:
        publisher.flush()
    assert caught.value.reply_code == 404
    publisher.close()
