"""Limits and timeouts: the broker refuses what exceeds them and continues to serve other clients."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holtmq.testing import TestBroker, running_broker
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp, ClosedError, is_closed, raw_socket
from tests.deadline import eventually
from tests.protocol.test_connection import publish
from tests.server.process import broker_process


@pytest.fixture
def broker_settings() -> dict[str, Any]:
    return {"max_connections": 3, "max_message_bytes": 1000}


def test_a_message_above_the_limit_is_refused_before_all_of_it_has_arrived(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.publish("", "q", bytes(1000))
        channel.settle()
        channel.publish("", "q", bytes(1001))
        with pytest.raises(ClosedError, match="406"):
            channel.settle()


def test_no_more_connections_than_allowed(broker: TestBroker) -> None:
    clients = [Amqp(broker.port) for _ in range(3)]
    assert not can_connect(broker)
    clients.pop().close()
    eventually(lambda: can_connect(broker), "the place of the client that left")
    for client in clients:
        client.drop()


def can_connect(broker: TestBroker) -> bool:
    try:
        Amqp(broker.port).drop()
    except ConnectionError:
        return False
    return True


def test_a_client_that_does_not_log_in_is_disconnected() -> None:
    with running_broker(handshake_timeout_s=0.1) as broker, raw_socket(broker.port) as connection:
        assert is_closed(connection, b"AMQP")


def test_heartbeats_are_sent_and_their_absence_is_noticed() -> None:
    with running_broker() as broker, Amqp(broker.port, heartbeat=1) as amqp:
        amqp.wait_for_heartbeat()
        assert amqp.is_at_end()


def test_a_client_that_wants_no_heartbeats_gets_none() -> None:
    """It has received none by the time that another client has received two."""
    with running_broker() as broker, Amqp(broker.port, heartbeat=0) as without, Amqp(broker.port, heartbeat=1) as other:
        while other.protocol.heartbeats_received < 2:  # the broker sends four before it misses those of the client
            other.wait_for_heartbeat()
        without.channel()
        assert without.protocol.heartbeats_received == 0


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


def test_the_settings_of_a_file_apply_and_the_broker_stops_cleanly(tmp_path: Path) -> None:
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


def test_stopping_closes_connections_and_loses_nothing(tmp_path: Path) -> None:
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
        ("amqp_port = " + "9" * 5000, "is not a valid configuration file"),
        ("data = " + "[" * 100_000, "is not a valid configuration file"),
    ],
)
def test_the_error_of_an_invalid_configuration_names_the_setting(tmp_path: Path, text: str, expected: str) -> None:
    config = tmp_path / "holtmq.toml"
    config.write_text(text)
    with pytest.raises(RuntimeError, match=expected), broker_process(tmp_path / "b.db", "--config", str(config)):
        pass


def test_the_error_of_a_port_in_use_and_of_an_invalid_definitions_file_names_it(tmp_path: Path) -> None:
    definitions = tmp_path / "d.json"
    definitions.write_text('{"queues": [{"name": 5}]}')
    with (
        pytest.raises(RuntimeError, match=r"queues\[0\]"),
        broker_process(tmp_path / "b.db", "--definitions", str(definitions)),
    ):
        pass
    with broker_process(tmp_path / "b.db") as broker, pytest.raises(RuntimeError, match="in use"):
        broker_process(tmp_path / "c.db", "--amqp-port", str(broker.port)).__enter__()


def _leave_when_told(client: Amqp) -> None:
    with suppress(ClosedError):
        client.next_event(0)
    client.drop()


def test_a_shutdown_with_connected_clients_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holtmq"):
        with running_broker() as broker:
            reader = threading.Thread(target=_leave_when_told, args=(Amqp(broker.port),))
            reader.start()
        reader.join()
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "closing" in record.getMessage()]
    assert len(told) == 1
    assert told[0][0] == "INFO"
    assert "shutdown" in told[0][1]


def test_the_reply_text_of_the_immediate_flag_is_the_one_that_clients_look_for(broker: TestBroker) -> None:
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.publish("", "k", immediate=True)
        with pytest.raises(ClosedError) as refused:
            channel.settle()
    assert str(refused.value) == "connection closed: 540 NOT_IMPLEMENTED - immediate=true"


def test_a_closed_connection_is_read_to_its_end(broker: TestBroker) -> None:
    """Data that arrives after connection.close would make the kernel send a reset, and the client might miss close-ok."""
    with Amqp(broker.port) as amqp:
        amqp.channel()
        amqp.send(0, wire.ConnectionClose(200, "bye", 0, 0))
        for _ in range(100):
            amqp.socket.sendall(publish(1, "q", bytes(10_000)))
        amqp.expect(0, wire.ConnectionCloseOk)
        assert amqp.socket.recv(1) == b""  # the end, and no reset
        amqp.socket.sendall(bytes(1000))
        amqp.drop()
