"""Users, permissions and topic permissions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, replace
from typing import Any, TypeAlias

from holtmq.accounts import HASHINGS, Permission, TopicPermission, User
from holtmq.broker.definition_entries import read_permission, read_topic_permission, read_user
from holtmq.broker.definitions_export import permission_to_json, user_to_json
from holtmq.errors import DefinitionsError, NotFoundError
from holtmq.management.access import Need
from holtmq.management.listing import Items
from holtmq.management.operations import NO_CONTENT, Call, Outcome, api, created
from holtmq.table import describe

USER = {
    "type": "object",
    "required": ["tags"],
    "properties": {
        "password": {"type": "string"},
        "password_hash": {"type": "string"},
        "hashing_algorithm": {"enum": list(HASHINGS)},
        "tags": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    },
}
TEXT = {"type": "string"}
PERMISSION = {
    "type": "object",
    "required": ["configure", "write", "read"],
    "properties": {"configure": TEXT, "write": TEXT, "read": TEXT},
}
TOPIC_PERMISSION = {
    "type": "object",
    "required": ["exchange", "write", "read"],
    "properties": {"exchange": TEXT, "write": TEXT, "read": TEXT},
}
BULK = {"type": "object", "required": ["users"], "properties": {"users": {"type": "array", "items": TEXT}}}
ADMIN = Need.ADMINISTRATOR
AnyPermission: TypeAlias = Permission | TopicPermission


@api.collection("/api/users", need=ADMIN)
def users(call: Call) -> Items[User]:
    """List all users with their password hashes."""
    return _users(call.node.broker.authorization.users.values())


def _users(found: Iterable[User]) -> Items[User]:
    return Items(list(found), user_to_json, lambda user: (user.name,), lambda user: user.name)


@api.collection("/api/users/without-permissions", need=ADMIN)
def users_without_permissions(call: Call) -> Items[User]:
    """List the users that cannot access any vhost."""
    accounts = call.node.broker.authorization
    permitted = {user for user, _ in accounts.permissions}
    return _users(user for name, user in accounts.users.items() if name not in permitted)


@api.add("POST", "/api/users/bulk-delete", need=ADMIN, body=BULK)
def delete_users(call: Call) -> Outcome:
    """Delete several users."""
    names = call.mapping().get("users")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DefinitionsError("body.users", f"expected an array of user names, got {describe(names)}")
    call.node.begin_turn()
    for name in names:
        if name in call.node.broker.authorization.users:
            call.node.broker.remove_user(name)
    return NO_CONTENT


@api.get("/api/users/{user}", need=ADMIN)
def user(call: Call) -> dict[str, Any]:
    """Return a user."""
    return user_to_json(_find(call))


@api.add("PUT", "/api/users/{user}", need=ADMIN, body=USER, answers={201: None, 204: None})
async def set_user(call: Call) -> Outcome:
    """Create or update a user. A user without a password can only log in with a certificate."""
    name, fields = call.path["user"], call.fields()
    if not fields.has("tags"):
        raise DefinitionsError("body.tags", "expected the tags of the user, got nothing: use an empty string for none")
    user, password = read_user(fields, name)
    if password is not None:
        known = replace(call.node.broker.authorization.users.get(name, user), tags=user.tags)
        user = await call.node.passwords.compute(lambda: known.with_password(password))
    is_new = name not in call.node.broker.authorization.users
    call.node.begin_turn()
    call.node.broker.set_user(user)
    return created(is_new=is_new)


@api.add("DELETE", "/api/users/{user}", need=ADMIN)
def delete_user(call: Call) -> Outcome:
    """Delete a user."""
    found = _find(call)
    call.node.begin_turn()
    call.node.broker.remove_user(found.name)
    return NO_CONTENT


@api.collection("/api/users/{user}/permissions", need=ADMIN)
def permissions_of_user(call: Call) -> Items[AnyPermission]:
    """List the permissions of a user."""
    name = _find(call).name
    return permission_items(each for each in call.node.broker.authorization.permissions.values() if each.user == name)


def permission_items(found: Iterable[AnyPermission]) -> Items[AnyPermission]:
    """Return permissions or topic permissions as a list of the API."""
    return Items(list(found), permission_to_json, order=astuple)


@api.collection("/api/users/{user}/topic-permissions", need=ADMIN)
def topic_permissions_of_user(call: Call) -> Items[AnyPermission]:
    """List the topic permissions of a user."""
    name = _find(call).name
    return permission_items(each for each in call.node.broker.authorization.topic_permissions.values() if each.user == name)


@api.collection("/api/permissions", need=ADMIN)
def permissions(call: Call) -> Items[AnyPermission]:
    """List the permissions of all users."""
    return permission_items(call.node.broker.authorization.permissions.values())


@api.get("/api/permissions/{vhost}/{user}", need=ADMIN)
def permission(call: Call) -> dict[str, Any]:
    """Return the permissions of a user in a vhost."""
    return permission_to_json(_find_permission(call))


@api.add("PUT", "/api/permissions/{vhost}/{user}", need=ADMIN, body=PERMISSION, answers={201: None, 204: None})
def set_permission(call: Call) -> Outcome:
    """Set the permissions of a user in a vhost: regular expressions for the names that it can configure, write and read."""
    fields, key = call.fields(), (call.path["user"], call.path["vhost"])
    permission = read_permission(fields, *key)
    _require_both(call)
    is_new = key not in call.node.broker.authorization.permissions
    call.node.begin_turn()
    call.node.broker.set_permission(permission)
    return created(is_new=is_new)


@api.add("DELETE", "/api/permissions/{vhost}/{user}", need=ADMIN)
def delete_permission(call: Call) -> Outcome:
    """Clear the permissions of a user in a vhost."""
    found = _find_permission(call)
    call.node.begin_turn()
    call.node.broker.remove_permission(found)
    return NO_CONTENT


@api.collection("/api/topic-permissions", need=ADMIN)
def topic_permissions(call: Call) -> Items[AnyPermission]:
    """List the topic permissions of all users."""
    return permission_items(call.node.broker.authorization.topic_permissions.values())


@api.collection("/api/topic-permissions/{vhost}/{user}", need=ADMIN)
def topic_permissions_in_vhost_of_user(call: Call) -> Items[AnyPermission]:
    """List the topic permissions of a user in a vhost."""
    return permission_items(_find_topic_permissions(call))


@api.add("PUT", "/api/topic-permissions/{vhost}/{user}", need=ADMIN, body=TOPIC_PERMISSION, answers={201: None, 204: None})
def set_topic_permission(call: Call) -> Outcome:
    """Set the topic permissions of a user for an exchange: regular expressions for the routing keys that it can use."""
    permission = read_topic_permission(call.fields(), call.path["user"], call.path["vhost"])
    _require_both(call)
    is_new = (permission.user, permission.vhost, permission.exchange) not in call.node.broker.authorization.topic_permissions
    call.node.begin_turn()
    call.node.broker.set_permission(permission)
    return created(is_new=is_new)


@api.add("DELETE", "/api/topic-permissions/{vhost}/{user}", need=ADMIN)
def delete_topic_permissions(call: Call) -> Outcome:
    """Clear the topic permissions of a user in a vhost."""
    found = _find_topic_permissions(call)
    call.node.begin_turn()
    for each in found:
        call.node.broker.remove_permission(each)
    return NO_CONTENT


@api.add("DELETE", "/api/topic-permissions/{vhost}/{user}/{exchange}", need=ADMIN)
def delete_topic_permission(call: Call) -> Outcome:
    """Clear the topic permissions of a user for an exchange."""
    found = [each for each in _find_topic_permissions(call) if each.exchange == call.path["exchange"]]
    if not found:
        raise NotFoundError(f"no topic permission of user {call.path['user']!r} for exchange {call.path['exchange']!r}")
    call.node.begin_turn()
    call.node.broker.remove_permission(found[0])
    return NO_CONTENT


def _find(call: Call) -> User:
    return call.node.broker.authorization.user(call.path["user"])


def _require_both(call: Call) -> None:
    _find(call)
    call.node.broker.vhost(call.path["vhost"])


def _find_permission(call: Call) -> Permission:
    found = call.node.broker.authorization.permissions.get((call.path["user"], call.path["vhost"]))
    if found is None:
        raise NotFoundError(f"user {call.path['user']!r} has no permissions in vhost {call.path['vhost']!r}")
    return found


def _find_topic_permissions(call: Call) -> list[TopicPermission]:
    _require_both(call)
    every = call.node.broker.authorization.topic_permissions
    return [each for key, each in sorted(every.items()) if key[:2] == (call.path["user"], call.path["vhost"])]
