"""Users, permissions, vhosts, policies and parameters in JSON: the entries of definitions files and the bodies of requests.

An import and the HTTP API read and check them here, so both refuse the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holtmq.accounts import HASHINGS, RABBITMQ_HASHING, SCRYPT, Permission, TopicPermission, User, is_password_hash
from holtmq.errors import DefinitionsError, InvalidValueError
from holtmq.queueing.argument_values import POLICY_NUMBERS
from holtmq.queueing.rules import OVERFLOWS
from holtmq.queueing.stream_rules import parse_age
from holtmq.table import Table, describe, require_short_string
from holtmq.topology import Parameter, Policy, Topology
from holtmq.topology.definitions_file import POLICY_TARGETS, Fields, require_expression

POLICY_TEXTS = ("dead-letter-exchange", "dead-letter-routing-key", "overflow", "alternate-exchange", "max-age")
WITHOUT_EFFECT = (
    "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
    "queue-mode", "queue-version", "queue-master-locator", "queue-leader-locator", "consumer-timeout",
    "federation-upstream", "federation-upstream-set", "federation-upstream-pattern", "dead-letter-strategy",
    "max-in-memory-length", "max-in-memory-bytes", "stream-filter-size-bytes",
    "initial-cluster-size", "target-group-size",
)  # fmt: skip
"""RabbitMQ's settings for clusters and plugins, and for the files of streams. They are accepted and stored, without effect."""


def read_user(fields: Fields, name: str) -> tuple[User, str | None]:
    """Return a user, and the plain password that it is to get: the caller hashes it, which takes a while.

    A user with neither a password nor a hash, or with an empty one, can only log in with a certificate.
    """
    require_name(name, fields.path, "a user's name")
    tags = read_tags(fields.value("tags", ()), f"{fields.path}.tags")
    password, text = fields.text("password", ""), fields.text("password_hash", "")
    if password and text:
        raise DefinitionsError(f"{fields.path}.password", "expected either a password or a password_hash, got both")
    hashing = fields.text("hashing_algorithm", RABBITMQ_HASHING if text else SCRYPT)
    if hashing not in HASHINGS:
        raise DefinitionsError(f"{fields.path}.hashing_algorithm", f"expected one of {', '.join(HASHINGS)}, got {hashing!r}")
    if not is_password_hash(text, hashing):
        raise DefinitionsError(f"{fields.path}.password_hash", f"expected a salt and a digest of {hashing}, in base64")
    return User(name, text, hashing, tags), password or None


def hash_passwords(topology: Topology, users: Mapping[str, User]) -> Topology:
    """Return the topology with hashes in place of plain passwords. Slow: call it off the event loop.

    A user that has the password already, among `users`, keeps its hash.
    """
    sections = dict(topology.sections)
    entries: list[dict[str, Any]] = json.loads(sections.get("users", "[]"))
    if not any("password" in entry for entry in entries):
        return topology
    for place, entry in enumerate(entries):
        fields = Fields(entry, f"users[{place}]")
        user, password = read_user(fields, fields.text("name"))
        if password is not None:
            known = users.get(user.name, user)
            user = replace(known, tags=user.tags).with_password(password)
        entry.pop("password", None)
        entry.update(password_hash=user.password_hash, hashing_algorithm=user.hashing)
    return replace(topology, sections=tuple({**sections, "users": json.dumps(entries)}.items()))


def read_tags(tags: object, path: str) -> tuple[str, ...]:
    """Return the tags of a user or vhost: an array or, in older files, a comma-separated string."""
    if isinstance(tags, str):
        return tuple(tag.strip() for tag in tags.split(",") if tag.strip())
    if isinstance(tags, list | tuple) and all(isinstance(tag, str) and "," not in tag for tag in tags):
        return tuple(tags)
    raise DefinitionsError(path, f"expected an array of strings, or a comma-separated string, got {describe(tags)}")


