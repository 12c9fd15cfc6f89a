"""Who may do what: the users of a broker and their rights in each vhost, as regular expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Literal

from holtmq.accounts import Permission, Right, TopicPermission, User
from holtmq.errors import AccessRefusedError, LoginRefusedError, NotFoundError


class Authorization:
    """All users and their rights."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.permissions: dict[tuple[str, str], Permission] = {}
        self.topic_permissions: dict[tuple[str, str, str], TopicPermission] = {}

    def authenticate(self, name: str, password: str) -> User:
        user = self.users.get(name)
        if user is None or not user.has_password(password):
            raise LoginRefusedError("Login was refused: the user or the password is not known here")
        return user

    def user(self, name: str) -> User:
        try:
            return self.users[name]
        except KeyError:
            raise NotFoundError(f"no user {name!r}") from None

    def set_permission(self, permission: Permission | TopicPermission) -> None:
        if isinstance(permission, Permission):
            self.permissions[permission.user, permission.vhost] = permission
        else:
            self.topic_permissions[permission.user, permission.vhost, permission.exchange] = permission

    def remove_permission(self, permission: Permission | TopicPermission) -> None:
        if isinstance(permission, Permission):
            self.permissions.pop((permission.user, permission.vhost), None)
        else:
            self.topic_permissions.pop((permission.user, permission.vhost, permission.exchange), None)

    def forget_user(self, name: str) -> None:
        del self.users[name]
        self._keep(lambda user, _: user != name)

    def forget_vhost(self, name: str) -> None:
        self._keep(lambda _, vhost: vhost != name)

    def _keep(self, is_kept: Callable[[str, str], bool]) -> None:
        self.permissions = {key: value for key, value in self.permissions.items() if is_kept(*key)}
        self.topic_permissions = {key: value for key, value in self.topic_permissions.items() if is_kept(*key[:2])}

    def may_enter(self, user: str, vhost: str) -> bool:
        return (user, vhost) in self.permissions

    def require(self, user: str, vhost: str, right: Right, kind: str, name: str) -> None:
        permission = self.permissions.get((user, vhost))
        if permission is None or not fits(getattr(permission, right), name or "amq.default"):
            shown = f"{kind} {name!r}" if name else "the default exchange"
            raise AccessRefusedError(f"{right} access to {shown} in vhost {vhost!r} refused for user {user!r}")

    def require_topic(self, user: str, vhost: str, right: Literal["write", "read"], exchange: str, routing_key: str) -> None:
        permission = self.topic_permissions.get((user, vhost, exchange))
        if permission is not None and not fits(_expanded(getattr(permission, right), user, vhost), routing_key):
            raise AccessRefusedError(
                f"{right} access to topic {routing_key!r} in exchange {exchange!r} in vhost {vhost!r} refused for user {user!r}"
            )


def fits(pattern: str, name: str) -> bool:
    """Whether a permission's expression is found in a name; as in RabbitMQ, the empty one fits the empty name only."""
    return bool(_compiled(pattern).search(name))


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern or "^$")


def _expanded(pattern: str, user: str, vhost: str) -> str:
    """Topic permissions may name the user and the vhost."""
    names: Mapping[str, str] = {"{username}": user, "{vhost}": vhost}
    for variable, value in names.items():
        pattern = pattern.replace(variable, re.escape(value))
    return pattern
