"""A broker in a thread of the test's own process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holtmq.config import Config
from holtmq.server.run import running


@dataclass(frozen=True, slots=True)
class TestBroker:
    """Where a broker is to be found."""

    __test__ = False  # not a test case, whatever pytest makes of the name

    host: str
    port: int
    data: str

    @property
    def url(self) -> str:
        """For clients that take a URL; user guest, vhost "/"."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"


@contextmanager
def running_broker(data: str | Path = ":memory:", **settings: Any) -> Iterator[TestBroker]:
    """A broker on a free port, in memory unless a file is named; `settings` are those of the configuration file."""
    config = Config(data=str(data), **{"amqp_port": 0, "log_level": "warning", **settings})
    with running(config) as server:
        host, port = server.address.removeprefix("amqp://").rsplit(":", 1)
        yield TestBroker(host, int(port), config.data)
