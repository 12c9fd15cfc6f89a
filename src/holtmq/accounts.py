"""Users with hashed passwords, and their permissions in each vhost, as definitions files and the store hold them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

Access: TypeAlias = Literal["configure", "write", "read"]
SALT_BYTES = 4
HASHES = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
"""Hash algorithms by RabbitMQ's names, so that users can be exported to RabbitMQ and imported from it."""
DEFAULT_HASHING = "rabbit_password_hashing_sha512"


@dataclass(frozen=True, slots=True)
class User:
    """A user with a hashed password and tags."""

    name: str
    password_hash: str = ""
    """Salt and digest in base64. An empty hash matches no password."""
    hashing: str = DEFAULT_HASHING
    tags: tuple[str, ...] = ()

    @classmethod
    def with_password(cls, name: str, password: str, tags: tuple[str, ...] = ()) -> User:
        """Create a user and hash the password."""
        return cls(name, hash_password(password), DEFAULT_HASHING, tags)

    def has_password(self, password: str) -> bool:
        """Whether `password` matches the hash."""
        try:
            expected = base64.b64decode(self.password_hash)
        except ValueError:
            return False
        if not expected:
            return False
        return hmac.compare_digest(expected, _digest(expected[:SALT_BYTES], password, self.hashing))


@dataclass(frozen=True, slots=True)
class Permission:
    """The permissions of a user in a vhost: for each kind of access, a regular expression for names of exchanges and queues."""

    user: str
    vhost: str
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """The routing keys that a user may use with a topic exchange, as regular expressions."""

    user: str
    vhost: str
    exchange: str
    write: str = ".*"
    read: str = ".*"


def hash_password(password: str) -> str:
    """Hash a password with a new random salt."""
    salt = os.urandom(SALT_BYTES)
    return base64.b64encode(_digest(salt, password, DEFAULT_HASHING)).decode()


def _digest(salt: bytes, password: str, hashing: str) -> bytes:
    return salt + hashlib.new(HASHES[hashing], salt + password.encode()).digest()
