"""Export of a running broker's definitions, in RabbitMQ's format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.broker.broker import Broker
from holtmq.topology import Binding, Exchange, Parameter, Queue, Registry, definitions_file
from holtmq.topology.registry import PREDECLARED


def export_definitions(broker: Broker, vhost: str | None = None) -> dict[str, Any]:
    """Return the durable definitions of all vhosts or, in RabbitMQ's format for a single vhost, of one.

    The sections are iterators, which write the state of this moment whenever they are read.
    """
    chosen = [broker.vhosts[name] for name in ([vhost] if vhost is not None else sorted(broker.vhosts))]
    lasting = [_Lasting(each.router.registry) for each in chosen]
    parameters = list(broker.parameters.values())
    accounts = broker.authorization
    of_broker = {
        "users": map(user_to_json, list(accounts.users.values())),
        "vhosts": iter([{"name": each.name, **each.metadata} for each in chosen]),
        "permissions": map(permission_to_json, list(accounts.permissions.values())),
        "topic_permissions": map(permission_to_json, list(accounts.topic_permissions.values())),
    }
    return {
        **(of_broker if vhost is None else {}),
        "parameters": (parameter_to_json(each) for each in parameters if not each.is_global and vhost in (None, each.vhost)),
        **({"global_parameters": map(parameter_to_json, filter(_is_global, parameters))} if vhost is None else {}),
        **definitions_file.sections(
            (exchange for each in lasting for exchange in each.exchanges()),
            (queue for each in lasting for queue in each.queues()),
            (binding for each in lasting for binding in each.bindings()),
            [policy for each in chosen for policy in each.router.registry.policies],
            names_vhost=vhost is None,
        ),
    }


class _Lasting:
    """What survives a restart of the contents of a vhost, as they are now."""

    def __init__(self, registry: Registry) -> None:
        self._exchanges = dict(registry.exchanges)
        self._queues = dict(registry.queues)
        self._bindings = registry.bindings()

    def exchanges(self) -> Iterator[Exchange]:
        return (each for each in self._exchanges.values() if each.durable and each.name not in PREDECLARED)

    def queues(self) -> Iterator[Queue]:
        return (each for each in self._queues.values() if each.durable and not each.exclusive)

    def bindings(self) -> Iterator[Binding]:
        for binding in self._bindings:
            if not self._exchanges[binding.source].durable:
                continue
            if binding.is_to_queue:
                queue = self._queues[binding.destination]
                is_lasting = queue.durable and not queue.exclusive
            else:
                is_lasting = self._exchanges[binding.destination].durable
            if is_lasting:
                yield binding


def _is_global(parameter: Parameter) -> bool:
    return parameter.is_global


def user_to_json(user: User) -> dict[str, Any]:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing,
        "tags": list(user.tags),
        "limits": {},
    }


def permission_to_json(permission: Permission | TopicPermission) -> dict[str, Any]:
    named = {"user": permission.user, "vhost": permission.vhost}
    if isinstance(permission, TopicPermission):
        return {**named, "exchange": permission.exchange, "write": permission.write, "read": permission.read}
    return {**named, "configure": permission.configure, "write": permission.write, "read": permission.read}


def parameter_to_json(parameter: Parameter) -> dict[str, Any]:
    named = {"name": parameter.name, "value": json.loads(parameter.value)}
    return named if parameter.is_global else {**named, "vhost": parameter.vhost, "component": parameter.component}
