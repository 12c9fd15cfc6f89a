"""Two brokers on one schema of PostgreSQL, each behind a proxy of its own: one is active, and the other is its standby."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deadline import eventually
from tests.peers.postgres import Postgres
from tests.peers.tcp_proxy import TcpProxy
from tests.ports import port_of, reserve_port


class Contender:
    """`holtmq serve --standby`, which is active, a standby, or not running."""

    def __init__(self, url: str, log: Path, proxy: TcpProxy, *options: str, module: str = "holtmq") -> None:
        self.proxy = proxy
        self.log = log
        self._url = url
        self._options = options
        self._module = module
        self._reservations = [reserve_port(), reserve_port()]
        self.port, self.http_port = map(port_of, self._reservations)
        self.lines: list[str] = []
        self.start()

    def start(self) -> None:
        ports = ("--amqp-port", str(self.port), "--http-port", str(self.http_port))
        command = [sys.executable, "-m", self._module, "serve", "--standby", "--data", self._url, *ports, *self._options]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.lines.append(line)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def is_active(self) -> bool:
        return self.is_running and bool(self.lines) and self.lines[-1].startswith("HoltMQ is ready on ")

    @property
    def is_standby(self) -> bool:
        return self.is_running and bool(self.lines) and self.lines[-1].startswith("HoltMQ is a standby")

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def terminate(self) -> int:
        self.process.terminate()
        self._end()
        return self.process.returncode

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def _end(self) -> None:
        self.process.wait()
        self._reader.join()
        self.lines.append("ended")

    def close(self) -> None:
        if self.is_running:
            self.thaw()
            self.kill()
        for reservation in self._reservations:
            reservation.close()
        self.proxy.close()


class Pair:
    def __init__(self, server: Postgres, folder: Path, *options: str, module: str = "holtmq") -> None:
        self.log = folder / "log.txt"
        self.schema_url = server.url()
        self.brokers: list[Contender] = []
        for _ in range(2):
            proxy = TcpProxy(server.port)
            url = self.schema_url.replace(f":{server.port}/", f":{proxy.port}/")
            self.brokers.append(Contender(url, self.log, proxy, *options, module=module))
            eventually(lambda: self.brokers[-1].is_active or self.brokers[-1].is_standby, "a broker to start")
        self.active = self._find()

    def _find(self) -> Contender:
        (active,) = eventually(lambda: [broker for broker in self.brokers if broker.is_active], "a broker to take over")
        return active

    @property
    def other(self) -> Contender:
        return next(broker for broker in self.brokers if broker is not self.active)

    @property
    def port(self) -> int:
        return self.active.port

    @property
    def process(self) -> subprocess.Popen[str]:
        return self.active.process

    def take_over(self) -> Contender:
        """Wait until the other broker is active. Return the one before."""
        before, self.active = self.active, self.other
        eventually(lambda: self.active.is_active, "the standby to take over")
        return before

    def start(self) -> None:
        """Start what has ended, as a standby, and find the active broker."""
        for broker in self.brokers:
            if not broker.is_running:
                broker.start()
        eventually(
            lambda: sorted((broker.is_active, broker.is_standby) for broker in self.brokers) == [(False, True), (True, False)],
            "one active broker and one standby",
        )
        self.active = self._find()

    def close(self) -> None:
        for broker in self.brokers:
            broker.close()


@contextmanager
def pair_of_brokers(server: Postgres, folder: Path, *options: str) -> Iterator[Pair]:
    pair = Pair(server, folder, *options)
    try:
        yield pair
    finally:
        pair.close()
