"""Tools that were made for RabbitMQ's management, as they are: its own rabbitmqadmin, and the client in Flower."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from flower.utils.broker import RabbitMQ as FlowersBroker

from tests.deadline import PATIENCE_S
from tests.management.conftest import Node
from tests.peers.peer import RABBITMQADMIN


def rabbitmqadmin(node: Node, *arguments: str) -> str:
    script = RABBITMQADMIN.program()
    port = node.http.base.rsplit(":", 1)[1]
    done = subprocess.run(
        ["/usr/bin/env", "python3", script, "-H", "127.0.0.1", "-P", port, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def listed(node: Node, *arguments: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(rabbitmqadmin(node, "-f", "raw_json", "list", *arguments))
    return found


@pytest.mark.peer(RABBITMQADMIN)
def test_rabbitmqadmin_declares_lists_and_deletes(node: Node) -> None:
    rabbitmqadmin(node, "declare", "vhost", "name=v")
    rabbitmqadmin(node, "declare", "exchange", "name=orders", "type=topic", "durable=true")
    rabbitmqadmin(node, "declare", "queue", "name=q", "durable=true", 'arguments={"x-max-length": 9}')
    rabbitmqadmin(node, "declare", "binding", "source=orders", "destination=q", "routing_key=a.#", 'arguments={"x": 1}')
    rabbitmqadmin(node, "declare", "user", "name=u", "password=p", "tags=monitoring")
    rabbitmqadmin(node, "declare", "permission", "vhost=v", "user=u", "configure=.*", "write=.*", "read=.*")
    rabbitmqadmin(node, "declare", "policy", "name=p", "pattern=^q", 'definition={"message-ttl": 60000}', "priority=2")
    rabbitmqadmin(node, "declare", "parameter", "component=c", "name=n", 'value={"a": 1}')
    assert listed(node, "queues", "name", "arguments", "policy") == [
        {"name": "q", "arguments": {"x-max-length": 9}, "policy": "p"}
    ]
    assert {"name": "orders", "type": "topic"} in listed(node, "exchanges", "name", "type")
    bound = {"source": "orders", "destination": "q", "routing_key": "a.#", "arguments": {"x": 1}}
    assert bound in listed(node, "bindings", "source", "destination", "routing_key", "arguments")
    assert listed(node, "users", "name") == [{"name": "guest"}, {"name": "u"}]
    assert {"user": "u", "vhost": "v"} in listed(node, "permissions", "user", "vhost")
    for things in ("connections", "channels", "consumers", "nodes", "vhosts", "policies", "parameters"):
        listed(node, things)
    for arguments in (
        ("binding", "source=orders", "destination=q", "destination_type=queue", f"properties_key={_properties_key(node)}"),
        ("parameter", "component=c", "name=n"),
        ("policy", "name=p"),
        ("permission", "vhost=v", "user=u"),
        ("user", "name=u"),
        ("queue", "name=q"),
        ("exchange", "name=orders"),
        ("vhost", "name=v"),
    ):
        rabbitmqadmin(node, "delete", *arguments)
    assert listed(node, "queues") == []
    assert listed(node, "users", "name") == [{"name": "guest"}]


def _properties_key(node: Node) -> object:
    (key,) = [each["properties_key"] for each in node.http.get("/api/bindings") if each["source"]]
    return key


@pytest.mark.peer(RABBITMQADMIN)
def test_rabbitmqadmin_publishes_gets_and_purges(node: Node) -> None:
    rabbitmqadmin(node, "declare", "queue", "name=q")
    rabbitmqadmin(node, "publish", "exchange=amq.default", "routing_key=q", "payload=hello", 'properties={"delivery_mode": 2}')
    (message,) = json.loads(rabbitmqadmin(node, "-f", "raw_json", "get", "queue=q", "count=5"))
    assert (message["payload"], message["properties"]) == ("hello", {"delivery_mode": 2})
    rabbitmqadmin(node, "purge", "queue", "name=q")
    assert listed(node, "queues", "messages") == [{"messages": 0}]


@pytest.mark.peer(RABBITMQADMIN)
def test_rabbitmqadmin_shows_closes_exports_and_imports(node: Node, tmp_path: Path) -> None:
    assert "3.13.0" in rabbitmqadmin(node, "show", "overview")
    amqp = node.connect()
    amqp.channel().declare("q", durable=True)
    (connection,) = listed(node, "connections", "name")
    rabbitmqadmin(node, "close", "connection", f"name={connection['name']}")
    amqp.drop()
    rabbitmqadmin(node, "export", str(tmp_path / "all.json"))
    assert [queue["name"] for queue in json.loads((tmp_path / "all.json").read_text())["queues"]] == ["q"]
    node.http.delete("/api/queues/%2F/q")
    rabbitmqadmin(node, "import", str(tmp_path / "all.json"))
    assert listed(node, "queues", "name") == [{"name": "q"}]


def test_flower_sees_the_queues_of_celery(node: Node) -> None:
    with node.connect() as amqp:
        channel = amqp.channel()
        channel.declare("celery", durable=True)
        channel.put("celery", b"one", b"two")
        channel.settle()
    url = f"amqp://guest:guest@127.0.0.1:{node.amqp_port}//"
    broker = FlowersBroker(url, f"{node.http.base.replace('://', '://guest:guest@')}/api/")
    (queue,) = asyncio.run(broker.queues(["celery"]))
    assert (queue["name"], queue["messages"]) == ("celery", 2)
