"""HTTP connections and their limits: time for each part of a request, and a maximum number.

A connection waits for its client while it expects a request, the rest of a body, or room to send more of a response. The wait
has a limit. If the maximum number of connections is reached, the connection that has waited longest makes room for a new one:
idle and slow clients cannot keep others out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

HEAD_S = 10.0
"""Time for the head of a request, from its first byte, and for the first byte of a new connection."""
KEEP_ALIVE_S = 30
"""Time that a connection may be idle between two requests."""
STALL_S = 30.0
"""Time without progress in the body of a request, or in the sending of a response."""
BODY_S = 300.0
"""Time for the body of a request."""


class HttpConnections:
    """The open connections of all HTTP listeners."""

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._open: dict[HttpConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def has_room(self) -> bool:
        """Return whether there is room for one more connection, or one that can make room."""
        return len(self._open) < self.maximum or any(connection.awaits_client for connection in self._open)

    def add(self, connection: HttpConnection) -> bool:
        """Add a connection, and drop the one that waits longest for its client if there are too many."""
        if len(self._open) >= self.maximum:
            waiting = [each for each in self._open if each.awaits_client]
            if not waiting:
                return False
            min(waiting, key=lambda each: each.waits_since).drop()
        self._open[connection] = None
        return True

    def discard(self, connection: HttpConnection) -> None:
        """Remove a connection that is closed."""
        self._open.pop(connection, None)

    def finish(self) -> None:
        """Close the connections after the responses under way."""
        for connection in list(self._open):
            connection.finish()

    def drop_all(self) -> None:
        """Close all connections at once."""
        for connection in list(self._open):
            connection.drop()

    def drop_overdue(self, now: float) -> None:
        """Drop the connections whose clients are too slow."""
        for connection in [each for each in self._open if each.is_overdue(now)]:
            connection.drop()


class HttpConnection(H11Protocol):
    """uvicorn's connection, with time limits."""

    def __init__(self, config: uvicorn.Config, state: ServerState, connections: HttpConnections) -> None:
        super().__init__(config, state, {}, asyncio.get_running_loop())
        self.waits_since = 0.0
        """When the wait for a request began, or its head was complete. Progress does not count: a slow client is a slow one."""
        self._progress_at = 0.0
        self._has_begun = True
        """Whether a request is under way. A new connection counts as such: it must send one soon."""
        self._unsent = 0
        self._all_connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._start_waiting()
        if not self._all_connections.add(self):
            cast("asyncio.Transport", transport).abort()
            return
        super().connection_made(cast("asyncio.Transport", transport))

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_connections.discard(self)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._progress_at = self.loop.time()
        if not self._has_begun:
            self._has_begun = True
            self._start_waiting()
        super().data_received(data)

    def handle_events(self) -> None:
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._start_waiting()

    def on_response_complete(self) -> None:
        self._has_begun = bool(self.conn.trailing_data[0])
        self._start_waiting()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self._progress_at = self.loop.time()
        super().pause_writing()

    def _start_waiting(self) -> None:
        self.waits_since = self._progress_at = self.loop.time()

    @property
    def awaits_client(self) -> bool:
        """Whether the next step is the client's."""
        return self._awaits_head or self._awaits_body or self.flow.write_paused or self.transport.is_closing()

    @property
    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _awaits_body(self) -> bool:
        return self.cycle is not None and self.cycle.more_body and not self.flow.read_paused

    def is_overdue(self, now: float) -> bool:
        """Return whether the client has exceeded a time limit."""
        if not self.awaits_client:
            return False
        unsent = self.transport.get_write_buffer_size()
        if unsent < self._unsent:
            self._progress_at = now
        self._unsent = unsent
        if self._awaits_head and not unsent and not self.transport.is_closing():
            return self._has_begun and now - self.waits_since > HEAD_S  # uvicorn closes idle connections
        return now - self._progress_at > STALL_S or (self._awaits_body and now - self.waits_since > BODY_S)

    def drop(self) -> None:
        """Close the connection at once."""
        self._all_connections.discard(self)
        self.transport.abort()

    def finish(self) -> None:
        """Close the connection after the response under way."""
        try:
            self.shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()
