"""Login: the SASL mechanisms PLAIN, AMQPLAIN and EXTERNAL."""

from __future__ import annotations

from holtmq.accounts import User
from holtmq.broker.authorization import Authorization, may_connect_from
from holtmq.errors import CommandInvalidError, LoginRefusedError, MalformedLoginError
from holtmq.server.passwords import Passwords
from holtmq.wire.tables import decode_table, long_string

EXTERNAL = "EXTERNAL"
"""The mechanism without a password: a client certificate names the user."""


class Login:
    """The mechanisms on offer to one client, and the check of its response."""

    def __init__(
        self,
        authorization: Authorization,
        passwords: Passwords,
        *,
        host: str | None,
        certified_name: str | None,
        guest_from_anywhere: bool,
    ) -> None:
        self._authorization = authorization
        self._passwords = passwords
        self._host = host
        self._certified_name = certified_name
        self._guest_from_anywhere = guest_from_anywhere

    @property
    def mechanisms(self) -> str:
        """The names of the mechanisms, separated by spaces. EXTERNAL requires a trusted client certificate."""
        return "PLAIN AMQPLAIN EXTERNAL" if self._certified_name is not None else "PLAIN AMQPLAIN"

    def recall(self, mechanism: str, response: bytes) -> User | None:
        """Return the user who logs in, if that can be known without a slow check. Raise an error if the user may not."""
        if mechanism == EXTERNAL and self._certified_name is not None:
            return self._admitted(self._certified_user(self._certified_name))
        user = self._passwords.recall(*self._credentials(mechanism, response))
        return None if user is None else self._admitted(user)

    async def log_in(self, mechanism: str, response: bytes) -> User:
        """Return the user who logs in with a password. Raise LoginRefusedError if the user may not."""
        name, password = self._credentials(mechanism, response)
        return self._admitted(await self._passwords.check(name, password, self._host))

    def _credentials(self, mechanism: str, response: bytes) -> tuple[str, str]:
        match mechanism:
            case "PLAIN":
                return _plain(response)
            case "AMQPLAIN":
                return _amqplain(response)
            case _:
                raise CommandInvalidError(f"unknown mechanism {mechanism!r}: expected one of {self.mechanisms}")

    def _certified_user(self, name: str) -> User:
        if name not in self._authorization.users:
            raise LoginRefusedError(f"Login was refused: the certificate names user {name!r}, who does not exist")
        return self._authorization.users[name]

    def _admitted(self, user: User) -> User:
        if not may_connect_from(user.name, self._host, guest_from_anywhere=self._guest_from_anywhere):
            raise LoginRefusedError(f"Login was refused: user {user.name!r} can only connect from this machine")
        return user


def _plain(response: bytes) -> tuple[str, str]:
    """Split a PLAIN response (RFC 4616): an unused identity, the name and the password, separated by zero bytes."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise MalformedLoginError(f"expected a PLAIN response of 3 parts, got {len(parts)}")
    return _text(parts[1]), _text(parts[2])


def _amqplain(response: bytes) -> tuple[str, str]:
    """Decode an AMQPLAIN response: a field table without its length, with LOGIN and PASSWORD."""
    fields, _ = decode_table(long_string(response))
    name, password = fields.get("LOGIN"), fields.get("PASSWORD")
    if not isinstance(name, str) or not isinstance(password, str):
        raise MalformedLoginError("expected an AMQPLAIN response with LOGIN and PASSWORD as strings")
    return name, password


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise MalformedLoginError("expected a name and a password in UTF-8") from error
