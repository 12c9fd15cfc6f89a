"""A message of a stream as the embedded library returns it. It stays in the stream: there is nothing to settle."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from holtmq.embedded.message import decoded_properties, moment, shown
from holtmq.store.stream_port import StreamMessage
from holtmq.table import Table


class StreamRecord:
    """A message of a stream. Its values are read-only. Those that need decoding are decoded on demand."""

    __slots__ = ("_decoded", "_stored", "stream")

    def __init__(self, stored: StreamMessage, stream: str) -> None:
        self._stored = stored
        self._decoded: tuple[Table, Table] | None = None
        self.stream = stream
        """The name of the stream."""

    @property
    def offset(self) -> int:
        """The place of the message in the stream. Offsets start at 0 and have no gaps."""
        return self._stored.offset

    @property
    def timestamp(self) -> datetime:
        """When the message was appended. It is never earlier than that of the message before."""
        return moment(self._stored.timestamp_ms)

    @property
    def body(self) -> bytes:
        return self._stored.body

    @property
    def routing_key(self) -> str:
        return self._stored.routing_key

    @property
    def exchange(self) -> str:
        return self._stored.exchange

    @property
    def headers(self) -> Table:
        return self._headers_and_properties()[0]

    @property
    def properties(self) -> Table:
        return self._headers_and_properties()[1]

    @property
    def text(self) -> str:
        """The body, decoded as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body, decoded as JSON."""
        return json.loads(self.body)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StreamRecord):
            return NotImplemented
        return (self.stream, self._stored) == (other.stream, other._stored)

    def __hash__(self) -> int:
        return hash((self.stream, self._stored.offset))

    def __repr__(self) -> str:
        return f"StreamRecord(offset={self.offset}, routing_key={self.routing_key!r}, body={shown(self.body)!r})"

    def _headers_and_properties(self) -> tuple[Table, Table]:
        if self._decoded is None:
            self._decoded = decoded_properties(self._stored.raw_properties)
        return self._decoded
