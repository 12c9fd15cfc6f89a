"""Carries out the operations of the table of permissions on a broker, each as one of the table's users."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, Channel, ClosedError
from tests.conformance.permission_table import OTHER, OWN, SPARE, PermissionRow, load_accounts
from tests.deadline import eventually
from tests.management.http import Http, segment
from tests.peers.rabbitmq import RabbitMQ

PASSWORD = "secret"
ADMIN = "admin"
VICTIM = "victim"
SALT = b"salt"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
EXCHANGES = {"x": "direct", "x2": "fanout", "t": "topic", "i": "direct", "mine.x": "direct", "ae": "fanout"}
INTERNAL = "i"
QUEUES = ("q", "mine.q", "held")
BINDINGS = (("x", "queue", "q"), ("t", "queue", "q"), ("mine.x", "queue", "q"), ("x", "exchange", "x2"), ("i", "exchange", "x"))
LOGIN = f"{ADMIN}:{PASSWORD}"
LISTED_CHANNEL = 9
IN_VHOSTS = ("/api/exchanges/", "/api/queues/", "/api/bindings/", "/api/connections/")
"""Paths of operations that change exchanges and queues of one vhost, or nothing that is stored."""
KEY = "mine.key"
NEW = ("new", "mine.new", "not-mine")
"""Names of exchanges and queues that operations create."""
LOCKED = "locked"
"""A queue that is exclusive to a connection of the administrator."""
Arguments: TypeAlias = Sequence[str]
Table: TypeAlias = Mapping[str, Any]
Operation: TypeAlias = Callable[[Channel, Arguments, Table], object]


def accounts() -> dict[str, Any]:
    """Return definitions of the users of the table and of what administrators can delete."""
    known = load_accounts()
    users = [{"name": each.name, "tags": each.tags} for each in known]
    users += [{"name": ADMIN, "tags": "administrator"}, {"name": VICTIM, "tags": ""}]
    permissions = [{"user": each.name, "vhost": each.vhost, **each.permissions} for each in known if each.permissions]
    permissions += [{"user": name, "vhost": vhost, **ALL} for name in (ADMIN, VICTIM) for vhost in (OWN, OTHER, SPARE)]
    topics = [
        {"user": each.name, "vhost": each.vhost, "exchange": "t", **each.topic_permissions}
        for each in known
        if each.topic_permissions
    ]
    topics += [{"user": VICTIM, "vhost": vhost, "exchange": "t", "write": ".*", "read": ".*"} for vhost in (OWN, OTHER)]
    policy = {"name": "p", "pattern": "^p$", "definition": {"max-length": 5}, "apply-to": "queues", "priority": 0}
    return {
        "users": [{**user, "password_hash": _hash(), "hashing_algorithm": HASHING} for user in users],
        "vhosts": [{"name": name} for name in (OWN, OTHER, SPARE)],
        "permissions": permissions,
        "topic_permissions": topics,
        "parameters": [],
        "global_parameters": [{"name": "g", "value": {}}],
        "policies": [{"vhost": vhost, **policy} for vhost in (OWN, OTHER)],
    }


def objects() -> dict[str, Any]:
    """Return definitions of the same exchanges, queues and bindings in the vhosts `own` and `other`."""
    vhosts = (OWN, OTHER)
    return {
        "exchanges": [
            {"name": name, "vhost": vhost, "type": kind, "internal": name == INTERNAL, **DURABLE}
            for vhost in vhosts
            for name, kind in EXCHANGES.items()
        ],
        "queues": [{"name": name, "vhost": vhost, **DURABLE} for vhost in vhosts for name in QUEUES],
        "bindings": [
            {
                "source": source,
                "vhost": vhost,
                "destination": name,
                "destination_type": kind,
                "routing_key": KEY,
                "arguments": {},
            }
            for vhost in vhosts
            for source, kind, name in BINDINGS
        ],
    }


HASHING = "rabbit_password_hashing_sha256"
DURABLE: Table = {"durable": True, "auto_delete": False, "arguments": {}}


def _hash() -> str:
    return base64.b64encode(SALT + hashlib.sha256(SALT + PASSWORD.encode()).digest()).decode()


class Stage:
    """A broker with the users and objects of the table. Its connections stay open from one operation to the next."""

    def __init__(self, amqp_port: int, http: Http) -> None:
        self._port = amqp_port
        self._http = http
        self._connections: dict[str, Amqp] = {}
        self._names: dict[str, str] = {}
        """Names of connections by user, as the broker lists them."""
        self._import({**accounts(), **objects()})
        self._keepers = [Amqp(amqp_port, user=ADMIN, password=PASSWORD, vhost=vhost) for vhost in (OWN, OTHER)]
        for keeper in self._keepers:
            channel = keeper.channel()
            channel.declare(LOCKED, exclusive=True)
            channel.consume("held")
        self._admin = self._keepers[0].channel(2)

    def close(self) -> None:
        for amqp in (*self._connections.values(), *self._keepers):
            amqp.drop()

    def outcomes(self, row: PermissionRow, users: Sequence[str]) -> tuple[str, ...]:
        """Carry out an operation as each of these users."""
        if "{mine}" in row.operation:
            for user in users:
                self._connection_name(user)
        return tuple(self._outcome(row, user) for user in users)

    def _outcome(self, row: PermissionRow, user: str) -> str:
        if row.words[0] in TAKING or row.operation.startswith("POST /api/queues/"):
            self._admin.put("q", b"m")
        if row.is_http:
            return self._request(row, user)
        verb, *arguments = row.words
        if verb == "connection.open":
            return self._enter(user, *arguments)
        outcome = self._carry_out(OPERATIONS[verb], arguments, row.table, user)
        if verb in CHANGES and outcome == "ok":
            self._set_again()
        return outcome

    def _enter(self, user: str, vhost: str) -> str:
        try:
            Amqp(self._port, user=user, password=PASSWORD, vhost=vhost).close()
        except ClosedError as error:
            return str(error.code)
        return "ok"

    def _carry_out(self, operation: Operation, arguments: Arguments, table: Table, user: str) -> str:
        table = {name: user if value == "$user" else value for name, value in table.items()}
        try:
            if user not in self._connections:
                self._connections[user] = Amqp(self._port, user=user, password=PASSWORD, vhost=OWN)
            channel = self._connections[user].channel()
            operation(channel, arguments, table)
            channel.settle()
            channel.close()
            channel.amqp.waiting.clear()  # deliveries
        except ClosedError as error:
            if error.scope == "connection":
                self._disconnect(user)
            return str(error.code)
        return "ok"

    def _set_again(self) -> None:
        """Remove what an operation created, and create what it removed."""
        channel = self._admin
        for name in NEW:
            channel.delete(name)
            channel.call(wire.ExchangeDelete(0, name), wire.ExchangeDeleteOk)
        for name, kind in EXCHANGES.items():
            channel.declare_exchange(name, kind, durable=True, internal=name == INTERNAL)
        for name in QUEUES:
            channel.declare(name, durable=True)
        for source, kind, name in BINDINGS:
            if kind == "queue":
                channel.bind(name, source, KEY)
            else:
                channel.call(wire.ExchangeBind(0, name, source, KEY), wire.ExchangeBindOk)

    def _request(self, row: PermissionRow, user: str) -> str:
        method, path = row.words
        if path.startswith("/api/connections"):
            self._connection_name(VICTIM)
        path = self._filled(path, user)
        answer = self._http.as_user(f"{user}:{PASSWORD}").call(method, path, None if method == "GET" else row.table)
        if method != "GET" and answer.status < 300:
            if path.startswith(IN_VHOSTS):
                self._set_again()
            elif method == "DELETE" or path.endswith("/bulk-delete"):
                self._import(accounts())
            if path.startswith("/api/connections") or VICTIM in row.operation:
                self._disconnect(VICTIM, user)
        if method == "GET" and answer.status == 200 and isinstance(answer.body, list):
            return _seen(path, answer.body)
        return "ok" if answer.status < 300 else str(answer.status)

    def _filled(self, path: str, user: str) -> str:
        """Replace {node} and {user}, and {victim} and {mine} by the name of a connection of another user and of this user."""
        path = path.replace("{user}", segment(user))
        if "{node}" in path:
            return path.replace("{node}", self._http.get("/api/overview")["node"])
        for place, owner in (("{victim}", VICTIM), ("{mine}", user)):
            if place in path:
                path = path.replace(place, segment(self._connection_name(owner)))
                eventually(lambda: self._http.as_user(LOGIN).call("GET", path).status == 200, path)  # noqa: B023
        return path

    def _connection_name(self, user: str) -> str:
        """Return the name of a user's connection, as the broker lists it. The connection has a channel."""
        if user not in self._connections:
            vhost = next((each.vhost for each in load_accounts() if each.name == user), OWN)
            self._connections[user] = Amqp(self._port, user=user, password=PASSWORD, vhost=vhost)
        if user not in self._names:
            self._connections[user].channel(LISTED_CHANNEL)
            host, port = self._connections[user].socket.getsockname()
            self._names[user] = f"{host}:{port} -> {host}:{self._port}"
        return self._names[user]

    def _disconnect(self, *users: str) -> None:
        """Drop connections that the broker may have closed."""
        for user in users:
            self._names.pop(user, None)
            if user in self._connections:
                self._connections.pop(user).drop()

    def _import(self, definitions: Table) -> None:
        answer = self._http.call("POST", "/api/definitions", definitions)
        assert answer.status in (200, 201, 204), answer


