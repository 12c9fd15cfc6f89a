"""The topology in a store: loaded as a whole after a change, written in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from holtmq.errors import HoltmqError, StoreError
from holtmq.steps import Steps
from holtmq.store.sql.sql_database import TOPOLOGY, Connection, SqlDatabase
from holtmq.table import FieldValue, Table
from holtmq.table_json import table_from_json, table_to_json
from holtmq.topology import DEFAULT_VHOST, Binding, Exchange, Parameter, Policy, Queue, Removal, Topology

T = TypeVar("T")
TRIES = 3
"""Times that the topology is read while other processes change it, before they are kept from doing so."""
ROWS = 500
"""Number of bindings that are removed in one step."""
QUEUE_COLUMNS = "vhost, name, durable, auto_delete, exclusive, arguments"
ADD_QUEUE = f"INSERT INTO queues (id, {QUEUE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
ADD_BINDING = (
    "INSERT INTO bindings (vhost, source, destination_type, destination, routing_key, arguments, created_at, metadata) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
CHANGE = "UPDATE state SET topology_version = topology_version + 1"
FROM = "vhost = ? AND source = ?"
BETWEEN = "vhost = ? AND source = ? AND destination_type = ? AND destination = ?"
"""Bindings from an exchange, and to one destination."""


class SqlDeclarations:
    """With `counts_changes`, every change tells other processes to load the topology again. A broker has none beside it."""

    def __init__(self, database: SqlDatabase, *, counts_changes: bool = True) -> None:
        self._database = database
        self._counts_changes = counts_changes

    def versions(self) -> tuple[int, int]:
        """Return two version numbers. The first grows when the topology changes, the second when routing keys are removed."""
        with self._database.lock() as connection:
            topology, keys = connection.execute("SELECT topology_version, keys_version FROM state").fetchone()
            return topology, keys

    def load(self) -> Topology:
        """Return the topology at one moment: no change by another process is seen in part."""
        for _ in range(TRIES):
            before = self.versions()
            topology = self._load()
            if self.versions() == before:
                return topology
        with self._database.lazy_transaction():
            self._database.serialize(TOPOLOGY)
            return self._load()

    def _load(self) -> Topology:
        with self._database.lock() as connection:
            exchanges = connection.execute(
                "SELECT name, type, durable, auto_delete, internal, arguments, vhost FROM exchanges ORDER BY vhost, name"
            )
            queues = connection.execute(
                "SELECT name, durable, auto_delete, exclusive, arguments, vhost FROM queues ORDER BY id"
            )
            bindings = connection.execute(
                "SELECT source, destination, routing_key, arguments, destination_type, vhost, created_at, metadata "
                "FROM bindings ORDER BY id"
            )
            policies = connection.execute(
                "SELECT name, pattern, definition, apply_to, priority, vhost FROM policies ORDER BY vhost, name"
            )
            found = connection.execute("SELECT name, metadata FROM vhosts ORDER BY name")
            vhosts = self._read("vhosts", _vhost, found)
            return Topology(
                self._read("exchanges", _exchange, exchanges),
                self._read("queues", _queue, queues),
                self._read("bindings", _binding, bindings),
                self._read("policies", _policy, policies),
                (("vhosts", json.dumps(vhosts)),) if vhosts != ({"name": DEFAULT_VHOST},) else (),
            )

    def _read(self, table: str, convert: Callable[[Any], T], rows: Iterable[Any]) -> tuple[T, ...]:
        """Convert the rows of a table. A value that HoltMQ cannot have written means that the file is damaged."""
        try:
            return tuple(map(convert, rows))
        except (HoltmqError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(
                f"{self._database.path} is damaged: the table {table} has a value that HoltMQ does not write ({error}); "
                "restore the file from a backup"
            ) from error

    def add_exchange(self, exchange: Exchange) -> None:
        self._change(
            "INSERT INTO exchanges VALUES (?, ?, ?, ?, ?, ?, ?)",
            exchange.vhost, exchange.name, exchange.type, int(exchange.durable), int(exchange.auto_delete),
            int(exchange.internal), to_text(exchange.arguments),
        )  # fmt: skip

    def add_queue(self, queue: Queue, queue_id: int | None = None) -> int:
        """Add a queue and return its id, which is the next free one by default."""
        with self._database.transaction() as connection:
            if queue_id is None:
                statement = f"INSERT INTO queues ({QUEUE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) RETURNING id"
                (queue_id,) = connection.execute(statement, _queue_values(queue)).fetchone()
            else:
                connection.execute(ADD_QUEUE, (queue_id, *_queue_values(queue)))
            self.count_change(connection)
        return int(queue_id)

    def add_queues(self, queues: Sequence[tuple[Queue, int]]) -> None:
        """Add queues with their ids."""
        with self._database.transaction() as connection:
            connection.executemany(ADD_QUEUE, [(queue_id, *_queue_values(queue)) for queue, queue_id in queues])
            self.count_change(connection)

    def replace_old_limit(self, queue: Queue) -> bool:
        """Give a queue of a file from before version 4 new arguments. Return False if it is not such a queue."""
        with self._database.transaction() as connection:
            is_replaced = connection.execute(
                "UPDATE queues SET arguments = ?, has_old_limit = 0 WHERE vhost = ? AND name = ? AND has_old_limit = 1",
                (to_text(queue.arguments), queue.vhost, queue.name),
            ).rowcount
            connection.execute("UPDATE state SET topology_version = topology_version + ?", (is_replaced,))
        return bool(is_replaced)

    def add_binding(self, binding: Binding) -> None:
        self._change(ADD_BINDING, *_binding_values(binding))

    def add_bindings(self, bindings: Sequence[tuple[Binding]]) -> None:
        with self._database.transaction() as connection:
            connection.executemany(ADD_BINDING, [_binding_values(binding) for (binding,) in bindings])
            self.count_change(connection)

    def remove(self, removal: Removal) -> Steps[None]:
        """Remove the parts of a topology that a change removed. The caller removes the messages of a queue before.

        The bindings from and to removed parts are found by their ends, not one by one.
        """
        for binding in removal.bindings if removal.is_unbinding else ():
            self._change(
                "DELETE FROM bindings WHERE (vhost, source, destination_type, destination, routing_key, arguments) "
                "= (?, ?, ?, ?, ?, ?)",
                *_identity(binding),
            )
            yield
        for ends in removal.ends:
            yield from self._remove_bindings(BETWEEN, *ends)
        for exchange in removal.exchanges:
            yield from self._remove_bindings(FROM, exchange.vhost, exchange.name)
            self._change("DELETE FROM exchanges WHERE vhost = ? AND name = ?", exchange.vhost, exchange.name)
        for queue in removal.queues:
            self._change("DELETE FROM queues WHERE vhost = ? AND name = ?", queue.vhost, queue.name)

    def _remove_bindings(self, which: str, *parameters: str) -> Steps[None]:
        """Remove bindings, some in each step."""
        removed = 1
        while removed:
            with self._database.transaction() as connection:
                removed = connection.execute(
                    f"DELETE FROM bindings WHERE id IN (SELECT id FROM bindings WHERE {which} LIMIT ?)", (*parameters, ROWS)
                ).rowcount
                if removed:
                    self.count_change(connection)
            yield

    def set_policy(self, policy: Policy) -> None:
        self._change(
            "INSERT INTO policies VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (vhost, name) DO UPDATE SET "
            "pattern = excluded.pattern, apply_to = excluded.apply_to, priority = excluded.priority, "
            "definition = excluded.definition",
            policy.vhost, policy.name, policy.pattern, policy.apply_to, policy.priority, to_text(policy.definition),
        )  # fmt: skip

    def remove_policy(self, vhost: str, name: str) -> None:
        self._change("DELETE FROM policies WHERE vhost = ? AND name = ?", vhost, name)

    def set_vhost(self, name: str, metadata: str) -> None:
        statement = "INSERT INTO vhosts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET metadata = excluded.metadata"
        self._change(statement, name, metadata)

    def set_parameter(self, parameter: Parameter) -> None:
        self._change(
            "INSERT INTO parameters VALUES (?, ?, ?, ?) "
            "ON CONFLICT (component, vhost, name) DO UPDATE SET value = excluded.value",
            parameter.component, parameter.vhost, parameter.name, parameter.value,
        )  # fmt: skip

    def remove_parameter(self, parameter: Parameter) -> None:
        self._change("DELETE FROM parameters WHERE (component, vhost, name) = (?, ?, ?)", *parameter.identity)

    def parameters(self) -> list[Parameter]:
        with self._database.lock() as connection:
            rows = connection.execute("SELECT component, name, value, vhost FROM parameters").fetchall()
        return [Parameter(*row) for row in rows]

    def remove_vhost(self, name: str) -> None:
        """Remove a vhost with its policies, permissions and parameters. The caller removes its other contents before."""
        for table in ("policies", "permissions", "topic_permissions", "parameters"):
            self._change(f"DELETE FROM {table} WHERE vhost = ?", name)
        self._change("DELETE FROM vhosts WHERE name = ?", name)

    def queue_ids(self, vhost: str) -> dict[str, int]:
        with self._database.lock() as connection:
            return dict(connection.execute("SELECT name, id FROM queues WHERE vhost = ?", (vhost,)))

    def _change(self, statement: str, *parameters: object) -> None:
        with self._database.transaction() as connection:
            connection.execute(statement, parameters)
            self.count_change(connection)

    def count_change(self, connection: Connection) -> None:
        if self._counts_changes:
            connection.execute(CHANGE)


def to_text(table: Mapping[str, FieldValue]) -> str:
    """Return a table as JSON. Equal tables give the same text, which identifies a binding in the file."""
    return json.dumps(table_to_json(table), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def from_text(text: str | None) -> Table:
    return table_from_json(json.loads(text), "file") if text else Table.of(None)


def _queue_values(queue: Queue) -> tuple[object, ...]:
    return (
        queue.vhost, queue.name, int(queue.durable), int(queue.auto_delete), int(queue.exclusive), to_text(queue.arguments)
    )  # fmt: skip


def _binding_values(binding: Binding) -> tuple[object, ...]:
    created_at = binding.created_at.isoformat() if binding.created_at else None
    return *_identity(binding), created_at, to_text(binding.metadata)


def _identity(binding: Binding) -> tuple[str, ...]:
    return (
        binding.vhost, binding.source, binding.destination_type, binding.destination, binding.routing_key,
        to_text(binding.arguments),
    )  # fmt: skip


def _vhost(row: tuple[str, str]) -> dict[str, Any]:
    name, metadata = row
    return {"name": name, **json.loads(metadata)}


def _exchange(row: tuple[str, str, int, int, int, str, str]) -> Exchange:
    name, type_, durable, auto_delete, internal, arguments, vhost = row
    return Exchange(name, type_, bool(durable), bool(auto_delete), bool(internal), from_text(arguments), vhost)


def _queue(row: tuple[str, int, int, int, str, str]) -> Queue:
    name, durable, auto_delete, exclusive, arguments, vhost = row
    return Queue(name, bool(durable), bool(auto_delete), bool(exclusive), from_text(arguments), vhost)


def _policy(row: tuple[str, str, str, str, int, str]) -> Policy:
    name, pattern, definition, apply_to, priority, vhost = row
    return Policy(name, pattern, from_text(definition), apply_to, priority, vhost)


def _binding(row: tuple[str, str, str, str, str, str, str | None, str]) -> Binding:
    source, destination, routing_key, arguments, destination_type, vhost, created_at, metadata = row
    return Binding(
        source,
        destination,
        routing_key,
        from_text(arguments),
        "queue" if destination_type == "queue" else "exchange",
        vhost,
        datetime.fromisoformat(created_at) if created_at else None,
        from_text(metadata),
    )
