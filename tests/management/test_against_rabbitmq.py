"""The same requests to HoltMQ and to a live RabbitMQ: status, field names and types of the answers must agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pika
import pytest

from tests.deadline import eventually
from tests.management.conftest import running_node
from tests.management.http import Answer, Http
from tests.peers.rabbitmq import RabbitMQ

pytestmark = pytest.mark.rabbitmq

Q, E, B = "/api/queues/%2F", "/api/exchanges/%2F", "/api/bindings/%2F"
MESSAGE = {
    "properties": {"headers": {"a": 1}, "delivery_mode": 2},
    "routing_key": "a.b",
    "payload": "hello",
    "payload_encoding": "string",
}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
RIGHTS = {"configure": "^b", "write": ".*", "read": ".*"}
POLICY = {"pattern": "^q2", "definition": {"max-length": 5}, "priority": 1, "apply-to": "queues"}

REQUESTS: list[tuple[str, str, str, Any]] = [
    ("guest:guest", *request)
    for request in [
        ("PUT", f"{E}/orders", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}),
        ("PUT", f"{E}/orders", {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "amq.fanout"}}),
        ("PUT", f"{E}/orders", {"type": "direct"}),
        ("PUT", f"{E}/bad", {"type": "nope"}),
        ("PUT", f"{E}/plain", {}),
        ("PUT", f"{E}/amq.mine", {"type": "direct"}),
        ("PUT", f"{Q}/q1", {"durable": True, "auto_delete": False, "arguments": {"x-max-length": 100}}),
        ("PUT", f"{Q}/q1", {"durable": False}),
        ("PUT", f"{Q}/q1", {"durable": "yes"}),
        ("PUT", f"{Q}/q2", {"durable": "true"}),
        ("PUT", f"{Q}/q3", [1]),
        ("PUT", f"{Q}/q3", b"{bad json"),
        ("PUT", "/api/queues/nope/q3", {}),
        ("POST", f"{B}/e/orders/q/q1", {"routing_key": "a.#", "arguments": {}}),
        ("POST", f"{B}/e/orders/q/q1", {"routing_key": "a.#", "arguments": {"x": 1}}),
        ("POST", f"{B}/e/orders/q/q1", {}),
        ("POST", f"{B}/e/orders/e/amq.fanout", {"routing_key": "x/y %"}),
        ("POST", f"{B}/e/orders/q/nope", {}),
        ("GET", f"{B}/e/orders/q/q1", None),
        ("GET", f"{B}/e/orders/q/q1/~", None),
        ("GET", f"{B}/e/orders/q/q1/a.%23", None),
        ("GET", f"{B}/e/orders/q/q1/nope", None),
        ("DELETE", f"{B}/e/orders/q/q1/nope", None),
        ("GET", f"{Q}/q1/bindings", None),
        ("POST", f"{E}/orders/publish", MESSAGE),
        ("POST", f"{E}/amq.default/publish", {**MESSAGE, "routing_key": "q2", "payload": "AAEC", "payload_encoding": "base64"}),
        ("POST", f"{E}/amq.default/publish", {**MESSAGE, "payload": "///", "payload_encoding": "base64"}),
        ("POST", f"{E}/amq.default/publish", {**MESSAGE, "properties": {"priority": "x"}}),
        ("POST", f"{E}/amq.default/publish", {**MESSAGE, "routing_key": "none"}),
        ("POST", f"{Q}/q2/get", {**GET, "truncate": 3}),
        ("POST", f"{Q}/q2/get", {**GET, "ackmode": "ack_requeue_false"}),
        ("POST", f"{Q}/q1/get", {**GET, "count": 5}),
        ("POST", f"{Q}/q1/get", {**GET, "encoding": "base64"}),
        ("POST", f"{Q}/q1/get", {"count": 1}),
        ("POST", f"{Q}/nope/get", GET),
        ("PUT", "/api/users/bob", {"password": "bob", "tags": "management"}),
        ("PUT", "/api/users/bob", {"password": "bob", "tags": "management"}),
        ("PUT", "/api/users/mon", {"password": "mon", "tags": ["monitoring"]}),
        ("PUT", "/api/users/none", {"password": "none", "tags": ""}),
        ("PUT", "/api/permissions/%2F/bob", RIGHTS),
        ("PUT", "/api/permissions/%2F/bob", {**RIGHTS, "configure": "("}),
        ("PUT", "/api/permissions/%2F/bob", {"write": ".*", "read": ".*"}),
        ("PUT", "/api/topic-permissions/%2F/bob", {"exchange": "orders", "write": "^a", "read": ".*"}),
        ("PUT", "/api/policies/%2F/p1", POLICY),
        ("PUT", "/api/policies/%2F/p2", {**POLICY, "pattern": "("}),
        ("PUT", "/api/policies/%2F/p2", {**POLICY, "definition": {"nope": 5}}),
        ("PUT", "/api/policies/%2F/p2", {**POLICY, "definition": {"max-length": "a"}}),
        ("PUT", "/api/vhosts/v2", {}),
        ("PUT", "/api/vhosts/v2", {}),
        ("PUT", "/api/global-parameters/foo", {"value": {"a": 1}}),
        *(
            ("GET", f"/api/{path}", None)
            for path in [
                "overview",
                "cluster-name",
                "nodes",
                "whoami",
                "vhosts",
                "vhosts/%2F",
                "vhosts/nope",
                "users",
                "users/guest",
                "users/nope",
                "users/without-permissions",
                "users/guest/permissions",
                "users/bob/topic-permissions",
                "permissions",
                "permissions/%2F/guest",
                "permissions/%2F/nope",
                "topic-permissions",
                "topic-permissions/%2F/bob",
                "connections",
                "vhosts/%2F/connections",
                "channels",
                "vhosts/%2F/channels",
                "consumers",
                "consumers/%2F",
                "exchanges",
                "exchanges/%2F",
                "exchanges/%2F/orders",
                "exchanges/%2F/amq.default",
                "exchanges/%2F/nope",
                "exchanges/nope",
                "exchanges/%2F/orders/bindings/source",
                "exchanges/%2F/amq.fanout/bindings/destination",
                "queues",
                "queues/%2F",
                "queues/%2F/q1",
                "queues/%2F/q2",
                "queues/%2F/nope",
                "bindings",
                "bindings/%2F",
                "policies",
                "policies/%2F",
                "policies/%2F/p1",
                "policies/%2F/nope",
                "parameters",
                "global-parameters",
                "global-parameters/foo",
                "definitions",
                "definitions/%2F",
                "aliveness-test/%2F",
                "aliveness-test/nope",
                "health/checks/alarms",
                "health/checks/local-alarms",
                "health/checks/virtual-hosts",
                "health/checks/certificate-expiration/1/months",
                "health/checks/port-listener/1",
                "health/checks/protocol-listener/amqp091",
                "health/checks/protocol-listener/nope",
                "health/checks/node-is-quorum-critical",
                "operator-policies",
                "nope",
                "vhosts/%2F/permissions",
                "vhosts/%2F/topic-permissions",
                "queues?page=1&page_size=2",
                "queues?page=9",
                "queues?page=0",
                "queues?page_size=2",
                "queues?page=1&name=q&columns=name,messages",
                "queues?page=1&name=^q[12]$&use_regex=true&columns=name",
                "queues?sort=name&sort_reverse=true&columns=name",
                "queues?sort=nope&columns=name",
                "queues?page=1&name=(&use_regex=true",
                "queues?disable_stats=true",
                "queues?lengths_age=60&lengths_incr=5&columns=name,messages_details",
            ]
        ),
        ("DELETE", f"{E}/orders?if-unused=true", None),
        ("DELETE", f"{Q}/q1?if-empty=true", None),
        ("DELETE", f"{E}/amq.direct", None),
        ("DELETE", f"{E}/nope", None),
        ("DELETE", f"{Q}/nope", None),
        ("DELETE", f"{Q}/q2/contents", None),
        ("POST", f"{Q}/q2/actions", {"action": "nope"}),
        ("DELETE", "/api/users/nope", None),
        ("DELETE", "/api/vhosts/nope", None),
        ("DELETE", "/api/vhosts/v2", None),
        ("DELETE", "/api/policies/%2F/nope", None),
        ("DELETE", "/api/permissions/%2F/nope", None),
        (
            "POST",
            "/api/definitions",
            {"queues": [{"name": "d1", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}]},
        ),
        ("POST", "/api/definitions/%2F", {"queues": [{"name": "d2", "durable": True, "auto_delete": False, "arguments": {}}]}),
        ("OPTIONS", "/api/queues", None),
        ("PATCH", "/api/queues", None),
        ("HEAD", "/api/queues", None),
    ]
]
REQUESTS += [
    (login, method, path, body)
    for login in ("bob:bob", "mon:mon", "none:none")
    for method, path, body in [
        ("GET", "/api/whoami", None),
        ("GET", "/api/users", None),
        ("GET", "/api/overview", None),
        ("GET", "/api/nodes", None),
        ("GET", "/api/queues", None),
        ("GET", "/api/queues/%2F", None),
        ("GET", "/api/connections", None),
        ("PUT", f"{Q}/bx-{login[:3]}", {}),
        ("PUT", f"{Q}/zx", {}),
        ("GET", "/api/policies", None),
        ("PUT", "/api/policies/%2F/p9", POLICY),
        ("GET", "/api/definitions", None),
        ("GET", "/api/vhosts", None),
        ("GET", "/api/permissions", None),
    ]
]
REQUESTS += [("guest:wrong", "GET", "/api/whoami", None), ("guest:wrong", "PUT", f"{Q}/zx", {})]  # answered with a delay

ERLANG = {
    "backing_queue_status", "garbage_collection", "reductions", "reductions_details", "recoverable_slaves", "idle_since",
    "head_message_timestamp", "consumer_capacity", "pending_raft_commands", "send_pend", "ssl_hash", "ssl_key_exchange",
    "release_series_support_status", "socket_opts", "ssl_opts", "cowboy_opts", "net_ticktime", "protocol",
}  # fmt: skip
"""Fields that describe RabbitMQ's Erlang runtime."""
NOT_KEPT = {
    "user_who_performed_action", "peer_cert_issuer", "peer_cert_subject", "peer_cert_validity", "disk_reads",
    "disk_reads_details", "disk_writes", "disk_writes_details", "message_bytes_paged_out", "message_bytes_persistent",
    "message_bytes_ram", "message_bytes_unacknowledged", "messages_paged_out", "messages_persistent",
    "messages_ready_ram", "messages_unacknowledged_ram", "product_version",
}  # fmt: skip
"""Fields that HoltMQ could only compute by a scan of all messages. HoltMQ may have fields that RabbitMQ lacks."""


