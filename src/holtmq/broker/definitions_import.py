"""Import of a definitions file into a running broker.

An import adds and never removes, and can be repeated. A file that contradicts the broker is refused before anything changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any, TypeAlias

from holtmq.accounts import Permission, TopicPermission, User
from holtmq.broker.broker import Broker
from holtmq.broker.definition_entries import (
    hash_passwords,
    read_parameter,
    read_permission,
    read_topic_permission,
    read_user,
    read_vhost_metadata,
    require_name,
    require_policy,
)
from holtmq.broker.memory import memory_of
from holtmq.broker.served_queue import ServedQueue
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, HoltmqError, InvalidValueError
from holtmq.queueing.stream_rules import rules_of
from holtmq.routing.router import require_supported
from holtmq.steps import Steps
from holtmq.store.null_journal import NullJournal
from holtmq.topology import DEFAULT_VHOST, Binding, Exchange, Parameter, Policy, Topology
from holtmq.topology.definitions_file import Fields
from holtmq.topology.registry import PREDECLARED, refuse_default_exchange, refuse_reserved_name

SERVER_NAMED = "amq.gen-"
Sections: TypeAlias = Mapping[str, list[Any]]
"""The sections of a definitions file about accounts and parameters, by name."""


def import_definitions(broker: Broker, topology: Topology) -> Steps[None]:
    """Add vhosts, users, permissions, parameters, policies, exchanges, queues and bindings.

    The import is rehearsed on a copy of what the file names, so that an invalid file changes nothing. Only somebody who
    changes the same objects between two steps can make it fail later. Plain passwords are hashed, which is slow: where that
    matters, call `hash_passwords` before.
    """
    topology = hash_passwords(topology, broker.authorization.users)
    yield from _refuse_contradictions(broker, topology)
    yield from _rehearse(broker, topology)
    try:
        yield from _import(broker, topology, VirtualHost.bind)
    except HoltmqError as error:
        raise DefinitionsError(
            "document", f"the broker was changed during the import, of which a part is applied: {error}; import it again"
        ) from error


def _rehearse(broker: Broker, topology: Topology) -> Steps[None]:
    copy = yield from _copy_of(broker, topology)

    def require_bindable(vhost: VirtualHost, binding: Binding) -> None:
        vhost.router.require_valid(binding)
        original = broker.vhosts.get(vhost.name)
        if original is None or not original.router.registry.has_binding(binding):
            copy.memory.require_room_for_topology()
            copy.memory.topology += memory_of((), (), (binding,))

    try:
        yield from _import(copy, topology, require_bindable)
    except DefinitionsError:
        raise
    except HoltmqError as error:
        raise DefinitionsError("document", str(error)) from error
    for vhost in copy.vhosts.values():  # they refer to each other, and would wait for a long garbage collection
        while vhost.queues:
            vhost.queues.popitem()
            yield
    copy.vhosts.clear()


def _copy_of(broker: Broker, topology: Topology) -> Steps[Broker]:
    """Return a broker that stores nothing, with its accounts and vhosts, and the exchanges and queues that the file names."""
    exchanges: dict[tuple[str, str], Exchange] = {}
    queues: dict[tuple[str, str], ServedQueue] = {}
    ends = ((each.vhost, name) for each in topology.bindings for name in (each.source, each.destination))
    for vhost_name, name in chain(
        ((each.vhost, each.name) for each in topology.exchanges), ((each.vhost, each.name) for each in topology.queues), ends
    ):
        yield
        vhost = broker.vhosts.get(vhost_name)
        if vhost is None:
            continue
        if name in vhost.router.registry.exchanges and name not in PREDECLARED:
            exchanges[vhost_name, name] = vhost.router.registry.exchanges[name]
        if name in vhost.queues:
            queues[vhost_name, name] = vhost.queues[name]
    copy = Broker(NullJournal(), strict_unbind=broker.strict_unbind, memory_limit=broker.memory.limit)
    copy.leaving = broker.leaving
    copy.authorization.users.update(broker.authorization.users)
    for vhost in list(broker.vhosts.values()):
        declared = Topology(tuple(exchanges.values()), (), (), vhost.router.registry.policies)
        copy.vhosts[vhost.name] = VirtualHost(vhost.name, copy, declared)
    for (vhost_name, _), queue in queues.items():
        copy.vhosts[vhost_name].router.adopt_queue(queue.declared)
        copy.vhosts[vhost_name].open_queue(queue.declared, queue.id, queue.rules)
        yield
    copy.memory.topology = broker.memory.topology
    return copy


def _import(broker: Broker, topology: Topology, bind: Callable[[VirtualHost, Binding], None]) -> Steps[None]:
    sections: Sections = {name: json.loads(text) for name, text in topology.sections}
    users = _users(sections)
    permissions = _permissions(sections, {user.name for user in users} | set(broker.authorization.users))
    parameters = _parameters(sections)
    metadata = _vhosts(sections)
    _add_accounts(broker, topology, metadata, users, permissions, parameters)
    yield from _set_policies(broker, topology.policies)
    for exchange in topology.exchanges:
        broker.vhost(exchange.vhost).declare_exchange(exchange)
        yield
    for queue in topology.queues:
        broker.vhost(queue.vhost).declare_queue(queue, is_named_by_server=queue.name.startswith(SERVER_NAMED))
        yield
    for binding in topology.bindings:
        its_vhost = broker.vhost(binding.vhost)
        if binding.source and its_vhost.router.registry.has_ends(binding):
            bind(its_vhost, binding)
        yield


def _set_policies(broker: Broker, policies: Iterable[Policy]) -> Steps[None]:
    """Set all policies, then apply the sum of them to the queues of each vhost once."""
    changed: dict[str, Steps[None]] = {}
    for place, policy in enumerate(policies):
        require_policy(policy, f"policies[{place}]")
        changed[policy.vhost] = broker.set_policy(policy)
        yield
    for steps in changed.values():
        yield from steps


def _add_accounts(
    broker: Broker,
    topology: Topology,
    metadata: Mapping[str, Mapping[str, Any]],
    users: Iterable[User],
    permissions: Collection[Permission | TopicPermission],
    parameters: Iterable[Parameter],
) -> None:
    for vhost in dict.fromkeys((*topology.vhosts, *(permission.vhost for permission in permissions))):
        broker.add_vhost(vhost, metadata.get(vhost))
    for user in users:
        broker.set_user(user)
    for permission in permissions:
        broker.set_permission(permission)
    for parameter in parameters:
        if not parameter.is_global:
            broker.add_vhost(parameter.vhost)
        broker.set_parameter(parameter)


def _users(sections: Sections) -> list[User]:
    return [read_user(fields, fields.text("name"))[0] for fields in _entries(sections, "users")]


def _permissions(sections: Sections, users: set[str]) -> list[Permission | TopicPermission]:
    found: list[Permission | TopicPermission] = []
    for section, read in (("permissions", read_permission), ("topic_permissions", read_topic_permission)):
        for fields in _entries(sections, section):
            user, vhost = fields.text("user"), fields.text("vhost", DEFAULT_VHOST)
            if user not in users:
                raise DefinitionsError(f"{fields.path}.user", f"expected a user of this file or broker, got {user!r}")
            require_name(vhost, f"{fields.path}.vhost", "a vhost's name")
            found.append(read(fields, user, vhost))
    return found


def _parameters(sections: Sections) -> list[Parameter]:
    found = []
    for fields in _entries(sections, "parameters"):
        component, vhost = fields.text("component"), fields.text("vhost", DEFAULT_VHOST)
        require_name(component, f"{fields.path}.component", "a component's name")
        require_name(vhost, f"{fields.path}.vhost", "a vhost's name")
        found.append(read_parameter(fields, component, fields.text("name"), vhost))
    found += [read_parameter(fields, "", fields.text("name"), "") for fields in _entries(sections, "global_parameters")]
    return found


def _vhosts(sections: Sections) -> dict[str, dict[str, Any]]:
    found = [(fields.text("name"), fields) for fields in _entries(sections, "vhosts")]
    return {name: read_vhost_metadata(fields, name) for name, fields in found}


def _entries(sections: Sections, section: str) -> list[Fields]:
    return [Fields(entry, f"{section}[{place}]") for place, entry in enumerate(sections.get(section, []))]


def _refuse_contradictions(broker: Broker, topology: Topology) -> Steps[None]:
    """Raise if a part of the file is not equivalent to what exists. Redeclaring an equivalent part changes nothing."""
    for kind, parts in (("exchanges", topology.exchanges), ("queues", topology.queues)):
        for place, part in enumerate(parts):
            yield
            try:
                _refuse_contradiction(broker, kind, part)
            except HoltmqError as error:
                raise DefinitionsError(f"{kind}[{place}]", str(error)) from error


def _refuse_contradiction(broker: Broker, kind: str, part: Any) -> None:
    vhost = broker.vhosts.get(part.vhost)
    if kind == "exchanges":
        if vhost is not None and part.name in vhost.router.registry.exchanges:
            vhost.router.declare_exchange(part)
        elif part.name not in PREDECLARED:
            refuse_default_exchange(part.name)
            refuse_reserved_name(part.name, "exchange")
            require_supported(part)
    elif vhost is not None and part.name in vhost.queues:
        vhost.router.declare_queue(part)
    else:
        if not part.name:
            raise InvalidValueError("expected a queue name, got an empty one")
        if not part.name.startswith(SERVER_NAMED):
            refuse_reserved_name(part.name, "queue")
        rules_of(part)
