"""Export of a running broker's definitions, in RabbitMQ's format."""

from __future__ import annotations

import json
from typing import Any

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.broker.broker import Broker
from holtmq.topology import Parameter, Topology
from holtmq.topology.registry import PREDECLARED


def export_definitions(broker: Broker, vhost: str | None = None) -> dict[str, Any]:
    """Return the durable definitions of all vhosts or, in RabbitMQ's format for a single vhost, of one."""
    chosen = [broker.vhosts[name] for name in ([vhost] if vhost is not None else sorted(broker.vhosts))]
    registries = [each.router.registry for each in chosen]
    accounts = broker.authorization
    sections = {
        "users": [user_to_json(user) for user in accounts.users.values()],
        "vhosts": [{"name": each.name, **each.metadata} for each in chosen],
        "permissions": [permission_to_json(permission) for permission in accounts.permissions.values()],
        "topic_permissions": [permission_to_json(permission) for permission in accounts.topic_permissions.values()],
        "parameters": [parameter_to_json(each) for each in broker.parameters.values() if not each.is_global],
        "global_parameters": [parameter_to_json(each) for each in broker.parameters.values() if each.is_global],
    }
    exchanges = {
        (part.vhost, part.name): part
        for registry in registries
        for part in registry.exchanges.values()
        if part.durable and part.name not in PREDECLARED
    }
    queues = {
        (part.vhost, part.name): part
        for registry in registries
        for part in registry.queues.values()
        if part.durable and not part.exclusive
    }
    lasting = {**exchanges, **{(registry.vhost, name): None for registry in registries for name in PREDECLARED}}
    bindings = tuple(
        binding
        for registry in registries
        for binding in registry.bindings()
        if (binding.vhost, binding.source) in lasting
        and (binding.vhost, binding.destination) in (queues if binding.is_to_queue else lasting)
    )
    topology = Topology(
        tuple(exchanges.values()),
        tuple(queues.values()),
        bindings,
        tuple(policy for registry in registries for policy in registry.policies),
        tuple((name, json.dumps(entries)) for name, entries in sections.items()),
    )
    return topology.to_definitions(vhost=vhost)


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
