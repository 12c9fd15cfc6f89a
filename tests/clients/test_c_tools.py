"""The command-line tools of the C client (Debian: amqp-tools)."""

from __future__ import annotations

import subprocess

import pytest

from tests.deadline import PATIENCE_S
from tests.peers.peer import AMQP_TOOLS
from tests.server.process import BrokerProcess

pytestmark = pytest.mark.peer(AMQP_TOOLS)


def amqp(tool: str, broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    url = f"--url=amqp://guest:guest@127.0.0.1:{broker.port}"
    program = AMQP_TOOLS.program().with_name(f"amqp-{tool}")
    return subprocess.run([program, url, *arguments], timeout=PATIENCE_S, capture_output=True, text=True)


def test_a_message_goes_through_a_queue(killable_broker: BrokerProcess) -> None:
    assert amqp("declare-queue", killable_broker, "--queue=work", "--durable").stdout.strip() == "work"
    assert amqp("publish", killable_broker, "--routing-key=work", "--persistent", "--body=hello").returncode == 0
    killable_broker.stop()
    killable_broker.start()
    assert amqp("get", killable_broker, "--queue=work").stdout == "hello"
    assert amqp("get", killable_broker, "--queue=work").returncode != 0
    assert amqp("delete-queue", killable_broker, "--queue=work").returncode == 0
    missing = amqp("get", killable_broker, "--queue=work")
    assert "404" in missing.stderr


def test_a_consumer_passes_messages_to_a_command(killable_broker: BrokerProcess) -> None:
    amqp("declare-queue", killable_broker, "--queue=work")
    for body in ("one", "two", "three"):
        amqp("publish", killable_broker, "--routing-key=work", f"--body={body}")
    consumed = amqp("consume", killable_broker, "--queue=work", "--count=3", "cat")
    assert consumed.stdout == "onetwothree"
    amqp("publish", killable_broker, "--exchange=no-such-exchange", "--routing-key=work", "--body=x")
    assert amqp("get", killable_broker, "--queue=work").stdout == ""


def test_a_message_stays_if_the_command_fails(killable_broker: BrokerProcess) -> None:
    amqp("declare-queue", killable_broker, "--queue=work")
    amqp("publish", killable_broker, "--routing-key=work", "--body=again")
    amqp("consume", killable_broker, "--queue=work", "--count=1", "false")
    assert amqp("get", killable_broker, "--queue=work").stdout == "again"
