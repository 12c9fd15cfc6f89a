"""The bodies of requests: read within limits, for each request and for all that are under way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from holtmq.errors import HoltmqError

MAX_BODY_BYTES = 1024 * 1024
MAX_LARGE_BODY_BYTES = 20 * 1024 * 1024
"""Maximum size of a body with definitions or a message, as in RabbitMQ."""
LARGE = ("/api/definitions", "/api/definitions/{vhost}", "/api/exchanges/{vhost}/{name}/publish")
"""The paths of the operations that take large bodies."""
MAX_TOTAL_BYTES = 64 * 1024 * 1024
"""Maximum size of all bodies that are being read or handled."""


class TooLargeError(HoltmqError):
    """The body of a request is too large."""


class BusyError(HoltmqError):
    """The bodies of other requests take up all memory for bodies."""


class Bodies:
    """The bodies of the requests under way."""

    def __init__(self) -> None:
        self._bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, path: str) -> AsyncIterator[bytes]:
        """Read the body for the operation at a path. It counts until the block ends. Refuse it as soon as it is too large."""
        most = MAX_LARGE_BODY_BYTES if path in LARGE else MAX_BODY_BYTES
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > most:
            raise TooLargeError(f"expected a body of at most {most} bytes, got {announced}")
        content = bytearray()
        counted = 0
        try:
            async for chunk in request.stream():
                content += chunk
                counted += len(chunk)
                self._bytes += len(chunk)
                if counted > most:
                    raise TooLargeError(f"expected a body of at most {most} bytes, got more")
                if self._bytes > MAX_TOTAL_BYTES:
                    raise BusyError(f"the bodies of the requests under way exceed {MAX_TOTAL_BYTES} bytes: try again later")
            yield bytes(content)
        finally:
            self._bytes -= counted
