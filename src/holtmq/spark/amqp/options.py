"""The options of `format("amqp")`: read and checked, on the driver before anything runs.

Spark shows no options of a Python data source in plans, events or logs (tests/spark/test_credentials.py holds it to that),
but notebooks and scripts show what is written in them: `passwordEnv` and `passwordFile` are for those.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holtmq.client.address import Address, Tls
from holtmq.client.blocking_connection import BlockingConnection
from holtmq.errors import InvalidValueError

CONNECTION = frozenset({"url", "user", "password", "passwordfile", "passwordenv", "cafile", "certfile", "keyfile", "verify"})
READING = frozenset({"queue", "mode", "limit", "partitions", "idletimeout"})
STREAMING = frozenset({"queue", "receivers", "prefetch", "maxmessagespertrigger", "ack", "spool", "segmentrows"})
WRITING = frozenset({"exchange", "mandatory", "onreturn", "persistent", "window", "retries", "rate", "mark"})
SPARKS_OWN = frozenset({"path", "checkpointlocation", "paths"})


class Options:
    """What a user said, by name in any case; a name that nobody knows is an error."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        unknown = sorted(self._given.keys() - known - CONNECTION - SPARKS_OWN)
        if unknown:
            raise InvalidValueError(
                f"no option is called {unknown[0]!r}: expected one of {', '.join(sorted(known | CONNECTION))}"
            )

    def text(self, name: str, default: str | None = None) -> str:
        value = self._given.get(name.lower(), default)
        if value is None:
            raise InvalidValueError(f"expected the option {name!r}, got none")
        return value

    def one_of(self, name: str, *choices: str) -> str:
        value = self.text(name, choices[0])
        if value not in choices:
            raise InvalidValueError(f"option {name!r} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int | None = None) -> int:
        try:
            value = int(self.text(name, str(default)))
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            bounds = f"from {least}" + (f" to {most}" if most is not None else "")
            raise InvalidValueError(f"option {name!r} must be a whole number {bounds}, got {self.text(name)!r}")
        return value

    def is_on(self, name: str, *, default: bool) -> bool:
        value = self.text(name, str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidValueError(f"option {name!r} must be true or false, got {value!r}")
        return value == "true"

    def optional(self, name: str) -> str | None:
        return self._given.get(name.lower())

    def broker(self) -> Broker:
        address = Address.parse(self.text("url"))
        if address.tls is not None:
            files = (self.optional("caFile"), self.optional("certFile"), self.optional("keyFile"))
            address = replace(address, tls=Tls(*files, verify=self.is_on("verify", default=True)))
        address = replace(address, user=self.text("user", address.user), password=self.text("password", address.password))
        return Broker(address, self.optional("passwordEnv"), self.optional("passwordFile"))


@dataclass(frozen=True, slots=True)
class Broker:
    """Where a broker is, and where the password is to be found; it is looked up where the connection is made."""

    address: Address
    password_env: str | None = None
    password_file: str | None = None

    def connect(self, name: str) -> BlockingConnection:
        return BlockingConnection(replace(self.address, password=self._password()), name=name)

    def _password(self) -> str:
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_text().rstrip("\n")
            except OSError as error:
                raise InvalidValueError(f"passwordFile {self.password_file!r} can't be read: {error.strerror}") from error
        if self.password_env is not None:
            if self.password_env not in os.environ:
                raise InvalidValueError(
                    f"passwordEnv names {self.password_env!r}, which is not set where the connection is made"
                )
            return os.environ[self.password_env]
        return self.address.password
