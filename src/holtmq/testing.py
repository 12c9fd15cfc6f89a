"""A broker for tests: a real one on a free port, which starts in a fraction of a second and stops at the end of the test.

pytest users need no import: `pytest_plugin` provides the fixtures `holtmq_broker` and `holtmq_broker_session`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class TestBroker:
    """A running broker: its address and its file."""

    __test__ = False  # not a test case, in spite of its name

    host: str
    port: int
    """The AMQP port."""
    data: str
    """The path of its file, or ":memory:"."""
    http_url: str | None = None
    """The URL of the management API, or None if it is off."""

    @property
    def url(self) -> str:
        """The AMQP URL, with user guest and vhost "/"."""
        return f"amqp://guest:guest@{self.host}:{self.port}/%2F"


@contextmanager
def running_broker(data: str | Path = ":memory:", **settings: Any) -> Iterator[TestBroker]:
    """Run a broker in a thread of this process, and stop it at the end of the block.

    The broker keeps everything in memory unless `data` names a file. `settings` are the settings of a configuration file,
    for example `max_connections=10`. The management API is off by default; `http_port=0` turns it on, on a free port.
    """
    from holtmq.config import Config
    from holtmq.server.run import running  # imported here, so that suites without a broker start as fast as before

    config = Config(data=str(data), **{"amqp_port": 0, "http_port": -1, **settings})
    with running(config) as server:
        host, port = server.address.removeprefix("amqp://").rsplit(":", 1)
        yield TestBroker(host, int(port), config.data, server.http_address)
