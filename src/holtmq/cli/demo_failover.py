"""The part of the demo that needs PostgreSQL: a server of its own, a broker with a standby, and a kill -9."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from holtmq.cli.output import show
from holtmq.client.address import Address
from holtmq.client.blocking_connection import BlockingConnection
from holtmq.client.publisher import Outgoing, Publisher
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties

SENT = 1_000
SERVER_USER = "postgres"
"""PostgreSQL refuses to run as root."""
TIMEOUT_S = 30
OPTIONS = "-c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c port={}"


def survive_a_kill() -> int:
    """Show that confirmed messages survive the active broker. Return their number, 0 if PostgreSQL is not there."""
    programs = find_programs()
    if isinstance(programs, str):
        show(f"Skipped: {programs}")
        return 0
    with ExitStack() as stack:
        url = stack.enter_context(_database(programs))
        ports = [_free_port(), _free_port()]
        active = _Broker(stack, url, ports[0])
        active.wait_for("ready")
        standby = _Broker(stack, url, ports[1])
        standby.wait_for("standby")
        publisher = Publisher(lambda: BlockingConnection(Address("127.0.0.1", ports[0]), name="the demo"))
        with BlockingConnection(Address("127.0.0.1", ports[0])) as connection:
            connection.call(wire.QueueDeclare(0, "kept", False, True, False, False, False, {}), wire.QueueDeclareOk)
        raw = encode_properties({"delivery_mode": 2})
        publisher.publish(Outgoing("", "kept", raw, b"order %d" % number) for number in range(SENT))
        publisher.flush()
        publisher.close()
        active.process.kill()
        started = time.perf_counter()
        standby.wait_for("ready")
        elapsed_s = time.perf_counter() - started
        with BlockingConnection(Address("127.0.0.1", ports[1])) as connection:
            declared = connection.call(wire.QueueDeclare(0, "kept", True, False, False, False, False, {}), wire.QueueDeclareOk)
        show(
            f"{SENT:,} messages confirmed, kill -9 of the active broker, the standby ready after {elapsed_s:.2f} s: "
            f"it has {declared.message_count:,}"
        )
    return declared.message_count


def find_programs() -> Path | str:
    """Return the folder of PostgreSQL's programs, or why there is no server to start."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'holtmq[postgres]')"
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: path.parent.parent.name)
    on_path = shutil.which("initdb")
    if not (found or on_path):
        return "PostgreSQL is not installed (its program initdb was not found)"
    if os.geteuid() == 0 and SERVER_USER not in {user.pw_name for user in pwd.getpwall()}:
        return f"PostgreSQL does not run as root, and there is no user {SERVER_USER}"
    return found[-1].parent if found else Path(on_path or "").parent


@contextmanager
def _database(programs: Path) -> Iterator[str]:
    """Run a server with an empty database while the block runs."""
    with TemporaryDirectory(prefix="holtmq-demo-", ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, SERVER_USER)
        data, port = f"--pgdata={folder}/data", _free_port()
        _run(
            programs / "initdb",
            data,
            "--auth=trust",
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "--username=demo",
            at=folder,
        )
        options = f"--options={OPTIONS.format(port)}"
        _run(programs / "pg_ctl", data, "--wait", f"--log={folder}/log", options, "start", at=folder)
        try:
            yield f"postgresql://demo@127.0.0.1:{port}/postgres?schema=demo"
        finally:
            _run(programs / "pg_ctl", data, "--wait", "--mode=immediate", "stop", at=folder)


def _run(program: Path, *arguments: str, at: str) -> None:
    user = SERVER_USER if os.geteuid() == 0 else None
    quiet = subprocess.DEVNULL
    subprocess.run([program, *arguments], user=user, cwd=at, stdout=quiet, stderr=quiet, timeout=TIMEOUT_S, check=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class _Broker:
    """`holtmq serve --standby`, which ends with the demo."""

    def __init__(self, stack: ExitStack, url: str, port: int) -> None:
        command = [sys.executable, "-m", "holtmq", "serve", "--standby", "--data", url]
        command += ["--amqp-port", str(port), "--http-port", "-1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        stack.callback(self._end)
        assert self.process.stdout is not None
        self._output: IO[str] = self.process.stdout

    def wait_for(self, role: str) -> None:
        for line in self._output:
            if role in line.partition(":")[0]:
                return
        raise RuntimeError("a broker of the demo ended by itself")

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()
