"""Users with hashed passwords, and their permissions in each vhost, as definitions files and the store hold them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Access: TypeAlias = Literal["configure", "write", "read"]
SCRYPT = "holtmq_password_hashing_scrypt"
RABBITMQ_HASHES = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
    "rabbit_password_hashing_md5": "md5",
}
"""RabbitMQ's hash algorithms by its own names. They are fast, hence only for users that were imported from RabbitMQ."""
RABBITMQ_HASHING = "rabbit_password_hashing_sha256"
"""RabbitMQ's default, and the algorithm of a hash that names none."""
HASHINGS = (SCRYPT, *RABBITMQ_HASHES)
RABBITMQ_SALT_BYTES = 4
SALT_BYTES = 16
DIGEST_BYTES = 32
COST = {"n": 2**14, "r": 8, "p": 1, "maxmem": 32 * 1024 * 1024, "dklen": DIGEST_BYTES}
"""The parameters of scrypt: 16 MiB and about 50 ms. They belong to its name in `HASHINGS`; other ones would need another."""
NO_SALT = bytes(SALT_BYTES)


@dataclass(frozen=True, slots=True)
class User:
    """A user with a hashed password and tags."""

    name: str
    password_hash: str = ""
    """Salt and digest in base64. An empty hash matches no password."""
    hashing: str = SCRYPT
    tags: tuple[str, ...] = ()

    def with_password(self, password: str) -> User:
        """Return this user with a password. Slow. A password that the user has already keeps its hash, unless that is fast."""
        if self.hashing == SCRYPT and self.has_password(password):
            return self
        return replace(self, password_hash=hash_password(password), hashing=SCRYPT)

    def has_password(self, password: str) -> bool:
        """Whether `password` matches the hash. Slow, and equally slow whenever the answer is no, whatever the hash.

        A user without a password and a user with a fast hash cannot be told from others by the time of a refusal.
        """
        expected = _decoded(self.password_hash)
        if self.hashing == SCRYPT and expected:
            return hmac.compare_digest(expected, _scrypt(expected[:SALT_BYTES], password))
        if expected and self.hashing in RABBITMQ_HASHES:
            salt = expected[:RABBITMQ_SALT_BYTES]
            digest = hashlib.new(RABBITMQ_HASHES[self.hashing], salt + password.encode()).digest()
            if hmac.compare_digest(expected, salt + digest):
                return True
        _scrypt(NO_SALT, password)
        return False


NOBODY = User("")
"""A user without a password, to check the password of an unknown user against."""


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
    """Hash a password with a new random salt. Slow."""
    return base64.b64encode(_scrypt(os.urandom(SALT_BYTES), password)).decode()


def rabbitmq_hash(password: str) -> str:
    """Hash a password as RabbitMQ does, with SHA-256 and a new random salt. Fast."""
    salt = os.urandom(RABBITMQ_SALT_BYTES)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def is_password_hash(text: str, hashing: str) -> bool:
    """Whether a text can be a hash of this algorithm: the base64 of a salt and a digest, or empty."""
    try:
        size = len(base64.b64decode(text, validate=True))
    except ValueError:
        return False
    if hashing == SCRYPT:
        return size in (0, SALT_BYTES + DIGEST_BYTES)
    return size == 0 or size > RABBITMQ_SALT_BYTES


def _scrypt(salt: bytes, password: str) -> bytes:
    return salt + hashlib.scrypt(password.encode(), salt=salt, **COST)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError:
        return b""
