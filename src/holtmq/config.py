"""The settings of a broker. The command line overrides the configuration file, which overrides the defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any, get_args, get_type_hints

from holtmq.database_url import DatabaseUrl, is_url
from holtmq.errors import InvalidValueError
from holtmq.table import describe

DEFAULT_HTTP_PORT = 15672


@dataclass(frozen=True, slots=True)
class Config:
    """The settings of `holtmq serve`. Each one is a key of the same name in the TOML configuration file."""

    data: str = field(
        default="holtmq.db",
        metadata={
            "help": "HoltMQ file with the topology and the messages, or the URL of a PostgreSQL database; created if missing."
        },
    )
    standby: bool = field(
        default=False,
        metadata={"help": "With a PostgreSQL database: wait while another broker owns it, and take over when that is gone."},
    )
    host: str = field(
        default="127.0.0.1", metadata={"help": "Address to listen on for AMQP; 0.0.0.0 listens on all interfaces."}
    )
    amqp_port: int = field(default=5672, metadata={"help": "AMQP port; 0 selects a free one."})
    http_port: int = field(
        default=DEFAULT_HTTP_PORT, metadata={"help": "Port of the HTTP API and web UI; 0 selects a free one, -1 disables them."}
    )
    http_host: str = field(default="127.0.0.1", metadata={"help": "Address to listen on for HTTP."})
    https_port: int = field(
        default=-1, metadata={"help": "Port of the HTTP API and web UI over TLS; 0 selects a free one, -1 disables it."}
    )
    trusted_proxies: str | None = field(
        default=None,
        metadata={
            "help": "Addresses and networks of reverse proxies, separated by commas. Only their `X-Forwarded-For` and "
            "`X-Forwarded-Proto` headers are used."
        },
    )
    metrics_login: bool = field(
        default=False, metadata={"help": "Require a user with the tag monitoring or administrator for `/metrics`."}
    )
    stats_interval_s: float = field(default=5.0, metadata={"help": "Interval at which message rates are measured, in seconds."})
    reports: str | None = field(default=None, metadata={"help": "Directory with pipeline reports to show in the web UI."})
    definitions: str | None = field(default=None, metadata={"help": "Definitions file to import at every startup."})
    durability: str = field(
        default="full",
        metadata={"help": "What a confirmed message survives: a power failure (full), or a killed process (normal, off)."},
    )
    tls_port: int | None = field(default=None, metadata={"help": "Port for AMQP over TLS; 0 selects a free one."})
    tls_certificate: str | None = field(default=None, metadata={"help": "PEM file with the server certificate and its chain."})
    tls_key: str | None = field(default=None, metadata={"help": "PEM file with the private key of the server."})
    tls_client_ca: str | None = field(
        default=None,
        metadata={"help": "PEM file with the certificate authorities that client certificates are verified against."},
    )
    max_connections: int = field(
        default=10_000,
        metadata={"help": "Maximum number of AMQP connections; the limit for open files (`ulimit -n`) may allow fewer."},
    )
    max_http_connections: int = field(
        default=500,
        metadata={"help": "Maximum number of HTTP connections, and at most a quarter of the limit for open files."},
    )
    max_channels: int = field(default=2047, metadata={"help": "Maximum number of channels per connection."})
    max_frame_bytes: int = field(
        default=131_072, metadata={"help": "Maximum frame size, in bytes, including the frame header and end."}
    )
    max_message_bytes: int = field(default=67_108_864, metadata={"help": "Maximum size of a message body, in bytes."})
    heartbeat_s: int = field(default=60, metadata={"help": "Heartbeat interval proposed to clients, in seconds."})
    handshake_timeout_s: float = field(
        default=10.0, metadata={"help": "Time within which a client must complete the handshake and log in, in seconds."}
    )
    memory_bytes: int = field(
        default=536_870_912,
        metadata={"help": "Memory limit for all that clients hold in the broker, in bytes; above it, publishers are blocked."},
    )
    disk_free_bytes: int = field(
        default=50_000_000,
        metadata={"help": "Free disk space below which publishers are blocked, in bytes; at most 5 % of the file system."},
    )
    strict_unbind: bool = field(
        default=True,
        metadata={"help": "Refuse an unbind whose arguments differ from those of the binding. RabbitMQ ignores it."},
    )
    guest_from_anywhere: bool = field(default=False, metadata={"help": "Allow the user guest to connect from other hosts."})
    log_format: str = field(default="text", metadata={"help": "Log format: text or json."})
    log_level: str = field(default="info", metadata={"help": "Log level: debug, info, warning or error."})

    def __post_init__(self) -> None:
        hints = get_type_hints(Config)
        for setting in fields(self):
            _require_type(setting.name, getattr(self, setting.name), hints[setting.name])
        _require_choice("durability", self.durability, ("full", "normal", "off"))
        _require_choice("log_format", self.log_format, ("text", "json"))
        _require_choice("log_level", self.log_level, ("debug", "info", "warning", "error"))
        _require_range("amqp_port", self.amqp_port, 0, 65_535)
        _require_range("tls_port", self.tls_port or 0, 0, 65_535)
        _require_range("http_port", self.http_port, -1, 65_535)
        _require_range("https_port", self.https_port, -1, 65_535)
        _require_range("max_channels", self.max_channels, 1, 65_535)
        _require_range("max_frame_bytes", self.max_frame_bytes, 4096, 2**31)
        _require_range("max_message_bytes", self.max_message_bytes, 1, 2**31)
        _require_range("max_connections", self.max_connections, 1, 2**31)
        _require_range("max_http_connections", self.max_http_connections, 1, 2**31)
        is_database = is_url(self.data)
        if is_database:
            DatabaseUrl.parse(self.data)  # its errors come at once
        if self.standby and not is_database:
            raise InvalidValueError(f"a standby needs a PostgreSQL database, got the file {self.data!r} as data")
        _require_networks("trusted_proxies", self.trusted_proxies)
        _require_range("disk_free_bytes", self.disk_free_bytes, 0, 2**63 - 1)
        _require_range("heartbeat_s", self.heartbeat_s, 0, 65_535)
        if not 0.05 <= self.stats_interval_s <= 3600:
            raise InvalidValueError(f"setting 'stats_interval_s' must be from 0.05 to 3600, got {self.stats_interval_s}")
        if (self.tls_port is not None or self.https_port >= 0) and not (self.tls_certificate and self.tls_key):
            raise InvalidValueError(
                "tls_port and https_port require both tls_certificate and tls_key, and at least one of them is missing"
            )

    @property
    def data_folder(self) -> Path | None:
        """The folder of the data file itself, which may be elsewhere than a symbolic link to it.

        None if the data is in memory or in a database.
        """
        return None if self.data == ":memory:" or is_url(self.data) else Path(self.data).resolve().parent

    @property
    def shown_data(self) -> str:
        """The path of the data file, or the URL of the database without its password."""
        return DatabaseUrl.parse(self.data).shown if is_url(self.data) else self.data

    def updated(self, **changes: Any) -> Config:
        """Return a copy in which the settings that are not None are replaced."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def load_config(path: str | Path) -> Config:
    """Read a TOML configuration file; raise InvalidValueError for an unknown setting or a value of the wrong type."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        document: Mapping[str, Any] = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, not TOML, or a number of too many digits
        raise InvalidValueError(f"{path} is not a valid configuration file: {error}") from error
    known = [setting.name for setting in fields(Config)]
    for name in document:
        if name not in known:
            raise InvalidValueError(f"{path}: unknown setting {name!r}, expected one of {', '.join(known)}")
    return Config(**document)


def _require_type(name: str, value: object, hint: Any) -> None:
    allowed = get_args(hint) or (hint,)
    if isinstance(value, bool) and bool not in allowed:
        raise InvalidValueError(f"setting {name!r} must be {_words(allowed)}, got {describe(value)}")
    if float in allowed and isinstance(value, int):
        return
    if not isinstance(value, allowed):
        raise InvalidValueError(f"setting {name!r} must be {_words(allowed)}, got {describe(value)}")


def _words(allowed: tuple[type, ...]) -> str:
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
    return " or ".join(words[kind] for kind in allowed if kind in words)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidValueError(f"setting {name!r} must be one of {', '.join(choices)}, got {value!r}")


def _require_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidValueError(f"setting {name!r} must be from {least} to {most}, got {value}")


def _require_networks(name: str, value: str | None) -> None:
    for address in value.split(",") if value is not None else ():
        try:
            ip_network(address.strip())
        except ValueError as error:
            raise InvalidValueError(
                f"setting {name!r} must list IP addresses and networks such as 10.0.0.1, 10.1.0.0/16, got {address!r}: {error}"
            ) from error
