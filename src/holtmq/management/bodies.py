"""What requests hold: their bodies, and the messages in their responses, within limits for each request and for all of them.

Both count against the memory limit of the broker until the response is sent.
"""

from __future__ import annotations

from starlette.requests import Request

from holtmq.broker.memory import MemoryBudget
from holtmq.errors import HoltmqError

MAX_BODY_BYTES = 1024 * 1024
MAX_LARGE_BODY_BYTES = 20 * 1024 * 1024
"""Maximum size of a body with definitions or a message, as in RabbitMQ."""
LARGE = ("/api/definitions", "/api/definitions/{vhost}", "/api/exchanges/{vhost}/{name}/publish")
"""The paths of the operations that take large bodies."""
MAX_TOTAL_BYTES = 64 * 1024 * 1024
LARGEST_SHARE = 4
"""Maximum size of all that the requests under way hold: this much, and this share of the memory limit, a quarter. A single
large message is returned all the same."""
MESSAGE_COPIES = 3
"""A message in a response takes this many times its size: as bytes, as text and as JSON."""


class TooLargeError(HoltmqError):
    """The body of a request is too large."""


class BusyError(HoltmqError):
    """Other requests take up all memory for requests."""


class Held:
    """What one request holds, until it is released."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self._bytes = 0

    def add_body(self, size: int) -> None:
        """Count bytes of the request's body. Raise BusyError if all requests hold too much."""
        if self._memory.requests + size > self._most:
            raise self._busy()
        self._count(size)

    def add_message(self, size: int, *, is_first: bool) -> bool:
        """Count a message in the response if there is room for it, or if no other request holds anything.

        Return whether there is. Raise BusyError if there is not even room for the first one.
        """
        memory = self._memory
        if memory.requests + MESSAGE_COPIES * size > self._most and (not is_first or memory.requests > self._bytes):
            if is_first:
                raise self._busy()
            return False
        self._count(MESSAGE_COPIES * size)
        return True

    @property
    def _most(self) -> int:
        return min(MAX_TOTAL_BYTES, self._memory.limit // LARGEST_SHARE)

    def _busy(self) -> BusyError:
        return BusyError(f"the requests under way hold {self._memory.requests} of at most {self._most} bytes: try again later")

    def _count(self, size: int) -> None:
        self._bytes += size
        self._memory.requests += size

    def release(self) -> None:
        self._memory.requests -= self._bytes
        self._bytes = 0

    async def read(self, request: Request, path: str) -> bytes:
        """Read the body for the operation at a path. Refuse it as soon as it is too large."""
        most = MAX_LARGE_BODY_BYTES if path in LARGE else MAX_BODY_BYTES
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced) > most:
            raise TooLargeError(f"expected a body of at most {most} bytes, got {announced}")
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            self.add_body(len(chunk))
            if len(content) > most:
                raise TooLargeError(f"expected a body of at most {most} bytes, got more")
        return bytes(content)
