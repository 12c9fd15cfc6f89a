"""The handle that publishes with an exchange and a routing key, and those for other keys that are made from it."""

from __future__ import annotations

import pytest

from holtmq.accounts import TopicPermission
from holtmq.errors import AccessRefusedError
from holtmq.topology import Binding, Exchange
from holtmq.wire.content import make_content
from holtmq.wire.tables import short_string
from tests.broker.conftest import Bench

PROPERTIES = bytes(2)


def address(exchange: str, routing_key: str) -> bytes:
    return short_string(exchange) + short_string(routing_key) + b"\xce"


def test_messages_with_another_key_take_the_route_of_that_key(bench: Bench) -> None:
    client, vhost = bench.client(), bench.broker.vhost("/")
    client.declare("one")
    client.declare("other")
    vhost.declare_exchange(Exchange("x", "topic"))
    for queue in ("one", "other"):
        vhost.bind(Binding("x", queue, f"{queue}.*"))
    client.consume("one", auto_ack=True)
    client.consume("other", auto_ack=True)
    first = client.channel.publication("x", "one.a", is_mandatory=True)
    for key in ("other.b", "one.b", "neither"):
        first.with_key(key, address("x", key)).publish(PROPERTIES, [make_content(PROPERTIES, key.encode())])
    bench.turn()
    delivered = [(message.origin.names, message.origin.address) for _, message, _ in client.deliveries]
    assert sorted(delivered) == [(("x", key), address("x", key)) for key in ("one.b", "other.b")]
    assert [message.origin.routing_key for message in client.returned] == ["neither"]


def test_another_key_needs_the_permission_for_its_topic(bench: Bench) -> None:
    client, vhost = bench.client(), bench.broker.vhost("/")
    vhost.declare_exchange(Exchange("x", "topic"))
    bench.broker.set_permission(TopicPermission("guest", "/", "x", write="^open[.]", read=".*"))
    first = client.channel.publication("x", "open.a", is_mandatory=False)
    first.with_key("open.b", address("x", "open.b"))
    with pytest.raises(AccessRefusedError, match=r"closed\.a"):
        first.with_key("closed.a", address("x", "closed.a"))
