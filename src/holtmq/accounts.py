"""Users with hashed passwords, and what each may do in a vhost: values, as a definitions file and the store have them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass
from typing import Literal, TypeAlias

Right: TypeAlias = Literal["configure", "write", "read"]
SALT_BYTES = 4
HASHES = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
"""RabbitMQ's names for how a password is hashed, so that users can move in both directions."""
DEFAULT_HASHING = "rabbit_password_hashing_sha512"


@dataclass(frozen=True, slots=True)
class User:
    name: str
    password_hash: str = ""
    """Salt and digest in base64; an empty one fits no password."""
    hashing: str = DEFAULT_HASHING
    tags: tuple[str, ...] = ()

    @classmethod
    def with_password(cls, name: str, password: str, tags: tuple[str, ...] = ()) -> User:
        return cls(name, hash_password(password), DEFAULT_HASHING, tags)

    def has_password(self, password: str) -> bool:
        try:
            expected = base64.b64decode(self.password_hash)
        except ValueError:
            return False
        if not expected:
            return False
        return hmac.compare_digest(expected, _digest(expected[:SALT_BYTES], password, self.hashing))


@dataclass(frozen=True, slots=True)
class Permission:
    """What a user may do in a vhost: the names of exchanges and queues that each right extends to."""

    user: str
    vhost: str
    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"


@dataclass(frozen=True, slots=True)
class TopicPermission:
    """Which routing keys a user may use with a topic exchange."""

    user: str
    vhost: str
    exchange: str
    write: str = ".*"
    read: str = ".*"


def hash_password(password: str) -> str:
    salt = os.urandom(SALT_BYTES)
    return base64.b64encode(_digest(salt, password, DEFAULT_HASHING)).decode()


def _digest(salt: bytes, password: str, hashing: str) -> bytes:
    return salt + hashlib.new(HASHES[hashing], salt + password.encode()).digest()
