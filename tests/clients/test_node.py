"""amqplib on Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deadline import PATIENCE_S
from tests.peers.peer import NPM, MissingPeerError
from tests.server.process import BrokerProcess

NODE = Path(__file__).with_name("node")
INSTALL_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def amqplib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts and, beside them, the pinned version of amqplib."""
    folder = tmp_path_factory.mktemp("node")
    for file in NODE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    command = [str(NPM.program()), "install", "--no-package-lock", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, timeout=INSTALL_TIMEOUT_S, capture_output=True, text=True)
    if done.returncode:
        raise MissingPeerError("amqplib", f"npm could not install amqplib: {done.stderr.strip()}")
    return folder


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}"


def test_amqplib_publishes_consumes_and_sees_errors(killable_broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "session.mjs", url(killable_broker)]
    done = subprocess.run(command, cwd=amqplib, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["returned"] == ["lost"]
    assert sorted(seen["consumed"]) == sorted([*([str(n), False, n] for n in range(5)), ["1", True, 1]])
    assert seen["dead"] == ["3", "rejected"]
    assert seen["error"] == 404


def test_amqplib_reconnects_after_the_broker_was_killed(killable_broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "reconnect.mjs", url(killable_broker)]
    with subprocess.Popen(command, cwd=amqplib, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        killable_broker.kill()
        assert node.stdout.readline() == "lost\n"
        killable_broker.start()
        assert node.stdout.readline() == "kept\n"
        assert node.wait(PATIENCE_S) == 0


def test_amqplib_settles_close_after_it_has_published(killable_broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "close.mjs", url(killable_broker)]
    done = subprocess.run(command, cwd=amqplib, timeout=PATIENCE_S, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr


def test_amqplib_reads_a_stream(killable_broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "stream.mjs", url(killable_broker)]
    done = subprocess.run(command, cwd=amqplib, timeout=PATIENCE_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    everything = [[number, str(number)] for number in range(5)]
    assert json.loads(done.stdout) == [everything, everything[3:]]
