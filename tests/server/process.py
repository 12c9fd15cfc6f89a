"""A broker in a process of its own, which a test can kill."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.amqp_client import Amqp
from tests.ports import port_of, reserve_port

STOP_TIMEOUT_S = 60.0


class BrokerProcess:
    """`holtmq serve`. It can be killed and started again on the same port, which nobody else gets meanwhile."""

    def __init__(self, data: Path | str, *options: str, open_files: int | None = None) -> None:
        self.data = data
        self._open_files = open_files
        self._options = options
        self._reservation = reserve_port()
        self.port = port_of(self._reservation)
        try:
            self.start()
        except BaseException:
            self._reservation.close()
            raise

    def start(self) -> None:
        command = [
            sys.executable,
            "-m",
            "holtmq",
            "serve",
            "--data",
            str(self.data),
            "--amqp-port",
            str(self.port),
            "--http-port",
            "-1",
            *self._options,
        ]
        if self._open_files is not None:
            command = ["sh", "-c", f'ulimit -n {self._open_files} && exec "$@"', "sh", *command]
        self.process = self.spawn(command)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"amqp://127\.0\.0\.1:(\d+)", line)
        if found is None:
            self.process.kill()
            _, errors = self.process.communicate()
            raise RuntimeError(f"the broker did not start: {line} {errors}")
        self.ready_line = line
        self.port = int(found.group(1))

    @property
    def http_port(self) -> int:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.ready_line)
        assert found is not None
        return int(found.group(1))

    def spawn(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Stop the broker with SIGTERM. Return its exit code and its log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=STOP_TIMEOUT_S)
        return self.process.returncode, log

    def close(self) -> None:
        """Kill the process if it runs, and give up the port."""
        if self.process.poll() is None:
            self.kill()
        self._reservation.close()

    def stop_while(self, amqp: Amqp) -> tuple[int, str]:
        """Stop the broker after its client has disconnected, which it would wait for."""
        amqp.drop()
        return self.stop()


@contextmanager
def broker_process(data: Path | str, *options: str, open_files: int | None = None) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(data, *options, open_files=open_files)
    try:
        yield broker
    finally:
        broker.close()
