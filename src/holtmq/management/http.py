"""The HTTP server. It runs on the broker's event loop."""

from __future__ import annotations

import asyncio
import ssl
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from holtmq.config import Config
from holtmq.listener import Listener, url_of
from holtmq.management.app import App
from holtmq.management.http_connection import KEEP_ALIVE_S, HttpConnection, HttpConnections
from holtmq.management.node import Node
from holtmq.management.statistics import Statistics

STOP_S = 2.0
"""Time for open requests when the server stops."""
CHECK_S = 1.0
"""Interval at which the time limits of connections are checked."""
MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a request's head. h11 enforces it; httptools accepts any size."""


class HttpService:
    """The listeners for HTTP and HTTPS, and the application behind them."""

    def __init__(
        self,
        config: Config,
        app: ASGIApp,
        context: ssl.SSLContext | None,
        *,
        max_connections: int,
        max_handshakes: int,
    ) -> None:
        self._config = config
        self._app = app
        self._context = context
        self._max_handshakes = max_handshakes
        self._connections = HttpConnections(max_connections)
        self._state = ServerState()
        self._listeners: list[Listener] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.addresses: list[str] = []

    async def start(self) -> None:
        """Start the listeners."""
        config = self._config
        settings = uvicorn.Config(
            self._app,
            loop="none",
            http="h11",
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            proxy_headers=config.trusted_proxies is not None,
            forwarded_allow_ips=config.trusted_proxies or "",
        )
        settings.load()
        try:
            self._listen("http", config.http_port, settings, None)
            self._listen("https", config.https_port, settings, self._context)
            for listener in self._listeners:
                listener.start()
        except OSError:
            for listener in self._listeners:
                listener.close()
            raise
        self._tasks.append(asyncio.create_task(self._keep_limits()))

    def _listen(self, scheme: str, port: int, settings: uvicorn.Config, context: ssl.SSLContext | None) -> None:
        if port < 0:
            return
        config = self._config
        listener = Listener(
            scheme.upper(),
            config.http_host,
            port,
            lambda: HttpConnection(settings, self._state, self._connections),
            has_room=self._connections.has_room,
            context=context,
            max_handshakes=self._max_handshakes,
            handshake_timeout_s=config.handshake_timeout_s,
        )
        self._listeners.append(listener)
        self.addresses += [url_of(scheme, address) for address in listener.addresses]

    async def _keep_limits(self) -> None:
        """Drop slow clients, and update the date that responses carry."""
        loop = asyncio.get_running_loop()
        while True:
            self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            self._connections.drop_overdue(loop.time())
            await asyncio.sleep(CHECK_S)

    async def stop(self) -> None:
        """Close the listeners, finish open requests, then close all connections."""
        for listener in self._listeners:
            listener.close()
        self._connections.finish()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=STOP_S)
        for task in (*self._tasks, *self._state.tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._connections.drop_all()


class HttpServer(HttpService):
    """The HTTP API and the web UI of a broker, and the statistics that they report."""

    def __init__(self, node: Node, context: ssl.SSLContext | None, *, max_connections: int, max_handshakes: int) -> None:
        self._statistics = Statistics(node)
        app = App(node, self._statistics)
        super().__init__(node.config, app, context, max_connections=max_connections, max_handshakes=max_handshakes)

    async def start(self) -> None:
        """Start the listeners and the collection of statistics."""
        await super().start()
        await self._statistics.sample()
        self._tasks.append(asyncio.create_task(self._statistics.run()))
