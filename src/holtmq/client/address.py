"""Addresses of brokers: host, port, credentials, vhost and TLS settings, parsed from AMQP URIs."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, urlsplit

from holtmq.errors import InvalidValueError

EXAMPLE = "amqp://guest:guest@127.0.0.1:5672/%2F"
PORT, TLS_PORT = 5672, 5671


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings: which brokers to trust, and the certificate of the client."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Return an SSL context with these settings."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker, and the user and vhost to connect with."""

    host: str
    port: int
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    vhost: str = "/"
    tls: Tls | None = None

    @classmethod
    def parse(cls, uri: str) -> Address:
        """Parse an AMQP URI. Missing parts have RabbitMQ's defaults."""
        try:
            parts = urlsplit(uri)
            port = parts.port
        except ValueError as error:
            raise InvalidValueError(f"expected a URI as in {EXAMPLE}, got {without_password(uri)!r}") from error
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise InvalidValueError(f"expected a URI as in {EXAMPLE}, got {without_password(uri)!r}")
        tls = Tls() if parts.scheme == "amqps" else None
        vhost = unquote(parts.path[1:]) if parts.path not in ("", "/") else "/"
        address = cls(parts.hostname, port or (TLS_PORT if tls else PORT), vhost=vhost, tls=tls)
        user, password = parts.username, parts.password
        address = address if user is None else replace(address, user=unquote(user))
        return address if password is None else replace(address, password=unquote(password))

    def __str__(self) -> str:
        return f"amqp{'s' if self.tls else ''}://{self.host}:{self.port}/{self.vhost if self.vhost != '/' else '%2F'}"


def without_password(uri: str) -> str:
    """Return a URI without user and password, for messages and logs."""
    scheme, separator, rest = uri.partition("://")
    return scheme + separator + rest.rpartition("@")[2]
