"""A broker for tests: a real one, on a free port, within a fraction of a second, gone when the test is over.

With pytest there is nothing to import: the fixture `holtmq_broker` is there (pytest_plugin.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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
    """A broker in a thread of this process, in memory unless a file is named; `settings` are those of the configuration."""
    from holtmq.config import Config
    from holtmq.server.run import running  # here, so that suites which do not use it do not wait for it

    config = Config(data=str(data), **{"amqp_port": 0, "http_port": -1, **settings})
    with running(config) as server:
        host, port = server.address.removeprefix("amqp://").rsplit(":", 1)
        yield TestBroker(host, int(port), config.data)
