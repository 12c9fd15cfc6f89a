"""Connections, channels and consumers over HTTP."""

from __future__ import annotations

import pytest

from tests.management.conftest import Node
from tests.management.http import segment


def test_connections_are_listed_and_closed(node: Node) -> None:
    amqp = node.connect()
    channel = amqp.channel()
    channel.declare("q")
    channel.consume("q")
    http = node.http
    (connection,) = http.get("/api/connections")
    assert (connection["user"], connection["vhost"], connection["state"], connection["channels"]) == (
        "guest",
        "/",
        "running",
        1,
    )
    (one,) = http.get(f"/api/connections/{segment(connection['name'])}/channels")
    assert (one["number"], one["consumer_count"]) == (1, 1)
    assert http.get(f"/api/channels/{segment(one['name'])}")["consumer_details"][0]["queue"] == {"name": "q", "vhost": "/"}
    (consumer,) = http.get("/api/consumers")
    assert consumer["channel_details"]["connection_name"] == connection["name"]
    http.put("/api/users/u", {"password": "p", "tags": "management"})
    path = f"/api/connections/{segment(connection['name'])}"
    assert http.as_user("u:p").get("/api/connections") == []
    assert http.as_user("u:p").call("DELETE", path).status == 404
    assert http.call("DELETE", path, x_reason="to see it").status == 204
    with pytest.raises(Exception, match="320 CONNECTION_FORCED - to see it"):
        channel.settle()
    amqp.drop()
    assert http.delete(path) == 404
