"""Bunny, the AMQP client for Ruby."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.deadline import PATIENCE_S
from tests.peers.peer import BUNNY
from tests.server.process import BrokerProcess

pytestmark = pytest.mark.peer(BUNNY)

SCRIPT = Path(__file__).parent / "ruby/stream.rb"


def test_bunny_publishes_to_a_stream_and_reads_it_from_its_start_an_offset_and_a_time(killable_broker: BrokerProcess) -> None:
    command = [str(BUNNY.program()), str(SCRIPT), f"amqp://guest:guest@127.0.0.1:{killable_broker.port}"]
    done = subprocess.run(command, timeout=PATIENCE_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    everything = [[number, str(number)] for number in range(5)]
    assert json.loads(done.stdout) == [everything, everything[3:], everything]
