"""A standby: it waits until nobody owns the database, and tells whoever asks that it does."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from holtmq.config import Config
from holtmq.errors import StoreError
from holtmq.store.opening import watch_owner

if TYPE_CHECKING:
    from holtmq.management.http import HttpService

log = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
LOOK_EVERY_S = 0.2
"""Pause between two looks at the owner, and thus the longest time to notice that it is gone."""
MAX_CONNECTIONS = 50


class Standby:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._watch = watch_owner(config.data)
        self._thread = ThreadPoolExecutor(1, "holtmq-standby")
        self._app = StandbyApp()
        self._http: HttpService | None = None

    async def wait(self, on_waiting: Callable[[str], None]) -> None:
        """Return when nobody owns the database. `on_waiting` is called with the owner when somebody does."""
        loop = asyncio.get_running_loop()
        try:
            while (owner := await loop.run_in_executor(self._thread, self._look)) is not None:
                is_news, self._app.owner = owner != self._app.owner, owner
                await self._serve_http()
                if is_news:
                    on_waiting(owner)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._http is not None:
                await self._http.stop()
            await loop.run_in_executor(self._thread, self._watch.close)
            self._thread.shutdown(wait=False)

    def _look(self) -> str | None:
        try:
            return self._watch.look()
        except StoreError as error:
            return f"nobody knows whom ({error})"

    async def _serve_http(self) -> None:
        """Answer health checks, if the HTTP API is enabled and installed."""
        if self._http is not None or self._config.http_port < 0:
            return
        with suppress(ImportError):  # an optional extra
            from holtmq.management.http import HttpService

            self._http = HttpService(
                self._config, self._app, None, max_connections=MAX_CONNECTIONS, max_handshakes=MAX_CONNECTIONS
            )
            try:
                await self._http.start()
            except OSError as error:
                log.warning("the standby answers no health checks: %s", error)


class StandbyApp:
    """Answers every request with 503 and the reason."""

    def __init__(self) -> None:
        self.owner = "nobody yet"

    async def __call__(self, _scope: Message, _receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        reason = f"this broker is a standby: the active one is {self.owner}"
        body = json.dumps({"status": "failed", "role": "standby", "active": self.owner, "reason": reason}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
