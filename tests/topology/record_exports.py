"""Exports definitions from a live RabbitMQ in all three ways, as test data: python -m tests.topology.record_exports"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import amqp

from tests.peers.rabbitmq import RabbitMQ, binary, running_rabbitmq

FOLDER = Path(__file__).with_name("exports")
ARGUMENTS_OF_EVERY_TYPE = {
    "integer": 1,
    "big": 2**40,
    "negative": -5,
    "float": 1.0,
    "fraction": 2.5,
    "text": "text",
    "empty": "",
    "unicode": "é☃",
    "true": True,
    "null": None,
    "timestamp": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    "decimal": Decimal("1.25"),
    "bytes": b"\x00\xff\x01",
    "array": [1, "a", [2.0, True], {"k": 1}],
    "table": {"x": 1, "y": {"z": False, "list": []}},
}


@contextmanager
def furnished(rabbitmq: RabbitMQ) -> Iterator[None]:
    """Two vhosts, users, policies, parameters, and a topology with arguments of every type and an exclusive queue."""
    users, policies = "rabbit_auth_backend_internal", "rabbit_policy"
    alternate, length = '{"alternate-exchange": "unclaimed"}', '{"max-length": 1000, "overflow": "reject-publish"}'
    rabbitmq.evaluate(
        _call("rabbit_vhost:add", "shop", "", ""),
        _call(f"{users}:add_user", "anna", "secret"),
        f"ok = {users}:set_tags({binary('anna')}, [monitoring, policymaker], {binary('guest')})",
        _call(f"{users}:set_permissions", "guest", "shop", ".*", ".*", ".*"),
        _call(f"{users}:set_permissions", "anna", "shop", "^$", "^(orders|amq\\.).*", ".*"),
        _call(f"{users}:set_topic_permissions", "anna", "shop", "amq.topic", "^a", "^b.*"),
        _call(f"{policies}:parse_set", "shop", "catch", "^ord", alternate, "5", "exchanges"),
        _call(f"{policies}:parse_set", "shop", "limit", ".*", length, "0", "queues"),
        _call(f"{policies}:parse_set_op", "shop", "cap", ".*", '{"message-ttl": 60000}', "0", "all"),
        _call("rabbit_runtime_parameters:parse_set_global", "cluster_note", '{"by": "test", "n": [1, 2.5]}'),
        _call("rabbit_vhost_limit:parse_set", "shop", '{"max-queues": 500}'),
    )
    with ExitStack() as connections:
        for vhost in ("/", "shop"):
            connection = amqp.Connection(f"127.0.0.1:{rabbitmq.amqp_port}", virtual_host=vhost)
            connection.connect()
            connections.callback(connection.close)
            _declare(connection.channel())
        yield


def _call(function: str, *words: str) -> str:
    """Return a call of an Erlang function that must succeed. Its last argument is the user who makes the change."""
    return f"ok = {function}({', '.join(map(binary, (*words, 'guest')))})"


def _declare(channel: amqp.Channel) -> None:
    def exchange(name: str, type_: str, *, durable: bool = True, arguments: dict[str, object] | None = None) -> None:
        channel.exchange_declare(name, type_, durable=durable, auto_delete=False, arguments=arguments)

    exchange("orders", "topic", arguments={"note": [1, {"deep": True}]})
    exchange("docs", "headers")
    exchange("audit", "fanout", arguments={"alternate-exchange": "unclaimed"})
    exchange("unclaimed", "fanout")
    exchange("passing", "direct", durable=False)
    channel.queue_declare("laptops", durable=True, auto_delete=False, arguments={"x-message-ttl": 60000, "x-max-priority": 9})
    channel.queue_declare("all", durable=True, auto_delete=False)
    channel.queue_declare("quorum", durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("short-lived", durable=False, auto_delete=False)
    channel.queue_declare("mine", durable=True, exclusive=True, auto_delete=False)
    channel.queue_bind("laptops", "orders", "orders.*.laptops.#")
    channel.queue_bind("laptops", "orders", "orders.*.laptops.#", arguments={"x-priority": 5})
    channel.exchange_bind("audit", "orders", "#")
    channel.queue_bind("all", "audit")
    channel.queue_bind("all", "amq.topic", "x.#")
    channel.queue_bind("short-lived", "passing", "ключ.☃")
    channel.queue_bind("mine", "orders", "mine.#")
    for name, value in ARGUMENTS_OF_EVERY_TYPE.items():
        channel.queue_bind("all", "docs", name, arguments={"x-match": "any", name: value})


def _get(rabbitmq: RabbitMQ, path: str) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{rabbitmq.http_port}/api/{path}")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request) as response:
        return bytes(response.read())


def main() -> None:
    with running_rabbitmq("rabbitmq_management") as rabbitmq, furnished(rabbitmq):
        exports = {
            "rabbitmqctl": rabbitmq.ctl("export_definitions", "-").encode(),
            "http": _get(rabbitmq, "definitions"),
            "http-vhost": _get(rabbitmq, "definitions/shop"),
        }
    for name, text in exports.items():
        (FOLDER / f"{name}.json").write_text(json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
