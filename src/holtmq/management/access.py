"""Who asks, and what the tags of a user allow: RabbitMQ's rules.

`management` sees the vhosts that it may enter and its own connections; `policymaker` may set policies and parameters there as
well; `monitoring` sees all connections and the node; `administrator` may do everything. A user without a tag may not come here.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address

from holtmq.accounts import User
from holtmq.broker.authorization import Authorization
from holtmq.errors import HoltmqError

GUEST = "guest"
TAGS = ("administrator", "monitoring", "policymaker", "management")


class Need(Enum):
    """What an operation asks of its caller; each comes with the tags that give it."""

    NOTHING = ()
    ANY = TAGS
    MONITORING = ("administrator", "monitoring")
    POLICYMAKER = ("administrator", "policymaker")
    ADMINISTRATOR = ("administrator",)


class UnauthenticatedError(HoltmqError):
    """No user, an unknown one, or a wrong password."""


class UnauthorisedError(HoltmqError):
    """A user that may not do this. RabbitMQ answers 401 to it as well."""


@dataclass(frozen=True, slots=True)
class Caller:
    user: User
    accounts: Authorization

    def has(self, need: Need) -> bool:
        return any(tag in need.value for tag in self.user.tags)

    def require(self, need: Need) -> None:
        if not self.has(need):
            wanted = " or ".join(need.value)
            raise UnauthorisedError(f"user {self.user.name!r} has not the tag for this: expected {wanted}")

    def may_enter(self, vhost: str) -> bool:
        return self.accounts.may_enter(self.user.name, vhost)

    def sees_all_vhosts(self) -> bool:
        return self.has(Need.MONITORING)

    def require_vhost(self, vhost: str) -> None:
        if not self.may_enter(vhost):
            raise UnauthorisedError(f"access to vhost {vhost!r} refused for user {self.user.name!r}")


def authenticate(header: str | None, peer: str | None, accounts: Authorization, *, guest_from_anywhere: bool) -> Caller:
    """The user of a request, from its Authorization header (RFC 7617)."""
    if not header:
        raise UnauthenticatedError("expected a user and a password, got none")
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        raise UnauthenticatedError(f"expected Basic authentication, got {scheme[:20]!r}")
    try:
        name, separator, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise UnauthenticatedError("expected a user and a password in base64 of UTF-8") from error
    user = accounts.users.get(name)
    if not separator or user is None or not user.has_password(password):
        raise UnauthenticatedError("Login failed: the user or the password is not known here")
    if name == GUEST and not guest_from_anywhere and not _is_local(peer):
        raise UnauthenticatedError("Login failed: user 'guest' can only come from this machine")
    return Caller(user, accounts)


def _is_local(peer: str | None) -> bool:
    return peer is None or ip_address(peer.split("%")[0]).is_loopback
