"""Limits and time-outs: what is too much, too slow or too large is refused, and others go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holtmq.testing import TestBroker, running_broker
from holtmq.wire import methods as wire
from holtmq.wire.frames import HEARTBEAT
from tests.amqp_client import Amqp, ClosedError, raw_socket
from tests.server.process import broker_process


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    settings: dict[str, Any] = {
        "max_connections": 3,
        "max_message_bytes": 1000,
        "handshake_timeout_s": 0.3,
    }
    with running_broker(**settings) as broker:
        yield broker


def test_a_message_above_the_limit_is_refused_before_it_is_all_there(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.publish("", "q", bytes(1000))
        channel.settle()
        channel.publish("", "q", bytes(1001))
        with pytest.raises(ClosedError, match="406"):
            channel.settle()


def test_no_more_connections_than_allowed(broker: TestBroker) -> None:
    clients = [Amqp(broker.port) for _ in range(3)]
    with pytest.raises(ConnectionResetError):
        Amqp(broker.port)
    clients.pop().close()
    clients.append(Amqp(broker.port))
    for client in clients:
        client.drop()


def test_a_client_that_does_not_log_in_is_dropped(broker: TestBroker) -> None:
    with raw_socket(broker.port) as connection:
        connection.sendall(b"AMQP")
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_heartbeats_are_sent_and_their_absence_is_noticed() -> None:
    with running_broker() as broker, Amqp(broker.port, heartbeat=1) as amqp:
        assert amqp.read_frame(5)[0] == HEARTBEAT
        assert amqp.is_at_end()


def test_no_heartbeats_where_the_client_wants_none() -> None:
    with running_broker() as broker, Amqp(broker.port, heartbeat=0) as amqp, pytest.raises(TimeoutError):
        amqp.read_frame(1.2)


def test_thousands_of_channels_and_hundreds_of_connections() -> None:
    with running_broker() as broker:
        clients = [Amqp(broker.port) for _ in range(200)]
        with Amqp(broker.port) as amqp:
            channels = [amqp.channel(number) for number in range(1, 2048)]
            channels[0].declare("q")
            for channel in channels:
                channel.publish("", "q", b"%d" % channel.number)
            channels[-1].settle()
            channels[0].settle()
            assert channels[0].count("q") == 2047
        for client in clients:
            client.channel().declare("q", passive=True)
            client.drop()


def test_the_settings_of_a_file_and_a_clean_stop(tmp_path: Path) -> None:
    config = tmp_path / "holtmq.toml"
    config.write_text('max_message_bytes = 10\nlog_format = "json"\nlog_level = "info"\n')
    with broker_process(tmp_path / "b.db", "--config", str(config)) as broker:
        assert broker.ready_line.startswith("HoltMQ is ready on amqp://127.0.0.1:")
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.publish("", "q", bytes(11))
            with pytest.raises(ClosedError, match="406"):
                channel.settle()
            code, log = broker.stop_while(amqp)
        assert code == 0
        assert '"event": ' in log


def test_stopping_tells_clients_and_loses_nothing(tmp_path: Path) -> None:
    with broker_process(tmp_path / "b.db") as broker:
        with Amqp(broker.port) as amqp:
            channel = amqp.channel()
            channel.declare("q", durable=True)
            for number in range(1000):
                channel.publish("", "q", b"%d" % number, delivery_mode=2)
            channel.settle()
            broker.process.terminate()
            with pytest.raises(ClosedError) as closed:
                channel.next()
            assert (closed.value.scope, closed.value.code) == ("connection", 320)
        assert broker.stop()[0] == 0
        broker.start()
        with Amqp(broker.port) as amqp:
            assert amqp.channel().count("q") == 1000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("amqp_port = 70000", "amqp_port"),
        ('amqp_port = "x"', "must be an integer"),
        ("no_such_setting = 1", "unknown setting 'no_such_setting'"),
        ("tls_port = 5671", "tls_certificate"),
        ("= nonsense", "is not a valid configuration file"),
    ],
)
def test_a_bad_configuration_is_refused_in_words(tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "holtmq.toml"
    config.write_text(text)
    with pytest.raises(RuntimeError, match=expected), broker_process(tmp_path / "b.db", "--config", str(config)):
        pass


def test_a_port_in_use_and_a_bad_definitions_file_are_told_in_one_line(tmp_path: Path) -> None:
    definitions = tmp_path / "d.json"
    definitions.write_text('{"queues": [{"name": 5}]}')
    with (
        pytest.raises(RuntimeError, match=r"queues\[0\]"),
        broker_process(tmp_path / "b.db", "--definitions", str(definitions)),
    ):
        pass
    with broker_process(tmp_path / "b.db") as broker, pytest.raises(RuntimeError, match="in use"):
        broker_process(tmp_path / "c.db", "--amqp-port", str(broker.port)).__enter__()


def test_the_pytest_fixture_gives_a_broker(holtmq_broker: TestBroker) -> None:
    with Amqp(holtmq_broker.port) as amqp:
        amqp.channel().call(wire.QueueDeclare(0, "q"), wire.QueueDeclareOk)
    assert holtmq_broker.url == f"amqp://guest:guest@127.0.0.1:{holtmq_broker.port}/%2F"


def _leave_when_told(client: Amqp) -> None:
    with suppress(ClosedError):
        client.next_event(0)
    client.drop()


def test_a_shutdown_with_clients_on_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holtmq"):
        with running_broker() as broker:
            reader = threading.Thread(target=_leave_when_told, args=(Amqp(broker.port),))
            reader.start()
        reader.join()
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "closing" in record.getMessage()]
    assert len(told) == 1
    assert told[0][0] == "INFO"
    assert "shutdown" in told[0][1]