OPEN = ("arguments", "client_properties", "cluster_state", "listeners", "contexts")


@pytest.fixture(scope="module")
def answers(rabbitmq: RabbitMQ) -> Iterator[list[tuple[str, Answer, Answer]]]:
    with running_node() as node, ExitStack() as stack:
        stack.callback(rabbitmq.clear)
        peers = [(node.http, node.amqp_port), (Http(f"http://127.0.0.1:{rabbitmq.http_port}"), rabbitmq.amqp_port)]
        connections = [pika.BlockingConnection(pika.ConnectionParameters(port=port, heartbeat=0)) for _, port in peers]
        for connection in connections:
            channel = connection.channel()
            channel.queue_declare("held")
            channel.basic_consume("held", lambda *_: None)
            stack.callback(connection.close)
        eventually(lambda: all(has_statistics(http) for http, _ in peers), "statistics, collected every second")
        yield [
            (
                f"{login.split(':')[0]} {method} {path} {body if body is not None else ''}".strip(),
                peers[0][0].as_user(login).call(method, path, body),
                peers[1][0].as_user(login).call(method, path, body),
            )
            for login, method, path, body in REQUESTS
        ]


def has_statistics(http: Http) -> bool:
    queue = http.get("/api/queues/%2F/held?lengths_age=60&lengths_incr=5")
    has_samples = bool(queue.get("messages_details", {}).get("samples"))
    return bool(http.get("/api/connections") and http.get("/api/channels") and has_samples)


