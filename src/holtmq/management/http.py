"""The HTTP server. It runs on the broker's event loop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from holtmq.management.app import App
from holtmq.management.node import Node
from holtmq.management.statistics import Statistics

STOP_S = 2
MAX_REQUESTS = 500
BACKLOG = 128
MAX_HEAD_BYTES = 64 * 1024
"""Maximum size of a request's head. h11 enforces it; httptools accepts any size."""


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signal handling to the broker."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """The listeners for HTTP and HTTPS, and the statistics that the API reports."""

    def __init__(self, node: Node, context: ssl.SSLContext | None) -> None:
        self._node = node
        self._context = context
        self._statistics = Statistics(node)
        self._servers: list[tuple[_Server, socket.socket]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.addresses: list[str] = []

    async def start(self) -> None:
        """Start the listeners and the collection of statistics."""
        config = self._node.config
        app = App(self._node, self._statistics)
        for scheme, port in (("http", config.http_port), ("https", config.https_port)):
            if port < 0:
                continue
            listener = _listen(config.http_host, port)
            host, chosen = listener.getsockname()[:2]
            self.addresses.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{chosen}")
            settings = uvicorn.Config(
                app,
                loop="none",
                http="h11",
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=MAX_REQUESTS,
                timeout_graceful_shutdown=STOP_S,
            )
            settings.load()
            if scheme == "https":
                settings.ssl = self._context
            self._servers.append((_Server(settings), listener))
        await self._statistics.sample()
        self._tasks.append(asyncio.create_task(self._statistics.run()))
        for server, listener in self._servers:
            self._tasks.append(asyncio.create_task(server.serve(sockets=[listener])))
        while not all(server.started for server, _ in self._servers):
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Finish open requests, then close the listeners."""
        for server, _ in self._servers:
            server.should_exit = True
        if self._tasks:
            self._tasks[0].cancel()
            await asyncio.wait(self._tasks, timeout=STOP_S * 2)
        for _, listener in self._servers:
            listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen for HTTP: {error.strerror}", f"{host}:{port}") from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener
