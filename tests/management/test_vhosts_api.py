"""Virtual hosts over HTTP."""

from __future__ import annotations

import pytest

from tests.management.conftest import Node
from tests.management.http import Http


def test_deleting_a_vhost_closes_its_connections(node: Node) -> None:
    node.http.put("/api/vhosts/v")
    amqp = node.connect()
    amqp.channel()
    assert node.http.delete("/api/vhosts/%2F") == 204
    with pytest.raises(Exception, match="320"):
        amqp.channel(2)
    amqp.drop()
    assert [vhost["name"] for vhost in node.http.get("/api/vhosts")] == ["v"]


def test_a_broker_without_vhosts_still_has_an_overview(http: Http) -> None:
    assert http.delete("/api/vhosts/%2F") == 204
    assert http.get("/api/overview")["queue_totals"]["messages"] == 0
    assert http.put("/api/vhosts/%2F") == 201
    assert http.get("/api/overview?msg_rates_age=10&msg_rates_incr=5")["message_stats"]["publish"] == 0
