"""The URL of a HoltMQ installation in a PostgreSQL database: libpq's, and the schema as `?schema=shop`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from holtmq.errors import InvalidValueError

SCHEMES = ("postgresql://", "postgres://")
DEFAULT_SCHEMA = "holtmq"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")


def is_url(path: object) -> bool:
    """Return whether a path is the URL of a database rather than that of a file."""
    return isinstance(path, str) and path.startswith(SCHEMES)


@dataclass(frozen=True, slots=True)
class DatabaseUrl:
    """Where an installation is."""

    conninfo: str
    """For libpq."""
    schema: str
    shown: str
    """For people: without a password."""

    @classmethod
    def parse(cls, url: str) -> DatabaseUrl:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        schema = dict(options).get("schema", DEFAULT_SCHEMA)
        if not NAME.fullmatch(schema) or schema.startswith("pg_"):
            raise InvalidValueError(
                f"schema must consist of lower-case letters, digits and underscores and not begin with pg_, got {schema!r}"
            )
        rest = [(name, value) for name, value in options if name != "schema"]
        user, at, hosts = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        shown = [(key, value) for key, value in options if key != "password"]
        return cls(
            urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), "")),
            schema,
            urlunsplit(("postgresql", f"{name}{at}{hosts}", parts.path, urlencode(shown), "")),
        )

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
