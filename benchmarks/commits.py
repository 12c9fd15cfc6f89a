"""The upper bound: a process that commits a message in a thread, then answers, without AMQP: python -m benchmarks.commits

It does what a broker must do for a publisher that waits for each confirm, and nothing else: receive a message, write it to
SQLite, wait for the disk without holding up the event loop, answer. Prints what each of these steps adds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvloop

from holtmq.server.worker_thread import WorkerThread

MESSAGE, ANSWER = b"m" * 177, b"a" * 21
"""As long as the frames of a publish with 100 bytes, and of its confirm."""
ROUNDS, SECONDS = 5, 2.0
TABLES = """
CREATE TABLE chunks (id INTEGER PRIMARY KEY, is_transient INTEGER NOT NULL, header BLOB NOT NULL, content BLOB NOT NULL);
CREATE TABLE slices (queue INTEGER, first INTEGER, chunk INTEGER, number INTEGER, PRIMARY KEY (queue, first)) WITHOUT ROWID;
"""
"""A message takes two rows, in two pages: one has the message, the other one says that a queue has it."""


class File:
    """A SQLite file to which messages are written, each in a transaction of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; {TABLES}")
        self._next = 1

    def add(self, message: bytes) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("INSERT INTO chunks VALUES (?, 0, ?, ?)", (self._next, message[:40], message))
        self._connection.execute("INSERT INTO slices VALUES (1, ?, ?, 1)", (self._next, self._next))
        self._next += 1

    def commit(self) -> None:
        self._connection.execute("COMMIT")


class Answering(asyncio.Protocol):
    """Answers each message. With a file, after a thread has committed it."""

    def __init__(self, file: File | None, thread: WorkerThread | None) -> None:
        self._file = file
        self._thread = thread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._file is None or self._thread is None:
            self._transport.write(ANSWER)
            return
        self._file.add(data)
        self._thread.do(self._file.commit, self._committed, self._failed)

    def _committed(self, _: None) -> None:
        self._transport.write(ANSWER)

    def _failed(self, error: Exception) -> None:
        self._transport.abort()
        raise error


def main() -> None:
    print("| for each message | µs, median of rounds | fastest | messages/s |\n|---|---|---|---|")
    steps = {"answer": answered_us, "commit, without a thread": committed_us, "commit in a thread, then answer": confirmed_us}
    for name, measure in steps.items():
        times = [measure() for _ in range(ROUNDS)]
        median = statistics.median(times)
        print(f"| {name} | {median:.0f} | {min(times):.0f} | {1e6 / median:,.0f} |", flush=True)


def committed_us() -> float:
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        file = File(Path(folder) / "bound.db")

        def commit() -> None:
            file.add(MESSAGE)
            file.commit()

        return _repeated_us(commit)


def answered_us() -> float:
    return _served_us(is_stored=False)


def confirmed_us() -> float:
    return _served_us(is_stored=True)


def _served_us(*, is_stored: bool) -> float:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(there, is_stored), daemon=True)
    process.start()
    try:
        with socket.create_connection(("127.0.0.1", here.recv())) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def exchange() -> None:
                client.sendall(MESSAGE)
                assert client.recv(len(ANSWER)) == ANSWER

            return _repeated_us(exchange)
    finally:
        process.terminate()
        process.join()


def _repeated_us(work: Callable[[], None]) -> float:
    start, number = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - start) < SECONDS:
        work()
        number += 1
    return passed_s / number * 1e6


def _serve(pipe: Connection, is_stored: bool) -> None:  # noqa: FBT001  # an argument of a process
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder:
        uvloop.run(_answer(pipe, File(Path(folder) / "bound.db") if is_stored else None))


async def _answer(pipe: Connection, file: File | None) -> None:
    thread = WorkerThread("commits") if file is not None else None
    server = await asyncio.get_running_loop().create_server(lambda: Answering(file, thread), "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


if __name__ == "__main__":
    main()