def _seen(path: str, items: list[Any]) -> str:
    """Return whose objects a list contains, by their vhosts."""
    if not items:
        return "none"
    key = "name" if path == "/api/vhosts" else "vhost"
    if not all(isinstance(item, dict) and key in item for item in items):
        return "ok"
    vhosts = {item[key] for item in items}
    if {OWN, OTHER} <= vhosts:
        return "all"
    return OWN if OWN in vhosts else OTHER if OTHER in vhosts else "none"


@contextmanager
def rabbitmq_stage(node: RabbitMQ) -> Iterator[Stage]:
    """Use a RabbitMQ with the management plugin, which should list new connections quickly. It is empty afterwards."""
    try:
        with stage(node.amqp_port, Http(f"http://127.0.0.1:{node.http_port}")) as one:
            yield one
    finally:
        node.clear()


@contextmanager
def stage(amqp_port: int, http: Http) -> Iterator[Stage]:
    one = Stage(amqp_port, http)
    try:
        yield one
    finally:
        one.close()


def _declare_exchange(channel: Channel, names: Arguments, table: Table) -> None:
    channel.declare_exchange(names[0], "direct", arguments=table)


def _declare_exchange_passively(channel: Channel, names: Arguments, table: Table) -> None:
    channel.declare_exchange(names[0], passive=True)


