"""The users of a broker, and what each may do in a vhost, as regular expressions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal

from holtmq.accounts import Access, Permission, TopicPermission, User
from holtmq.errors import AccessRefusedError, NotFoundError
from holtmq.regular_expression import escape, stored_expression

GUEST = "guest"


class Authorization:
    """All users and their permissions."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], Permission] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermission] = {}

    def user(self, name: str) -> User:
        try:
            return self.users[name]
        except KeyError:
            raise NotFoundError(f"no user {name!r}") from None

    def set_permission(self, permission: Permission | TopicPermission) -> bool:
        """Add or replace a permission; return False if it is there already."""
        known: Permission | TopicPermission | None
        if isinstance(permission, Permission):
            key = permission.user, permission.vhost
            known, self.permissions[key] = self.permissions.get(key), permission
        else:
            topic = permission.user, permission.vhost, permission.exchange
            known, self.topic_permissions[topic] = self.topic_permissions.get(topic), permission
        return permission != known

    def remove_permission(self, permission: Permission | TopicPermission) -> None:
        if isinstance(permission, Permission):
            self.permissions.pop((permission.user, permission.vhost), None)
        else:
            self.topic_permissions.pop((permission.user, permission.vhost, permission.exchange), None)

    def forget_user(self, name: str) -> None:
        """Remove a user and all permissions of that user."""
        del self.users[name]
        self._keep(lambda user, _: user != name)

    def forget_vhost(self, name: str) -> None:
        """Remove all permissions in a vhost."""
        self._keep(lambda _, vhost: vhost != name)

    def _keep(self, is_kept: Callable[[str, str], bool]) -> None:
        self.permissions = {key: value for key, value in self.permissions.items() if is_kept(*key)}
        self.topic_permissions = {key: value for key, value in self.topic_permissions.items() if is_kept(*key[:2])}

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has any permissions in the vhost."""
        return (user, vhost) in self.permissions

    def permits(self, user: str, vhost: str, access: Access, name: str) -> bool:
        """Whether the user has this access to an exchange or queue."""
        permission = self.permissions.get((user, vhost))
        return permission is not None and fits(getattr(permission, access), name or "amq.default")

    def require(self, user: str, vhost: str, access: Access, kind: str, name: str) -> None:
        """Raise AccessRefusedError unless the user has this access to an exchange or queue."""
        if not self.permits(user, vhost, access, name):
            shown = f"{kind} {name!r}" if name else "the default exchange"
            raise AccessRefusedError(f"{access} access to {shown} in vhost {vhost!r} refused for user {user!r}")

    def require_topic(self, user: str, vhost: str, access: Literal["write", "read"], exchange: str, routing_key: str) -> None:
        """Raise AccessRefusedError if a topic permission of the user excludes the routing key."""
        permission = self.topic_permissions.get((user, vhost, exchange))
        if permission is not None and not fits(_expanded(getattr(permission, access), user, vhost), routing_key):
            raise AccessRefusedError(
                f"{access} access to topic {routing_key!r} in exchange {exchange!r} in vhost {vhost!r} "
                f"refused for user {user!r}"
            )


def may_connect_from(user: str, host: str | None, *, guest_from_anywhere: bool) -> bool:
    """Whether a user may connect from a host: `guest` may do so from a loopback address only, unless configured otherwise.

    `host` is None if the peer has no IP address.
    """
    return user != GUEST or guest_from_anywhere or host is None or ip_address(host.split("%")[0]).is_loopback


@lru_cache(maxsize=4096)
def fits(pattern: str, name: str) -> bool:
    """Whether a permission's expression matches a name. As in RabbitMQ, the empty expression matches only the empty name."""
    expression = stored_expression(pattern or "^$", f"a permission with the expression {pattern!r}")
    return expression is not None and expression.matches(name)


def _expanded(pattern: str, user: str, vhost: str) -> str:
    """Replace the variables for the user and the vhost in a topic permission."""
    for variable, value in (("{username}", user), ("{vhost}", vhost)):
        pattern = pattern.replace(variable, escape(value)) if variable in pattern else pattern
    return pattern