def read_permission(fields: Fields, user: str, vhost: str) -> Permission:
    """Return the permissions of a user in a vhost."""
    return Permission(user, vhost, *(_expression(fields, name) for name in ("configure", "write", "read")))


def read_topic_permission(fields: Fields, user: str, vhost: str) -> TopicPermission:
    """Return the permissions of a user for the routing keys of an exchange."""
    exchange = fields.text("exchange")
    return TopicPermission(user, vhost, exchange, *(_expression(fields, name) for name in ("write", "read")))


def _expression(fields: Fields, name: str) -> str:
    return require_expression(fields.text(name), f"{fields.path}.{name}")


def read_vhost_metadata(fields: Fields, name: str) -> dict[str, Any]:
    """Return the description, tags and the like of a vhost: only those that the entry has."""
    require_name(name, fields.path, "a vhost's name")
    fields.flag("tracing", default=False)
    metadata: dict[str, Any] = {}
    for key in ("description", "default_queue_type"):
        if fields.value(key) is not None:
            metadata[key] = fields.text(key)
    if fields.has("tags"):
        metadata["tags"] = list(read_tags(fields.value("tags"), f"{fields.path}.tags"))
    more = fields.value("metadata")
    if isinstance(more, dict):
        metadata["metadata"] = more
    elif more is not None:
        raise DefinitionsError(f"{fields.path}.metadata", f"expected an object, got {describe(more)}")
    return metadata


def read_parameter(fields: Fields, component: str, name: str, vhost: str) -> Parameter:
    """Return a parameter; a global one has neither a component nor a vhost."""
    require_name(name, fields.path, "a parameter's name")
    require_short_string(component, "a component's name")
    if not fields.has("value"):
        raise DefinitionsError(f"{fields.path}.value", "expected the value of the parameter, got nothing")
    return Parameter.of(component, name, fields.value("value"), vhost)


def require_policy(policy: Policy, path: str) -> None:
    """Raise DefinitionsError if a policy is not valid."""
    require_name(policy.name, path, "a policy's name")
    require_expression(policy.pattern, f"{path}.pattern")
    if policy.apply_to not in POLICY_TARGETS:
        raise DefinitionsError(f"{path}.apply-to", f"expected one of {', '.join(POLICY_TARGETS)}, got {policy.apply_to!r}")
    if abs(policy.priority) >= 2**31:
        raise DefinitionsError(f"{path}.priority", f"expected an integer of 32 bits, got {policy.priority}")
    _require_definition(Table.of(policy.definition), f"{path}.definition")


def _require_definition(definition: Table, path: str) -> None:
    if not definition:
        raise DefinitionsError(path, "expected at least one setting, got none")
    for name, value in definition.items():
        if name in POLICY_NUMBERS:
            least, most = POLICY_NUMBERS[name]
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
                raise DefinitionsError(f"{path}.{name}", f"expected a number from {least} to {most}, got {describe(value)}")
        elif name in POLICY_TEXTS:
            if not isinstance(value, str):
                raise DefinitionsError(f"{path}.{name}", f"expected a string, got {describe(value)}")
            if name == "overflow" and value not in OVERFLOWS:
                raise DefinitionsError(f"{path}.{name}", f"expected one of {', '.join(OVERFLOWS)}, got {value!r}")
            if name == "max-age":
                _require_age(value, f"{path}.{name}")
        elif name not in WITHOUT_EFFECT:
            known = ", ".join((*POLICY_NUMBERS, *POLICY_TEXTS))
            raise DefinitionsError(f"{path}.{name}", f"expected one of {known}, got {name!r}")


def _require_age(value: str, path: str) -> None:
    try:
        parse_age(value, "max-age")
    except InvalidValueError as error:
        raise DefinitionsError(path, str(error)) from error


def require_name(name: str, path: str, what: str) -> None:
    """Raise DefinitionsError if a name is empty or too long."""
    try:
        require_short_string(name, what)
    except InvalidValueError as error:
        raise DefinitionsError(path, str(error)) from error
    if not name:
        raise DefinitionsError(path, f"expected {what}, got an empty one")
