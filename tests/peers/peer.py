"""The programs that the tests run HoltMQ against: how each is found, and which Debian packages contain it.

Only the standard library is imported here: `make peers` runs without a virtual environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HIDE = "HOLTMQ_HIDE_PEERS"
"""Environment variable that makes every peer look missing, as on a machine that has just Python."""
REQUIRE = "HOLTMQ_REQUIRE_PEERS"
"""Environment variable that turns the skip for a missing peer into a failure."""

_looked_up: list[str] = []


class MissingPeerError(FileNotFoundError):
    """A peer is not installed. A test that meets this error is skipped."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


@dataclass(frozen=True)
class Peer:
    """A program that is not a Python package."""

    name: str
    packages: tuple[str, ...]
    """The Debian packages that install it."""
    find: Callable[[], Path | None]
    fixtures: tuple[str, ...] = ()
    """Fixtures that start it: a test that uses one of them needs no mark."""

    @property
    def is_installed(self) -> bool:
        return not os.environ.get(HIDE) and self.find() is not None

    def program(self) -> Path:
        """Return the path of the program. Raise MissingPeerError if it is not installed."""
        _looked_up.append(self.name)
        path = None if os.environ.get(HIDE) else self.find()
        if path is None:
            raise MissingPeerError(self.name, f"{self.name} is not installed: run `make peers`")
        return path


def looked_up() -> list[str]:
    """Return the names of the peers looked up since the last call."""
    names = list(_looked_up)
    _looked_up.clear()
    return names


def _find_rabbitmq() -> Path | None:
    """Find the server script itself, because Debian's wrapper on PATH insists on another user."""
    scripts = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin/rabbitmq-server"))
    return scripts[0] if scripts else _on_path("rabbitmq-server")()


def _find_postgres() -> Path | None:
    """Find the newest server, which Debian does not put on PATH."""
    servers = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parent.parent.name))
    return servers[-1] if servers else _on_path("postgres")()


def _on_path(*names: str) -> Callable[[], Path | None]:
    def find() -> Path | None:
        return next((Path(path) for name in names if (path := shutil.which(name))), None)

    return find


def _find_bunny() -> Path | None:
    """Find the Ruby that has the library Bunny."""
    ruby = _on_path("ruby")()
    has_bunny = ruby is not None and not subprocess.run([ruby, "-e", 'require "bunny"'], stderr=subprocess.DEVNULL).returncode
    return ruby if has_bunny else None


RABBITMQ = Peer("RabbitMQ", ("rabbitmq-server",), _find_rabbitmq, ("rabbitmq",))
RABBITMQADMIN = Peer("rabbitmqadmin", ("rabbitmq-server",), _on_path("rabbitmqadmin"))
AMQP_TOOLS = Peer("amqp-tools", ("amqp-tools",), _on_path("amqp-publish"))
NPM = Peer("npm", ("nodejs", "npm"), _on_path("npm"), ("amqplib",))
BUNNY = Peer("Bunny", ("ruby", "ruby-bunny"), _find_bunny)
CHROMIUM = Peer("Chromium", ("chromium",), _on_path("chromium", "chromium-browser", "google-chrome"), ("browser",))
POSTGRES = Peer("PostgreSQL", ("postgresql",), _find_postgres, ("postgres",))
GCC = Peer("gcc", ("gcc", "libc6-dev"), _on_path("gcc"), ("shim_library",))

PEERS = (RABBITMQ, RABBITMQADMIN, AMQP_TOOLS, NPM, BUNNY, CHROMIUM, POSTGRES, GCC)
