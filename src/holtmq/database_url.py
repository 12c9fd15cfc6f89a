"""The URL of a HoltMQ installation in a PostgreSQL database: libpq's, and the schema as `?schema=shop`.

No error of this module shows any part of a URL in which a password could be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import PurePath
from urllib.parse import unquote

from holtmq.errors import InvalidValueError

EXPECTED = "postgresql://user@host/database?schema=NAME"
DEFAULT_SCHEMA = "holtmq"
LONGEST_SCHEMA = 51
"""The name of its channel has some letters more, and PostgreSQL cuts what is longer than 63 bytes."""
NAME = re.compile(rf"(?!pg_)[a-z_][a-z0-9_]{{0,{LONGEST_SCHEMA - 1}}}")
SECRETS = ("password", "sslpassword", "oauth_client_secret")
SCHEME = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)
LIKE_A_URL = re.compile(r"postgres(?:ql)?(?:\+\w+)?:|[a-z][a-z0-9+.-]+:/|.*://", re.IGNORECASE | re.DOTALL)
"""What nobody means as the path of a file. A `Path` has one slash where the URL that it was made of has two."""
NAMED_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{0,2}")
PARTS = re.compile(r"(?P<authority>[^/?]*)(?P<path>[^?]*)\??(?P<query>.*)", re.DOTALL)
HOST = re.compile(r"(?:\[[^][]*\]|[^][:]*)(?::[0-9]*)?")


def is_url(path: object) -> bool:
    """Return whether a path is the URL of a database rather than that of a file. Raise InvalidValueError for any other URL."""
    text = str(path)
    if isinstance(path, str) and SCHEME.match(text):
        return True
    if LIKE_A_URL.match(text):
        found = NAMED_SCHEME.match(text)
        kind = "a Path" if isinstance(path, PurePath) else "a text"
        raise InvalidValueError(
            f"expected the path of a file, or the URL of a PostgreSQL database as text ({EXPECTED}), got {kind}"
            + (f" that begins with {found[0]}" if found else " with :// in it")
        )
    return False


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
        parts = PARTS.fullmatch(SCHEME.sub("", url, count=1))
        assert parts is not None
        authority, path = parts["authority"], parts["path"]
        user, at, hosts = authority.rpartition("@")
        _require_hosts(hosts)
        given = [option for option in parts["query"].split("&") if option]
        options = [(*map(unquote, option.partition("=")[::2]), option) for option in given]
        schema = _one_schema([value for name, value, _ in options if name == "schema"])
        rest = [option for key, _, option in options if key != "schema"]
        shown = [option for key, _, option in options if key not in SECRETS]
        return cls(_joined(authority, path, rest), schema, _joined(f"{user.partition(':')[0]}{at}{hosts}", path, shown))

    @property
    def quoted_schema(self) -> str:
        """The schema as an identifier of SQL: its name may be a reserved word."""
        return f'"{self.schema}"'

    @property
    def channel(self) -> str:
        """The channel on which changes are announced."""
        return f"holtmq_{self.schema}"

    def lock_id(self, purpose: str) -> int:
        """Return the number of an advisory lock. Those of different schemas and purposes differ."""
        return int.from_bytes(sha256(f"holtmq {self.schema} {purpose}".encode()).digest()[:8], "big", signed=True)


def _joined(authority: str, path: str, options: list[str]) -> str:
    return f"postgresql://{authority}{path}" + ("?" + "&".join(options) if options else "")


def _one_schema(given: list[str]) -> str:
    if len(given) > 1:
        raise InvalidValueError(f"the URL of the database has schema= {len(given)} times; expected it once")
    schema = given[0] if given else DEFAULT_SCHEMA
    if not NAME.fullmatch(schema):
        raise InvalidValueError(
            f"schema must consist of at most {LONGEST_SCHEMA} lower-case letters, digits and underscores, and not begin with a "
            f"digit or pg_, got {schema!r}"
        )
    return schema


def _require_hosts(hosts: str) -> None:
    if not all(map(HOST.fullmatch, hosts.split(","))):
        raise InvalidValueError(
            "the URL of the database has a host that is not a name, an IPv4 address or an IPv6 address in brackets, with or "
            f"without a port; expected {EXPECTED}, several hosts as host1:5432,host2:5432"
        )


def _require_escapes(url: str) -> None:
    """Refuse a URL whose password is not escaped: parts of it would be taken for the host or the database, and be shown."""
    _, _, rest = url.partition("://")
    authority, *behind = re.split(r"[/?#]", rest, maxsplit=1)
    if "#" in url or "@" in "".join(behind) or authority.count("@") > 1:
        raise InvalidValueError(
            "the URL of the database has an @ or a # behind its host, or more than one @: write the special characters of user "
            "and password in percent-encoding, for example %40 for @, %2F for / and %23 for #"
        )
    if re.search(r"%(?:00|(?![0-9A-Fa-f]{2}))|\s", url):
        raise InvalidValueError(
            "the URL of the database has a space, or a % without the code of a character: write the special characters of user "
            "and password in percent-encoding, for example %25 for % and %20 for a space"
        )
