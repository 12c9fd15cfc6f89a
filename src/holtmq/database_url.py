"""The URL of a HoltMQ installation in a PostgreSQL database: libpq's, and the schema as `?schema=shop`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import unquote, urlsplit

from holtmq.errors import InvalidValueError

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_SCHEMA = "holtmq"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
SECRETS = ("password", "sslpassword", "oauth_client_secret")


def is_url(path: object) -> bool:
    """Return whether a path is the URL of a database rather than that of a file."""
    return isinstance(path, str) and path.startswith(SCHEMES)


def shown_path(path: object) -> str:
    """Return a path or a URL as it may be shown: without a password."""
    return DatabaseUrl.parse(path).shown if isinstance(path, str) and is_url(path) else str(path)


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """Where an installation is."""

    conninfo: str = field(repr=False)
    """For libpq. It may contain a password."""
    schema: str
    shown: str
    """For people: without a password."""

    @classmethod
    def parse(cls, url: str) -> DatabaseUrl:
        _require_escapes(url)
        parts = urlsplit(url)
        given = [option for option in parts.query.split("&") if option]
        options = [(*map(unquote, option.partition("=")[::2]), option) for option in given]
        schema = next((value for name, value, _ in options if name == "schema"), DEFAULT_SCHEMA)
        if not NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise InvalidValueError(
                f"schema must consist of lower-case letters, digits and underscores and not begin with pg_, got {schema!r}"
            )
        user, at, hosts = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        rest = [option for key, _, option in options if key != "schema"]
        shown = [option for key, _, option in options if key not in SECRETS]
        return cls(_joined(parts.netloc, parts.path, rest), schema, _joined(f"{name}{at}{hosts}", parts.path, shown))

    @property
    def has_several_hosts(self) -> bool:
        """Whether the primary server is to be found among several."""
        return "," in urlsplit(self.conninfo).netloc.rpartition("@")[2]

    @property
    def channel(self) -> str:
        """The channel on which changes are announced."""
        return f"holtmq_{self.schema}"

    def lock_id(self, purpose: str) -> int:
        """Return the number of an advisory lock. Those of different schemas and purposes differ."""
        return int.from_bytes(sha256(f"holtmq {self.schema} {purpose}".encode()).digest()[:8], "big", signed=True)


def _joined(authority: str, path: str, options: list[str]) -> str:
    return f"postgresql://{authority}{path}" + ("?" + "&".join(options) if options else "")


def _require_escapes(url: str) -> None:
    """Refuse a URL whose password is not escaped: parts of it would be taken for the host or the database, and be shown."""
    _, *behind = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)
    if "#" in url or "@" in "".join(behind):
        raise InvalidValueError(
            "the URL of the database has an @ or a # behind its host: write the special characters of user and password in "
            "percent-encoding, for example %40 for @, %2F for / and %23 for #"
        )
