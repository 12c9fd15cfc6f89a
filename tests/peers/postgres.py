"""PostgreSQL as a store: a throw-away server on loopback, which its user starts, stops, kills and starts again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import psycopg

from tests.peers.peer import POSTGRES
from tests.ports import port_of, reserve_port

USER = "holtmq"
SYSTEM_USER = "postgres"
"""The server refuses to run as root."""
QUICK = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB", "max_connections": "100"}
TIMEOUT_S = 60
_schemas = count(1)


class Postgres:
    """A server with its data in a folder."""

    def __init__(
        self, folder: Path, port: int, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.port = port
        self._settings = settings
        self._environment = environment

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def url(self, schema: str | None = None, port: int | None = None) -> str:
        """Return the URL of a schema, by default of one that no other test has."""
        name = schema or f"test_{os.getpid()}_{next(_schemas)}"
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/postgres?schema={name}"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(f"postgresql://{USER}@127.0.0.1:{self.port}/postgres", autocommit=True)

    def create(self) -> None:
        self._run("initdb", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", f"--username={USER}")

    def start(self) -> None:
        defaults = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": str(self.port)}
        options = " ".join(f"-c {name}='{value}'" for name, value in {**defaults, **self._settings}.items())
        self._run("pg_ctl", "--wait", f"--log={self.folder / 'log'}", f"--options={options}", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, if it runs. It closes all connections at once. `immediate` leaves the data as a crash does."""
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "--wait", f"--mode={mode}", "stop")

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "--wait", "promote")

    def kill(self) -> None:
        """Kill the server and all of its processes with SIGKILL, as a crash of the machine would."""
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        children = subprocess.run(["ps", "--ppid", str(main), "-o", "pid="], capture_output=True, text=True, check=False)
        for pid in [main, *map(int, children.stdout.split())]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for_end(main)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def follow(self, primary: Postgres, name: str) -> None:
        """Make a standby of a running primary."""
        self._run("pg_basebackup", "--wal-method=stream", "--checkpoint=fast", "--no-sync", "--write-recovery-conf",
                  f"--dbname=host=127.0.0.1 port={primary.port} user={USER} application_name={name}")  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(POSTGRES.program().parent / program), f"--pgdata={self.data}", *arguments]
        as_user = {"user": SYSTEM_USER, "group": SYSTEM_USER, "extra_groups": []} if os.geteuid() == 0 else {}
        with (self.folder / "output").open("ab") as output:
            subprocess.run(
                command, stdout=output, stderr=output, cwd=self.folder, timeout=TIMEOUT_S, check=True,
                env=self._environment, **as_user,  # type: ignore[call-overload]
            )  # fmt: skip


def wait_for_end(pid: int) -> None:
    """Wait until a killed process that is not a child of ours has ended."""
    from tests.deadline import eventually

    eventually(
        lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text(), "the server to end"
    )


@contextmanager
def postgres_folder() -> Iterator[Path]:
    """A folder that the user of the server may use, outside of pytest's, whose parents only root may enter."""
    folder = Path(tempfile.mkdtemp(prefix="holtmq-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, SYSTEM_USER, SYSTEM_USER)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_postgres(settings: Mapping[str, str] = QUICK) -> Iterator[Postgres]:
    """A server with a new database while the block runs."""
    POSTGRES.program()
    with postgres_folder() as folder, running_postgres_in(folder, settings) as server:
        yield server


@contextmanager
def running_postgres_in(
    folder: Path, settings: Mapping[str, str] = QUICK, environment: Mapping[str, str] | None = None
) -> Iterator[Postgres]:
    """The same in a folder from `postgres_folder`, with environment variables for the server."""
    with reserve_port() as reserved:
        server = Postgres(folder, port_of(reserved), settings, environment)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")  # nobody needs the data any more
