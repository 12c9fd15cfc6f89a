"""The fixtures of the pytest plugin, in a test suite outside the project."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from holtmq.testing import TestBroker, running_broker
from tests.amqp_client import Amqp

TIMEOUT_S = 120

SUITE = """
import pika

PORTS = []


def queue_names(broker, *names):
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        return [channel.queue_declare(name, passive=True).method.queue for name in names]


def test_the_first_test_declares_a_queue(holtmq_broker_session):
    PORTS.append(holtmq_broker_session.port)
    with pika.BlockingConnection(pika.URLParameters(holtmq_broker_session.url)) as connection:
        connection.channel().queue_declare("shared")


def test_the_second_test_finds_it(holtmq_broker_session):
    assert [holtmq_broker_session.port] == PORTS
    assert queue_names(holtmq_broker_session, "shared") == ["shared"]


def test_the_broker_of_one_test_is_another(holtmq_broker, holtmq_broker_session):
    assert holtmq_broker.port != holtmq_broker_session.port
"""


def test_the_session_fixture_is_one_broker_for_all_tests(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert "3 passed" in done.stdout, done.stdout


def test_the_fixture_is_a_broker_for_one_test(holtmq_broker: TestBroker) -> None:
    with Amqp(holtmq_broker.port) as amqp:
        assert amqp.channel().declare("q").queue == "q"
    assert holtmq_broker.url == f"amqp://guest:guest@127.0.0.1:{holtmq_broker.port}/%2F"
    assert (holtmq_broker.data, holtmq_broker.http_url) == (":memory:", None)


def test_the_management_api_is_started_on_request(tmp_path: Path) -> None:
    with running_broker(tmp_path / "b.db", http_port=0) as broker:
        assert broker.http_url is not None
        login = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
        with urlopen(Request(f"{broker.http_url}/api/whoami", headers=login), timeout=TIMEOUT_S) as answer:
            assert b'"guest"' in answer.read()
    assert (tmp_path / "b.db").exists()
