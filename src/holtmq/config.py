"""The settings of a broker: defaults, a TOML file, and what the command line says, in this order."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from holtmq.errors import InvalidValueError
from holtmq.table import describe

DEFAULT_HTTP_PORT = 15672


@dataclass(frozen=True, slots=True)
class Config:
    """What `holtmq serve` can be told. Each setting is a key of the same name in the TOML file."""

    data: str = field(
        default="holtmq.db", metadata={"help": "the file that holds topology and messages; made if it is not there"}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "the address to listen on; 0.0.0.0 for all of this machine"})
    amqp_port: int = field(default=5672, metadata={"help": "the port for AMQP; 0 for any that is free"})
    http_port: int = field(
        default=DEFAULT_HTTP_PORT, metadata={"help": "the port for the HTTP API and the pages; 0 for any, -1 for none"}
    )
    http_host: str = field(default="127.0.0.1", metadata={"help": "the address to listen on for HTTP"})
    https_port: int = field(default=-1, metadata={"help": "the port for the same over TLS; 0 for any, -1 for none"})
    stats_interval_s: float = field(default=5.0, metadata={"help": "how often rates are measured"})
    reports: str | None = field(
        default=None, metadata={"help": "a folder with reports of the pipeline, to be listed and opened in the pages"}
    )
    definitions: str | None = field(default=None, metadata={"help": "a definitions file, taken in at every start"})
    durability: str = field(
        default="full", metadata={"help": "what a confirm survives: full (a power cut), normal or off (a killed process)"}
    )
    tls_port: int | None = field(default=None, metadata={"help": "the port for AMQP over TLS; 0 for any that is free"})
    tls_certificate: str | None = field(default=None, metadata={"help": "a PEM file with the certificate and its chain"})
    tls_key: str | None = field(default=None, metadata={"help": "a PEM file with the private key"})
    tls_client_ca: str | None = field(
        default=None, metadata={"help": "a PEM file with the authorities whose client certificates are asked for and trusted"}
    )
    max_connections: int = field(default=10_000, metadata={"help": "how many clients may be connected"})
    max_channels: int = field(default=2047, metadata={"help": "how many channels a connection may have"})
    max_frame_bytes: int = field(default=131_072, metadata={"help": "the largest frame, its envelope included"})
    max_message_bytes: int = field(default=134_217_728, metadata={"help": "the largest body of a message"})
    heartbeat_s: int = field(default=60, metadata={"help": "how often a client shall show that it lives, as suggested to it"})
    handshake_timeout_s: float = field(default=10.0, metadata={"help": "how long a client may take to log in"})
    memory_bytes: int = field(
        default=536_870_912,
        metadata={"help": "the bodies that queues keep in memory altogether before they leave more to the file"},
    )
    strict_unbind: bool = field(
        default=True, metadata={"help": "refuse an unbind whose arguments differ from the binding's; RabbitMQ does not"}
    )
    guest_from_anywhere: bool = field(default=False, metadata={"help": "let the user guest log in from other machines"})
    log_format: str = field(default="text", metadata={"help": "text or json"})
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error"})

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
        _require_range("heartbeat_s", self.heartbeat_s, 0, 65_535)
        if not 0.05 <= self.stats_interval_s <= 3600:
            raise InvalidValueError(f"setting 'stats_interval_s' must be from 0.05 to 3600, got {self.stats_interval_s}")
        if (self.tls_port is not None or self.https_port >= 0) and not (self.tls_certificate and self.tls_key):
            raise InvalidValueError("tls_port and https_port need tls_certificate and tls_key, got none")

    def updated(self, **changes: Any) -> Config:
        """The same with the settings that are not None in another way."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def load_config(path: str | Path) -> Config:
    """Read a TOML file; an unknown key or a value of the wrong type is refused."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        document: Mapping[str, Any] = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidValueError(f"{path} is no configuration: {error}") from error
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
