"""Runs a broker in this process: in the foreground until a signal arrives, or in a thread for the length of a `with` block."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from holtmq.allocator import keep_freed_memory
from holtmq.config import Config
from holtmq.database_url import is_url
from holtmq.errors import (
    StoreBusyError,
    StoreFencedError,
    StoreFullError,
    StoreLostError,
    StoreOwnedError,
    StoreReadOnlyError,
    StoreUnknownError,
)
from holtmq.server.server import Server
from holtmq.server.standby import Standby

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
RETRY_S = 1.0
"""Pause of a standby that could not take over."""
PASSING = (
    StoreFencedError, StoreOwnedError, StoreLostError, StoreReadOnlyError, StoreUnknownError, StoreBusyError, StoreFullError,
)  # fmt: skip
"""What ends or prevents the activity of a broker, and may be over in a moment."""
GARBAGE = (50_000, 0, 2_500)
"""Thresholds of the garbage collector. Messages form no reference cycles, so frequent collections find nothing; the gain is
measured in benchmarks/tuning.py. Every second collection includes the second generation, which thus stays small: with four
collections of 50,000 objects before it, it took up to 80 ms, with twenty 0.2 s (benchmarks/stalls.py). An object is looked at
twice either way."""


def serve(config: Config, on_ready: Callable[[Server], None], on_waiting: Callable[[str], None] = lambda _: None) -> None:
    """Run a broker until SIGTERM or SIGINT.

    `on_ready` is called when it accepts clients, `on_waiting` when it is a standby, with the reason.
    """
    keep_freed_memory()
    gc.set_threshold(*GARBAGE)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # each client needs one file descriptor
    uvloop.run(_serve(config, on_ready, on_waiting))


async def _serve(config: Config, on_ready: Callable[[Server], None], on_waiting: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    if not config.standby:
        await _serve_alone(config, on_ready, stop)
        return
    standby = Standby(config)
    while not stop.is_set() and await _first(stop, standby.wait(on_waiting)):
        try:
            await _serve_actively(config, on_ready, stop)
        except PASSING as error:
            log.warning("this broker is a standby again: %s", error)
            if not isinstance(error, StoreFencedError):
                await _first(stop, asyncio.sleep(RETRY_S))


async def _serve_alone(config: Config, on_ready: Callable[[Server], None], stop: asyncio.Event) -> None:
    try:
        await _serve_actively(config, on_ready, stop)
    except StoreOwnedError as error:
        if not is_url(config.data):
            raise
        raise StoreOwnedError(f"{error}; a broker that is started with --standby waits for that") from error


async def _serve_actively(config: Config, on_ready: Callable[[Server], None], stop: asyncio.Event) -> None:
    """Run a broker until it is told to stop. Raise StoreFencedError if it loses its database."""
    server = Server(config)
    await server.start()
    gc.freeze()  # what was recovered from the store stays: no collection needs to look at it again
    try:
        on_ready(server)
        await _first(stop, server.lost.wait())
    finally:
        await server.stop()
        gc.unfreeze()


async def _first(stop: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Wait for work, or for the stop. Return whether the work was done first."""
    tasks = [asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if tasks[0].cancelled():
        return False
    tasks[0].result()
    return not stop.is_set()


@contextmanager
def running(config: Config) -> Iterator[Server]:
    """Run a broker in a thread of its own while the block runs."""
    started = threading.Event()
    state: dict[str, object] = {}

    async def run() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        server = Server(config)
        state["stop"] = lambda: loop.call_soon_threadsafe(stop.set)
        await server.start()
        state["server"] = server
        started.set()
        await stop.wait()
        await server.stop()

    def main() -> None:
        try:
            uvloop.run(run())
        except BaseException as error:
            state["error"] = error
            raise
        finally:
            started.set()

    thread = threading.Thread(target=main, name="holtmq-broker", daemon=True)
    thread.start()
    if not started.wait(START_TIMEOUT_S):
        raise TimeoutError(f"the broker did not start within {START_TIMEOUT_S:g} s")
    server, stop = state.get("server"), state.get("stop")
    if not isinstance(server, Server) or not callable(stop):
        thread.join()
        raise RuntimeError(f"the broker did not start: {state.get('error')}") from state.get("error")  # type: ignore[misc]
    try:
        yield server
    finally:
        stop()
        thread.join()
