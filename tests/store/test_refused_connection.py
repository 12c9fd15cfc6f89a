"""What a server says when it refuses a connection is understood in any language."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg.pq
import pytest

import holtmq
from holtmq.errors import StoreError, StoreLostError, StoreRefusedError
from holtmq.store.postgres.ownership_watch import OwnershipWatch
from tests.peers.peer import POSTGRES
from tests.peers.postgres import running_postgres

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or psycopg.pq.version() < 180_000, reason="libpq 18 on Linux is needed to see an SQLSTATE"
)
ENCRYPTION_REQUESTS = (80877103, 80877104)
STARTING_UP = ("57P03", "ВАЖНО", "система баз данных запускается")
FULL = ("53300", "FATAL", "tut mir leid, schon zu viele Verbindungen")
CLOSED = ("55000", "FATAL", "Datenbank »shop« akzeptiert gegenwärtig keine Verbindungen")
WRONG_PASSWORD = ("28P01", "致命错误", '用户 "shop" Password 认证失败')
STARTING_UP_IN_GERMAN = ("57P03", "FATAL", "das Datenbanksystem startet")
NO_DATABASE = ("3D000", "FATAL", "Datenbank »shop« existiert nicht")


class RefusingServer:
    """Answers each client with an error. It counts those that it has answered."""

    def __init__(self, state: str, severity: str, text: str, port: int = 0) -> None:
        fields = ((b"S", severity), (b"V", "FATAL"), (b"C", state), (b"M", text))
        body = b"".join(name + value.encode() + b"\0" for name, value in fields) + b"\0"
        self._answer = b"E" + struct.pack("!i", len(body) + 4) + body
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.answered = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"postgresql://shop:s3cret@127.0.0.1:{self.port}/shop"

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                with client, client.makefile("rb") as received, suppress(ConnectionError):
                    while _asks_for_encryption(received.read(8)):
                        client.sendall(b"N")
                    client.sendall(self._answer)
                self.answered.release()


def _asks_for_encryption(head: bytes) -> bool:
    return len(head) == 8 and struct.unpack("!ii", head)[1] in ENCRYPTION_REQUESTS


@contextmanager
def refusing_server(refusal: tuple[str, str, str], port: int = 0) -> Iterator[RefusingServer]:
    with closing(RefusingServer(*refusal, port)) as server:
        yield server


@pytest.mark.parametrize(
    ("refusal", "error", "reason"),
    [
        (STARTING_UP, StoreLostError, "cannot be reached"),
        (STARTING_UP_IN_GERMAN, StoreLostError, "cannot be reached"),
        (FULL, StoreLostError, "has no connection left"),
        (CLOSED, StoreLostError, "cannot be reached"),
        (WRONG_PASSWORD, StoreRefusedError, "check user, password and database"),
        (NO_DATABASE, StoreRefusedError, "check user, password and database"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_refusal_in_another_language_is_passing_or_final_as_its_sqlstate_says(
    refusal: tuple[str, str, str], error: type[StoreError], reason: str
) -> None:
    with refusing_server(refusal) as server:
        with pytest.raises(error, match=reason) as caught:
            holtmq.open(server.url)
        with closing(OwnershipWatch(server.url)) as watch, pytest.raises(error, match=reason):
            watch.look()
    assert refusal[2] in str(caught.value)
    assert "s3cret" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_refusal_with_the_same_text_costs_no_second_attempt_again() -> None:
    with refusing_server(FULL) as server:
        for attempts in (2, 1, 1):
            with pytest.raises(StoreLostError):
                holtmq.open(server.url)
            assert [server.answered.acquire(timeout=10) for _ in range(attempts)] == [True] * attempts
        assert not server.answered.acquire(blocking=False)


@pytest.mark.peer(POSTGRES)
def test_a_call_waits_for_a_server_that_starts_up_in_another_language() -> None:
    with running_postgres() as server, holtmq.open(server.url()) as mq:
        queue = mq.queue("q")
        server.stop()
        with refusing_server(STARTING_UP_IN_GERMAN, server.port) as starting:
            late = threading.Thread(target=queue.put, args=("m",))
            late.start()
            assert [starting.answered.acquire(timeout=10) for _ in range(3)] == [True] * 3
        server.start()
        late.join()
        assert queue.size() == 1


def test_a_standby_with_a_wrong_password_ends_with_what_the_server_says() -> None:
    with refusing_server(WRONG_PASSWORD) as server:
        command = [sys.executable, "-m", "holtmq", "serve", "--standby", "--data", server.url, "--amqp-port", "0"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert WRONG_PASSWORD[2] in ended.stderr
    assert "check user, password and database" in ended.stderr
    assert "s3cret" not in ended.stderr
