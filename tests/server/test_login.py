"""The login of an AMQP client: the check runs beside the loop, and the connection waits for it."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holtmq.testing import TestBroker, running_broker
from holtmq.wire import methods as wire
from holtmq.wire.frames import PROTOCOL_HEADER, method_frame
from tests.amqp_client import Amqp, ClosedError, raw_socket
from tests.deadline import PATIENCE_S, eventually
from tests.management.conftest import running_node

START_OK = wire.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US")


class HeldHashes:
    """Slow hashes that do not end until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.go_on = threading.Event()
        self._scrypt = hashlib.scrypt
        monkeypatch.setattr(hashlib, "scrypt", self._held)

    def _held(self, password: bytes, **options: Any) -> bytes:
        self.count += 1
        assert self.go_on.wait(PATIENCE_S)
        return self._scrypt(password, **options)


@pytest.fixture
def held_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldHashes]:
    held = HeldHashes(monkeypatch)
    yield held
    held.go_on.set()


def test_what_a_client_sends_during_the_check_waits_for_it(broker: TestBroker) -> None:
    tune_ok = wire.ConnectionTuneOk(0xFF, 131_072, 0)
    methods = (START_OK, tune_ok, wire.ConnectionOpen("/"))
    with raw_socket(broker.port) as connection:
        connection.sendall(PROTOCOL_HEADER + b"".join(method_frame(0, each) for each in methods))
        received = b""
        open_ok = method_frame(0, wire.ConnectionOpenOk())
        while open_ok not in received:
            more = connection.recv(65536)
            assert more, received
            received += more


def test_a_check_holds_up_nobody_else(broker: TestBroker, held_hashes: HeldHashes) -> None:
    with Amqp(broker.port) as amqp, raw_socket(broker.port) as waiting:
        wrong = wire.ConnectionStartOk({}, "PLAIN", b"\0guest\0wrong", "en_US")
        waiting.sendall(PROTOCOL_HEADER + method_frame(0, wrong))
        eventually(lambda: held_hashes.count, "a check")
        amqp.channel().declare("q")
        with Amqp(broker.port) as again:  # its password is remembered
            again.channel().declare("q")
        held_hashes.go_on.set()
        assert b"".join(iter(lambda: waiting.recv(65536), b""))  # connection.start, and then the end


def test_a_client_that_leaves_during_the_check_leaves_nothing_behind(
    broker: TestBroker, held_hashes: HeldHashes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        with raw_socket(broker.port) as leaving:
            leaving.sendall(PROTOCOL_HEADER + method_frame(0, wire.ConnectionStartOk({}, "PLAIN", b"\0a\0b", "en_US")))
            eventually(lambda: held_hashes.count, "a check")
        held_hashes.go_on.set()
        with Amqp(broker.port) as amqp:
            amqp.channel().settle()
    assert not [text for text in caplog.messages if "internal error" in text]


def test_the_handshake_timeout_holds_during_the_check(held_hashes: HeldHashes) -> None:
    with running_broker(handshake_timeout_s=0.2) as broker, raw_socket(broker.port) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):  # perhaps before the client has sent anything
            connection.sendall(PROTOCOL_HEADER + method_frame(0, wire.ConnectionStartOk({}, "PLAIN", b"\0a\0b", "en_US")))
            while connection.recv(65536):
                pass
        held_hashes.go_on.set()


def test_setting_a_password_holds_up_nobody_else(held_hashes: HeldHashes) -> None:
    user = {"name": "ann", "password": "p", "tags": "management"}
    with running_node() as node, node.connect() as amqp:
        channel = amqp.channel()
        for change in (
            lambda: node.http.put("/api/users/ann", user),
            lambda: node.http.post("/api/definitions", {"users": [user]}),
        ):
            before = held_hashes.count
            held_hashes.go_on.clear()
            setting = threading.Thread(target=change)
            setting.start()
            eventually(lambda before=before: held_hashes.count > before, "a hash")  # type: ignore[misc]
            channel.declare("q")
            held_hashes.go_on.set()
            setting.join()
        assert node.http.as_user("ann:p").call("GET", "/api/whoami").status == 200


def can_log_in(broker: TestBroker, user: str = "guest", password: str = "guest") -> bool:
    try:
        Amqp(broker.port, user=user, password=password).drop()
    except ClosedError as error:
        return error.code != 403
    return True


def test_guest_is_created_for_a_new_file_and_never_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with running_broker(path) as broker:
        assert can_log_in(broker)
    with sqlite3.connect(path) as connection:  # as a broker does it on request
        for table, column in (("users", "name"), ("permissions", "user")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = 'guest'")
    connection.close()
    for _ in range(2):
        with running_broker(path) as broker:
            assert not can_log_in(broker)


def test_guest_does_not_come_back_to_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    path = tmp_path / "broker.db"
    with running_broker(path):
        pass
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM users WHERE name = ''")  # earlier versions did not mark their files
        connection.execute("INSERT INTO users VALUES ('ann', '', 'rabbit_password_hashing_sha256', '')")
        connection.execute("DELETE FROM users WHERE name = 'guest'")
    connection.close()
    with running_broker(path) as broker:
        assert not can_log_in(broker)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM users WHERE name = 'ann'")
    connection.close()
    with running_broker(path) as broker:
        assert not can_log_in(broker)


@pytest.mark.parametrize(("users", "has_guest"), [([{"name": "ann", "password": "p", "tags": ""}], False), ([], True)])
def test_users_of_a_definitions_file_take_the_place_of_guest(
    tmp_path: Path,
    users: list[dict[str, str]],
    has_guest: bool,  # noqa: FBT001
) -> None:
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps({"users": users}))
    with running_broker(tmp_path / "broker.db", definitions=str(definitions)) as broker:
        assert can_log_in(broker) is has_guest
        assert can_log_in(broker, "ann", "p") is not has_guest
    with running_broker(tmp_path / "broker.db") as broker:
        assert can_log_in(broker) is has_guest


def test_a_file_of_the_embedded_library_gets_guest(tmp_path: Path) -> None:
    import holtmq

    with holtmq.open(tmp_path / "broker.db") as mq:
        mq.declare_queue("q")
    with running_broker(tmp_path / "broker.db") as broker:
        assert can_log_in(broker)


def test_a_stored_expression_that_is_not_supported_does_not_keep_the_broker_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "broker.db"
    with running_broker(path):
        pass
    with sqlite3.connect(path) as connection:  # as Python's re module accepted it
        connection.execute("INSERT INTO policies VALUES ('/', 'old', '^(?!x)', 'all', 0, '{\"max-length\": 1}')")
        connection.execute("UPDATE permissions SET configure = '(?<=q)x|^q'")
    connection.close()
    with running_broker(path) as broker, Amqp(broker.port) as amqp, pytest.raises(ClosedError, match="403"):
        amqp.channel().declare("q")
    reports = [text for text in caplog.messages if "matches nothing" in text]
    assert any("policy 'old' in vhost '/'" in text and "look-ahead" in text for text in reports)
    assert any("a permission with the expression" in text and "look-behind" in text for text in reports)
