"""A definitions file taken into a running broker: whatever it names is added, nothing is removed, and it can come twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holtmq.broker.broker import Broker
from holtmq.errors import DefinitionsError
from holtmq.topology import DEFAULT_VHOST, Topology
from holtmq.users import DEFAULT_HASHING, HASHES, Permission, TopicPermission, User


def import_definitions(broker: Broker, topology: Topology) -> None:
    """Add vhosts, users, rights, policies, exchanges, queues and bindings. Users and vhosts are checked before all else."""
    sections: dict[str, list[dict[str, Any]]] = {name: json.loads(text) for name, text in topology.sections}
    users = [_user(fields, f"users[{place}]") for place, fields in enumerate(sections.get("users", []))]
    for vhost in topology.vhosts:
        broker.add_vhost(vhost)
    for user in users:
        broker.set_user(user)
    for fields in sections.get("permissions", []):
        broker.set_permission(Permission(fields["user"], _vhost(fields), *_patterns(fields, "configure", "write", "read")))
    for fields in sections.get("topic_permissions", []):
        topic = TopicPermission(fields["user"], _vhost(fields), fields.get("exchange", ""), *_patterns(fields, "write", "read"))
        broker.set_permission(topic)
    for policy in topology.policies:
        broker.set_policy(policy)
    for exchange in topology.exchanges:
        broker.vhost(exchange.vhost).declare_exchange(exchange)
    for queue in topology.queues:
        broker.vhost(queue.vhost).declare_queue(queue, is_named_by_server=queue.name.startswith("amq.gen-"))
    for binding in topology.bindings:
        its_vhost = broker.vhost(binding.vhost)
        if binding.source and its_vhost.router.registry.has_ends(binding):
            its_vhost.bind(binding)


def _user(fields: Mapping[str, Any], path: str) -> User:
    tags = fields.get("tags", ())
    tags = tuple(tag.strip() for tag in tags.split(",") if tag.strip()) if isinstance(tags, str) else tuple(tags)
    if "password" in fields:
        return User.with_password(fields["name"], str(fields["password"]), tags)
    hashing = fields.get("hashing_algorithm", DEFAULT_HASHING)
    if hashing not in HASHES:
        raise DefinitionsError(f"{path}.hashing_algorithm", f"expected one of {', '.join(HASHES)}, got {hashing!r}")
    return User(fields["name"], str(fields.get("password_hash", "")), hashing, tags)


def _vhost(fields: Mapping[str, Any]) -> str:
    return str(fields.get("vhost", DEFAULT_VHOST))


def _patterns(fields: Mapping[str, Any], *names: str) -> tuple[str, ...]:
    return tuple(str(fields.get(name, "")) for name in names)
