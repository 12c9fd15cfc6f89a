"""The blocking client: addresses, connections that are refused or lost, and publishing until it is confirmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holtmq.client.address import Address, Tls, without_password
from holtmq.client.blocking_connection import BlockingConnection, ConnectionLostError, RefusedError
from holtmq.client.publisher import Outgoing, Publisher, PublishError
from holtmq.errors import InvalidValueError
from holtmq.testing import TestBroker
from tests.amqp_client import Amqp, Channel

PLAIN = bytes(2)
"""Properties of which none is set."""


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
def test_uris_are_read_as_rabbitmqs_are(uri: str, address: Address) -> None:
    assert Address.parse(uri) == address


@pytest.mark.parametrize("uri", ["http://u:secret@h", "amqp://", "amqp://u:secret@h:port", "h:5672"])
def test_bad_uris_are_refused_and_passwords_not_repeated(uri: str) -> None:
    with pytest.raises(InvalidValueError, match="expected a URI as in amqp://") as caught:
        Address.parse(uri)
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    address = Address.parse("amqp://u:secret@h")
    assert "secret" not in repr(address) + str(address) + without_password("amqp://u:secret@h")


def test_wrong_passwords_and_lost_brokers_are_told_apart(broker: TestBroker) -> None:
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


def test_what_the_broker_refuses_is_sent_again_until_it_is_taken(broker: TestBroker, channel: Channel) -> None:
    channel.declare("q", max_length=2, overflow="reject-publish")
    publisher = Publisher(lambda: connect(broker), retries=50)
    publisher.publish(Outgoing("", "q", PLAIN, b"%d" % n) for n in range(3))
    assert channel.get("q") is not None
    publisher.flush()
    publisher.close()
    assert publisher.published.confirmed == 3
    assert channel.count("q") == 2


def test_what_the_broker_never_takes_is_an_error(broker: TestBroker, channel: Channel) -> None:
    channel.declare("q", max_length=1, overflow="reject-publish")
    publisher = Publisher(lambda: connect(broker), retries=1)
    publisher.publish(Outgoing("", "q", PLAIN, b"%d" % n) for n in range(3))
    with pytest.raises(PublishError, match=r"the broker refused 2 messages \(nack\) after 1 retries"):
        publisher.flush()
    publisher.close()


def test_an_exchange_that_is_not_there_is_no_reason_to_try_again(broker: TestBroker) -> None:
    publisher = Publisher(lambda: connect(broker))
    publisher.publish([Outgoing("nothing", "q", PLAIN, b"")])
    with pytest.raises(RefusedError, match="no exchange 'nothing'") as caught:
        publisher.flush()
    assert caught.value.reply_code == 404
    publisher.close()
