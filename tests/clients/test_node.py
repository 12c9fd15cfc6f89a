"""amqplib on Node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.server.process import BrokerProcess

NODE = Path(__file__).with_name("node")
INSTALL_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def amqplib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts and, pinned, amqplib beside them."""
    if shutil.which("npm") is None:
        reason = "Node.js with npm is not installed here; .ci/run has it"
        if os.environ.get("HOLTMQ_REQUIRE_PEERS"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("node")
    for file in NODE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(command, cwd=folder, check=True, timeout=INSTALL_TIMEOUT_S, capture_output=True)
    return folder


def url(broker: BrokerProcess) -> str:
    return f"amqp://guest:guest@127.0.0.1:{broker.port}"


def test_a_session(broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "session.mjs", url(broker)]
    done = subprocess.run(command, cwd=amqplib, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["returned"] == ["lost"]
    assert sorted(seen["consumed"]) == sorted([*([str(n), False, n] for n in range(5)), ["1", True, 1]])
    assert seen["dead"] == ["3", "rejected"]
    assert seen["error"] == 404


def test_coming_back_after_the_broker_was_killed(broker: BrokerProcess, amqplib: Path) -> None:
    command = ["node", "reconnect.mjs", url(broker)]
    with subprocess.Popen(command, cwd=amqplib, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == "ready\n"
        broker.kill()
        assert node.stdout.readline() == "lost\n"
        broker.start()
        assert node.stdout.readline() == "kept\n"
        assert node.wait(20) == 0
