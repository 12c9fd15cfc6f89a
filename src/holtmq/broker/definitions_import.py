"""Import of a definitions file into a running broker.

An import adds and never removes, and can be repeated. A file that contradicts the broker is refused before anything changes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from holtmq.accounts import DEFAULT_HASHING, HASHES, SALT_BYTES, Permission, TopicPermission, User
from holtmq.broker.broker import Broker
from holtmq.broker.vhost import VirtualHost
from holtmq.errors import DefinitionsError, HoltmqError, InvalidValueError
from holtmq.queueing.rules import QueueRules
from holtmq.routing.router import require_exchange_type
from holtmq.store.null_journal import NullJournal
from holtmq.table import describe
from holtmq.topology import DEFAULT_VHOST, Parameter, Topology
from holtmq.topology.definitions_file import require_expression
from holtmq.topology.registry import PREDECLARED, refuse_default_exchange, refuse_reserved_name

SERVER_NAMED = "amq.gen-"
RABBITMQS_HASHING = "rabbit_password_hashing_sha256"


def import_definitions(broker: Broker, topology: Topology) -> None:
    """Add vhosts, users, permissions, parameters, policies, exchanges, queues and bindings.

    The import is rehearsed on a copy of the broker, so that an invalid file changes nothing.
    """
    _refuse_contradictions(broker, topology)
    try:
        _import(_copy_of(broker), topology)
    except DefinitionsError:
        raise
    except HoltmqError as error:
        raise DefinitionsError("document", str(error)) from error
    _import(broker, topology)


def _copy_of(broker: Broker) -> Broker:
    """Return a broker with the same topology and accounts that stores nothing."""
    copy = Broker(NullJournal(), strict_unbind=broker.strict_unbind)
    for vhost in broker.vhosts.values():
        same = copy.vhosts[vhost.name] = VirtualHost(vhost.name, copy, vhost.router.to_topology())
        for queue in vhost.queues.values():
            same.open_queue(queue.declared, queue.id, queue.rules)
    copy.authorization.users.update(broker.authorization.users)
    return copy


def _import(broker: Broker, topology: Topology) -> None:
    sections: dict[str, list[dict[str, Any]]] = {name: json.loads(text) for name, text in topology.sections}
    users = [_user(fields, f"users[{place}]") for place, fields in enumerate(sections.get("users", []))]
    permissions = _permissions(sections, {user.name for user in users} | set(broker.authorization.users))
    parameters = _parameters(sections)
    metadata = {entry["name"]: _metadata(entry) for entry in sections.get("vhosts", [])}
    _add_accounts(broker, topology, metadata, users, permissions, parameters)
    for policy in topology.policies:
        broker.set_policy(policy)
    for exchange in topology.exchanges:
        broker.vhost(exchange.vhost).declare_exchange(exchange)
    for queue in topology.queues:
        broker.vhost(queue.vhost).declare_queue(queue, is_named_by_server=queue.name.startswith(SERVER_NAMED))
    for binding in topology.bindings:
        its_vhost = broker.vhost(binding.vhost)
        if binding.source and its_vhost.router.registry.has_ends(binding):
            its_vhost.bind(binding)


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


def tags_of(tags: object, path: str) -> tuple[str, ...]:
    """Return the tags of a user: an array or, in older files, a comma-separated string."""
    if isinstance(tags, str):
        return tuple(tag.strip() for tag in tags.split(",") if tag.strip())
    if isinstance(tags, list | tuple) and all(isinstance(tag, str) and "," not in tag for tag in tags):
        return tuple(tags)
    raise DefinitionsError(path, f"expected an array of strings, or a comma-separated string, got {tags!r:.60}")


def _user(fields: Mapping[str, Any], path: str) -> User:
    tags = tags_of(fields.get("tags", ()), f"{path}.tags")
    if "password" in fields:
        return User.with_password(fields["name"], str(fields["password"]), tags)
    return User(fields["name"], *password_hash(fields, path), tags)


def password_hash(fields: Mapping[str, Any], path: str) -> tuple[str, str]:
    """Return the hash of a password and its algorithm, which is RabbitMQ's SHA-256 if none is named."""
    text = fields.get("password_hash", "")
    if not isinstance(text, str):
        raise DefinitionsError(f"{path}.password_hash", f"expected a string, got {describe(text)}")
    hashing = fields.get("hashing_algorithm", RABBITMQS_HASHING if text else DEFAULT_HASHING)
    if not isinstance(hashing, str) or hashing not in HASHES:
        raise DefinitionsError(f"{path}.hashing_algorithm", f"expected one of {', '.join(HASHES)}, got {hashing!r}")
    try:
        is_hash = not text or len(base64.b64decode(text, validate=True)) > SALT_BYTES
    except (TypeError, ValueError):
        is_hash = False
    if not is_hash:
        raise DefinitionsError(f"{path}.password_hash", "expected a salt of 4 bytes and a digest, in base64")
    return text, hashing


def _permissions(sections: Mapping[str, list[dict[str, Any]]], users: set[str]) -> list[Permission | TopicPermission]:
    found: list[Permission | TopicPermission] = []
    for section, rights in (("permissions", ("configure", "write", "read")), ("topic_permissions", ("write", "read"))):
        for place, fields in enumerate(sections.get(section, [])):
            path = f"{section}[{place}]"
            if fields["user"] not in users:
                raise DefinitionsError(f"{path}.user", f"expected a user of this file or broker, got {fields['user']!r}")
            vhost = str(fields.get("vhost", DEFAULT_VHOST))
            patterns = [require_expression(str(fields.get(right, "")), f"{path}.{right}") for right in rights]
            if section == "permissions":
                found.append(Permission(fields["user"], vhost, *patterns))
            else:
                found.append(TopicPermission(fields["user"], vhost, str(fields.get("exchange", "")), *patterns))
    return found


def _parameters(sections: Mapping[str, list[dict[str, Any]]]) -> list[Parameter]:
    found = []
    for section in ("parameters", "global_parameters"):
        for place, fields in enumerate(sections.get(section, [])):
            if not isinstance(fields, dict) or "name" not in fields:
                raise DefinitionsError(f"{section}[{place}]", "expected an object with a name and a value")
            value = json.dumps(fields.get("value"))
            if section == "global_parameters":
                found.append(Parameter("", str(fields["name"]), value))
            else:
                vhost = str(fields.get("vhost", DEFAULT_VHOST))
                found.append(Parameter(str(fields.get("component", "unknown")), str(fields["name"]), value, vhost))
    return found


def _metadata(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name in ("description", "tags", "default_queue_type", "metadata")}


def _refuse_contradictions(broker: Broker, topology: Topology) -> None:
    """Raise if a part of the file is not equivalent to what exists. Redeclaring an equivalent part changes nothing."""
    for kind, parts in (("exchanges", topology.exchanges), ("queues", topology.queues)):
        for place, part in enumerate(parts):
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
            require_exchange_type(part.type)
    elif vhost is not None and part.name in vhost.queues:
        vhost.router.declare_queue(part)
    else:
        if not part.name:
            raise InvalidValueError("expected a queue name, got an empty one")
        if not part.name.startswith(SERVER_NAMED):
            refuse_reserved_name(part.name, "queue")
        QueueRules.of(part)
