"""Authentication of a request, and what the tags of its user allow. The rules are RabbitMQ's.

`management` can see its own connections and the vhosts that it has permissions for. `policymaker` can also set policies and
parameters there. `monitoring` can see all connections and the node. `administrator` can do everything. A user without a tag
cannot use the HTTP API.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from enum import Enum

from holtmq.accounts import User
from holtmq.broker.authorization import Authorization, may_connect_from
from holtmq.errors import HoltmqError, LoginRefusedError
from holtmq.management.node import PasswordCheck

TAGS = ("administrator", "monitoring", "policymaker", "management")


class Need(Enum):
    """The permission level that an operation requires. The value lists the tags that grant it."""

    NOTHING = ()
    ANY = TAGS
    MONITORING = ("administrator", "monitoring")
    POLICYMAKER = ("administrator", "policymaker")
    ADMINISTRATOR = ("administrator",)


class UnauthenticatedError(HoltmqError):
    """No credentials, an unknown user, or a wrong password."""


class UnauthorisedError(HoltmqError):
    """The user lacks a tag or permission. The status is 401, as in RabbitMQ."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user of a request."""

    user: User
    accounts: Authorization

    def has(self, need: Need) -> bool:
        """Return whether a tag of the user grants this level."""
        return any(tag in need.value for tag in self.user.tags)

    def require(self, need: Need) -> None:
        """Raise UnauthorisedError unless a tag of the user grants this level."""
        if not self.has(need):
            raise UnauthorisedError(
                f"this operation requires one of the tags {', '.join(need.value)}: "
                f"user {self.user.name!r} has {', '.join(self.user.tags) or 'none'}"
            )

    def may_enter(self, vhost: str) -> bool:
        """Return whether the user has permissions in a vhost, or is an administrator."""
        return self.has(Need.ADMINISTRATOR) or self.accounts.may_enter(self.user.name, vhost)

    def sees_all_vhosts(self) -> bool:
        """Return whether the user sees every vhost, with or without permissions in it."""
        return self.has(Need.MONITORING)

    def require_vhost(self, vhost: str) -> None:
        """Raise UnauthorisedError unless the user may enter a vhost."""
        if not self.may_enter(vhost):
            raise UnauthorisedError(
                f"access to vhost {vhost!r} refused for user {self.user.name!r}: it has no permissions there"
            )


async def authenticate(
    header: str | None, peer: str | None, accounts: Authorization, passwords: PasswordCheck, *, guest_from_anywhere: bool
) -> Caller:
    """Return the user of a request from its Authorization header (RFC 7617)."""
    if not header:
        raise UnauthenticatedError("expected a user name and password, got no Authorization header")
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise UnauthenticatedError(f"expected Basic authentication, got {scheme[:20]!r}")
    try:
        name, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError as error:  # not base64, not UTF-8, or not even ASCII
        raise UnauthenticatedError("expected user:password in UTF-8, encoded as base64") from error
    if not separator:
        raise UnauthenticatedError("expected user:password, got no colon")
    try:
        user = await passwords.check(name, password, peer)
    except LoginRefusedError as error:
        raise UnauthenticatedError(f"Login failed: {str(error).removeprefix('Login was refused: ')}") from error
    if not may_connect_from(name, peer, guest_from_anywhere=guest_from_anywhere):
        raise UnauthenticatedError("Login failed: user 'guest' can only log in from this machine")
    return Caller(user, accounts)
