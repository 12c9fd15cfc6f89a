"""The core needs nothing but Python: `import holtmq` works without any installed package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def run_without_packages(program: str) -> str:
    """Run a program whose interpreter does not see site-packages."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-S", "-W", "error", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_installed_packages_are_out_of_sight() -> None:
    found = run_without_packages("import importlib.util; print(importlib.util.find_spec('rich'))")
    assert found == "None\n"


def test_the_embedded_queue_works_with_the_standard_library_alone() -> None:
    program = """
import holtmq
with holtmq.open(":memory:") as mq:
    mq.declare_exchange("orders", "topic")
    queue = mq.declare_queue("food")
    mq.bind("food", "orders", "orders.#")
    mq.publish("bread", "orders.food", exchange="orders")
    message = queue.pop()
    print(message.text)
    message.ack()
"""
    assert run_without_packages(program) == "bread\n"


def test_routes_are_explained_with_the_standard_library_alone() -> None:
    program = """
import holtmq.routing
from holtmq import Binding, Exchange, Queue, Topology
topology = Topology((Exchange("x", "topic"),), (Queue("q"),), (Binding("x", "q", "a.#"),))
print(holtmq.routing.Router(topology).explain("x", "a.b"))
"""
    assert run_without_packages(program).endswith("\n1 queue: q\n")


def test_a_policy_names_the_package_that_it_needs() -> None:
    program = """
from holtmq import HoltmqError, Topology
from holtmq.routing import Router
from holtmq.topology import Policy
try:
    Router(Topology(policies=(Policy("p", "^q", {"max-length": 1}),)))
except HoltmqError as error:
    print(error)
"""
    assert "pip install google-re2" in run_without_packages(program)


def test_a_database_names_the_package_that_it_needs() -> None:
    program = """
import holtmq
from holtmq.store.opening import open_journal, watch_owner
for use in (holtmq.open, lambda url: open_journal(url, "full", "amqp://here"), watch_owner):
    try:
        use("postgresql://u:s3cret@127.0.0.1/db")
    except holtmq.HoltmqError as error:
        print(error)
"""
    said = run_without_packages(program)
    assert (
        said.splitlines()
        == ["a PostgreSQL store needs psycopg (No module named 'psycopg'): pip install 'holtmq[postgres]'"] * 3
    )


def test_the_core_imports_no_installed_package() -> None:
    program = """
import sys, holtmq, holtmq.routing.check, holtmq.routing.draft, holtmq.broker.broker, holtmq.client.publisher, holtmq.config
foreign = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"holtmq", "__main__"}
print(sorted(name for name in foreign if not name.startswith("_")))
"""
    assert run_without_packages(program) == "[]\n"
