"""A machine without the peers: tests that need one are skipped, and the run still succeeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.peers.peer import HIDE, PEERS, REQUIRE

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240
USERS = {
    "RabbitMQ": "tests/topology/test_definitions.py",
    "rabbitmqadmin": "tests/management/test_tools.py",
    "amqp-tools": "tests/clients/test_c_tools.py",
    "npm": "tests/clients/test_node.py",
    "Bunny": "tests/clients/test_ruby.py",
    "Chromium": "tests/management/test_pages.py",
    "PostgreSQL": "tests/embedded/test_batches.py",
    "gcc": "tests/faults/test_shim.py",
}
"""A module that needs each peer. The same rule skips all others, and no module looks up a peer when it is imported."""


def run_peer_tests(*selection: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the tests that need a peer, in a process where none is installed."""
    environment = {name: value for name, value in os.environ.items() if name != REQUIRE and not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "peer", "-p", "no:cacheprovider", *selection]
    environment |= {HIDE: "1", **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)


def test_without_peers_every_test_that_needs_one_is_skipped() -> None:
    done = run_peer_tests(*USERS.values())
    assert done.returncode == 0, done.stdout[-5000:]
    closing, counts = done.stdout.splitlines()[-2:]
    assert re.match(r"\d+ skipped, \d+ deselected", counts), counts
    assert "`make peers`" in closing
    assert [peer.name for peer in PEERS if peer.name not in closing] == []
    assert list(USERS) == [peer.name for peer in PEERS]


def test_a_missing_peer_is_a_failure_where_peers_are_required() -> None:
    done = run_peer_tests(USERS["amqp-tools"], "--exitfirst", **{REQUIRE: "1"})
    assert done.returncode == 1
    assert "amqp-tools is not installed" in done.stdout


def test_no_test_starts_a_peer_without_looking_it_up_in_the_table() -> None:
    """Such a test would pass where the program is installed, and fail on a machine without it."""
    program = re.compile(r"""["'](rabbitmq-server|rabbitmqadmin|amqp-\w+|npm|ruby|chromium)["']""")
    sources = [path for path in (ROOT / "tests").rglob("*.py") if path.parent != Path(__file__).parent]
    found = {str(path.relative_to(ROOT)): program.findall(path.read_text()) for path in sources}
    assert {path: names for path, names in found.items() if names} == {}
