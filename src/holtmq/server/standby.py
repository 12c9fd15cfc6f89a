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
from holtmq.errors import StoreError, StoreRefusedError
from holtmq.store.opening import watch_owner

if TYPE_CHECKING:
    from holtmq.management.http import HttpService

log = logging.getLogger(__name__)

Message: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
LOOK_EVERY_S = 0.2
"""Pause between two looks at the owner, and thus the longest time to notice that it is gone."""
ANSWER_S = 10.0
"""Time that a database has to answer. After that, another one of several hosts may be better."""
MAX_CONNECTIONS = 50


class Standby:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._watch = watch_owner(config.data)
        self._app = StandbyApp()
        self._http: HttpService | None = None
        self._has_seen = False
        """Whether it has ever seen who owns the database. What is refused before that is a mistake in the settings."""

    async def wait(self, on_waiting: Callable[[str], None]) -> None:
        """Return when nobody owns the database. `on_waiting` is called with the reason to wait when there is a new one.

        Raise StoreRefusedError if the database refuses this broker from the beginning.
        """
        thread = ThreadPoolExecutor(1, "holtmq-standby")
        told = None
        try:
            while (reason := await self._look_in(thread)) is not None:
                await self._serve_http()
                if reason != told:
                    on_waiting(reason)
                    told = reason
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if self._http is not None:
                await self._http.stop()
                self._http = None
            self._watch.cut()
            await asyncio.get_running_loop().run_in_executor(thread, self._watch.close)
            thread.shutdown(wait=False)

    async def _look_in(self, thread: ThreadPoolExecutor) -> str | None:
        job = asyncio.get_running_loop().run_in_executor(thread, self._look)
        while not (await asyncio.wait([job], timeout=ANSWER_S))[0]:
            self._watch.cut()
        return job.result()

    def _look(self) -> str | None:
        """Return why this broker has to wait, or None."""
        try:
            owner = self._watch.look()
        except StoreError as error:
            if isinstance(error, StoreRefusedError) and not self._has_seen:
                raise
            return self._cannot_see(str(error))
        self._has_seen = True
        if owner is None:
            return None
        self._app.owner, self._app.reason = owner, f"{self._config.shown_data} is owned by {owner}"
        return self._app.reason

    def _cannot_see(self, reason: str) -> str:
        if self._app.reason != reason:
            log.warning("the standby cannot see who owns the database: %s", reason)
        self._app.owner, self._app.reason = None, reason
        return reason

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
        self.owner: str | None = None
        self.reason = "it has just started"

    async def __call__(self, _scope: Message, _receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        reason = f"this broker is a standby: {self.reason}"
        body = json.dumps({"status": "failed", "role": "standby", "active": self.owner, "reason": reason}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
