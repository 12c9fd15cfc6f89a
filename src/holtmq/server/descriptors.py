"""How the file descriptors of the process are shared: HTTP clients cannot take those of AMQP, nor either those of the file."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from holtmq.config import Config
from holtmq.listener import MAX_HANDSHAKES

RESERVED = 64
"""Descriptors for the data file, the listeners, the event loop and handshakes."""


@dataclass(frozen=True, slots=True)
class DescriptorShares:
    """The number of connections of each kind that the limit for open files allows."""

    limit: int
    amqp: int
    http: int
    handshakes: int

    @classmethod
    def of(cls, config: Config, limit: int | None = None) -> DescriptorShares:
        """Share the descriptors that the process can have: a quarter at most for HTTP, the rest for AMQP."""
        if limit is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return cls(limit, config.max_connections, config.max_http_connections, MAX_HANDSHAKES)
        http = max(1, min(config.max_http_connections, limit // 4))
        amqp = max(1, min(config.max_connections, limit - http - RESERVED))
        return cls(limit, amqp, http, max(1, min(MAX_HANDSHAKES, limit // 16)))