def _declare_queue(channel: Channel, names: Arguments, table: Table) -> None:
    """Declare a queue. It is exclusive if it has no name, so that it is removed with its connection."""
    durable = names[0] in QUEUES
    channel.call(wire.QueueDeclare(0, names[0], False, durable, not names[0], False, False, table), wire.QueueDeclareOk)


def _acknowledge(settle: Callable[[Channel, int], None]) -> Operation:
    def carry_out(channel: Channel, names: Arguments, table: Table) -> None:
        channel.get(names[0], no_ack=False)
        settle(channel, 1)

    return carry_out


def _cancel(channel: Channel, names: Arguments, table: Table) -> None:
    channel.cancel(channel.consume(names[0]))


def _ask(channel: Channel, names: Arguments, table: Table) -> None:
    """Send a request with direct reply-to."""
    channel.consume("amq.rabbitmq.reply-to", no_ack=True)
    channel.publish(names[0], names[1], reply_to="amq.rabbitmq.reply-to")


def _in_transaction(finish: wire.Method, reply: type[wire.Method]) -> Operation:
    def carry_out(channel: Channel, names: Arguments, table: Table) -> None:
        channel.call(wire.TxSelect(), wire.TxSelectOk)
        channel.publish(names[0], names[1])
        channel.call(finish, reply)

    return carry_out


def _call(method: Callable[..., wire.Method], reply: type[wire.Method]) -> Operation:
    """Return an operation that sends a method, whose arguments follow the ticket, and expects a reply."""
    return lambda channel, names, table: channel.call(method(0, *names), reply)


OPERATIONS: Mapping[str, Operation] = {
    "channel.open": lambda channel, names, table: None,
    "channel.flow": lambda channel, names, table: channel.call(wire.ChannelFlow(True), wire.ChannelFlowOk),
    "exchange.declare": _declare_exchange,
    "exchange.declare-passive": _declare_exchange_passively,
    "exchange.delete": _call(wire.ExchangeDelete, wire.ExchangeDeleteOk),
    "exchange.bind": _call(wire.ExchangeBind, wire.ExchangeBindOk),
    "exchange.unbind": _call(wire.ExchangeUnbind, wire.ExchangeUnbindOk),
    "queue.declare": _declare_queue,
    "queue.declare-passive": lambda channel, names, table: channel.declare(names[0], passive=True),
    "queue.bind": _call(wire.QueueBind, wire.QueueBindOk),
    "queue.unbind": _call(wire.QueueUnbind, wire.QueueUnbindOk),
    "queue.purge": _call(wire.QueuePurge, wire.QueuePurgeOk),
    "queue.delete": _call(wire.QueueDelete, wire.QueueDeleteOk),
    "basic.qos": lambda channel, names, table: channel.qos(1),
    "basic.consume": lambda channel, names, table: channel.consume(names[0], no_ack=True),
    "basic.cancel": _cancel,
    "basic.publish": lambda channel, names, table: channel.publish(names[0], names[1], **table),
    "basic.get": lambda channel, names, table: channel.get(names[0]),
    "basic.ack": _acknowledge(lambda channel, tag: channel.ack(tag)),
    "basic.nack": _acknowledge(lambda channel, tag: channel.nack(tag)),
    "basic.reject": _acknowledge(lambda channel, tag: channel.reject(tag)),
    "basic.recover-async": lambda channel, names, table: channel.send(wire.BasicRecoverAsync(True)),
    "basic.recover": lambda channel, names, table: channel.call(wire.BasicRecover(True), wire.BasicRecoverOk),
    "confirm.select": lambda channel, names, table: channel.confirm(),
    "tx.select": lambda channel, names, table: channel.call(wire.TxSelect(), wire.TxSelectOk),
    "tx.commit": _in_transaction(wire.TxCommit(), wire.TxCommitOk),
    "tx.rollback": _in_transaction(wire.TxRollback(), wire.TxRollbackOk),
    "request": _ask,
}
TAKING = ("basic.ack", "basic.nack", "basic.reject")
"""Operations that need a message in the queue."""
CHANGES = (
    "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "queue.declare", "queue.bind", "queue.unbind",
    "queue.delete",
)  # fmt: skip