def test_the_same_status(answers: list[tuple[str, Answer, Answer]]) -> None:
    different = [(what, ours.status, theirs.status) for what, ours, theirs in answers if ours.status != theirs.status]
    assert different == []


def test_all_fields_of_rabbitmq_exist(answers: list[tuple[str, Answer, Answer]]) -> None:
    missing = {
        what: sorted(absent)
        for what, ours, theirs in answers
        if theirs.status == 200 and (absent := _names(theirs.body) - _names(ours.body) - ERLANG - NOT_KEPT)
        # these contain names that are the broker's own: applications, plugins, limits of its processes
        if not any(each in what for each in ("/api/nodes", "/api/definitions"))
    }
    assert missing == {}


def test_values_have_the_same_types(answers: list[tuple[str, Answer, Answer]]) -> None:
    different = []
    for what, ours, theirs in answers:
        if theirs.status == 200:
            mine, other = _types(ours.body), _types(theirs.body)
            different += [
                (what, name, mine[name], other[name]) for name in mine.keys() & other.keys() if not mine[name] & other[name]
            ]
    assert different == []


def test_routed_messages_and_paging_are_the_same(answers: list[tuple[str, Answer, Answer]]) -> None:
    for what, ours, theirs in answers:
        if "publish" in what and theirs.status == 200:
            assert ours.body == theirs.body, what
        if "sort=name" in what or "use_regex=true&columns" in what:
            assert ours.body == theirs.body, what


def _names(value: Any) -> set[str]:
    """Return the field names in an answer, without those of objects whose names are free."""
    if isinstance(value, list):
        return set().union(*(_names(each) for each in value)) if value else set()
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(_names(each) for name, each in value.items() if name not in (*ERLANG, *OPEN)))


def _types(value: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}

    def visit(each: Any) -> None:
        if isinstance(each, list):
            for one in each:
                visit(one)
        elif isinstance(each, dict):
            for name, one in each.items():
                if one is not None and one != [] and one != "undefined":
                    found.setdefault(name, set()).add(
                        "number" if isinstance(one, int | float) and not isinstance(one, bool) else type(one).__name__
                    )
                visit(one)

    visit(value)
    return found
