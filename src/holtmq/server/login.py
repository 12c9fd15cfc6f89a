"""Login: the SASL mechanisms PLAIN, AMQPLAIN and EXTERNAL."""

from __future__ import annotations

from holtmq.accounts import User
from holtmq.broker.authorization import Authorization, may_connect_from
from holtmq.errors import CommandInvalidError, LoginRefusedError, MalformedLoginError
from holtmq.wire.tables import decode_table, long_string


class Login:
    """The mechanisms on offer to one client, and the check of its response."""

    def __init__(
        self, authorization: Authorization, *, host: str | None, certified_name: str | None, guest_from_anywhere: bool
    ) -> None:
        self._authorization = authorization
        self._host = host
        self._certified_name = certified_name
        self._guest_from_anywhere = guest_from_anywhere

    @property
    def mechanisms(self) -> str:
        """The names of the mechanisms, separated by spaces. EXTERNAL requires a trusted client certificate."""
        return "PLAIN AMQPLAIN EXTERNAL" if self._certified_name is not None else "PLAIN AMQPLAIN"

    def log_in(self, mechanism: str, response: bytes) -> User:
        """Return the user who logs in. Raise LoginRefusedError if the user may not."""
        user = self._authenticate(mechanism, response)
        if not may_connect_from(user.name, self._host, guest_from_anywhere=self._guest_from_anywhere):
            raise LoginRefusedError(f"Login was refused: user {user.name!r} can only connect from this machine")
        return user

    def _authenticate(self, mechanism: str, response: bytes) -> User:
        match mechanism:
            case "PLAIN":
                return self._authorization.authenticate(*_plain(response))
            case "AMQPLAIN":
                return self._authorization.authenticate(*_amqplain(response))
            case "EXTERNAL" if (name := self._certified_name) is not None:
                if name not in self._authorization.users:
                    raise LoginRefusedError(f"Login was refused: the certificate names user {name!r}, who does not exist")
                return self._authorization.users[name]
            case _:
                raise CommandInvalidError(f"unknown mechanism {mechanism!r}: expected one of {self.mechanisms}")


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
