"""The brokers that a benchmark compares, each a process on loopback with its data in a folder of its own."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from holtmq import __version__
from holtmq.client.address import Address
from tests.peers.peer import RABBITMQ
from tests.peers.rabbitmq import running_rabbitmq
from tests.server.process import BrokerProcess

LAVINMQ = "LAVINMQ"
"""Environment variable with the path of LavinMQ's program."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 120.0


class Broker(ABC):
    """A broker that can be started, stopped and looked at."""

    name: str
    version: str
    can_restart = True
    """Whether it can be started again with the data that it had."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="holtmq-bench-"))
        self.port = 0
        self.pid = 0

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.port)

    @property
    def data(self) -> Path:
        return self.folder

    @abstractmethod
    def start(self) -> None:
        """Start the broker and wait until it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the broker and wait until it has written its data."""

    def close(self) -> None:
        """Stop the broker for good."""
        self.stop()

    def cpu_s(self) -> float:
        return cpu_s(self.pid)

    def memory_mib(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in process_tree(self.pid))
        return pages * resource.getpagesize() / 2**20

    def disk_mib(self) -> float:
        """Return the space that its files take on the disk."""
        return sum(path.stat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file()) / 2**20


class HoltMQ(Broker):
    name = "HoltMQ"
    version = __version__
    _process: BrokerProcess | None = None

    def start(self) -> None:
        if self._process is None:
            self._process = BrokerProcess(self.folder / "b.db", "--log-level", "error")
        else:
            self._process.start()
        self.port, self.pid = self._process.port, self._process.process.pid

    def stop(self) -> None:
        assert self._process is not None
        self._process.stop()

    def close(self) -> None:
        super().close()
        assert self._process is not None
        self._process.close()


class RabbitMQ(Broker):
    name = "RabbitMQ"
    can_restart = False

    def __init__(self) -> None:
        super().__init__()
        self._running = ExitStack()

    @property
    def data(self) -> Path:
        return self._data

    def start(self) -> None:
        node = self._running.enter_context(running_rabbitmq())
        self.port, self.pid, self.version = node.amqp_port, node.pid, node.version
        self._data = Path(node.environment["RABBITMQ_MNESIA_BASE"])

    def stop(self) -> None:
        self._running.close()


class LavinMQ(Broker):
    name = "LavinMQ"

    def __init__(self) -> None:
        super().__init__()
        self._program = os.environ[LAVINMQ]
        shown = subprocess.run([self._program, "--version"], capture_output=True, text=True, check=True).stdout
        self.version = shown.split()[-1]

    def start(self) -> None:
        self.port, clustering = self.port or _free_port(), _free_port()
        off = [f"--{name}-port=-1" for name in ("http", "mqtt", "mqtts", "metrics-http")]
        options = [f"--clustering-port={clustering}", f"--control-unix-path={self.folder}/control.sock", *off]
        command = [self._program, "-D", str(self.folder / "data"), "-b", "127.0.0.1", "-p", str(self.port), *options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.pid = self._process.pid
        _wait_for_port(self.port)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(STOP_TIMEOUT_S)


KINDS: Sequence[type[Broker]] = (HoltMQ, RabbitMQ, LavinMQ)


def found_kinds() -> list[type[Broker]]:
    """Return HoltMQ and the peers that are installed."""
    has = {RabbitMQ: RABBITMQ.is_installed, LavinMQ: bool(os.environ.get(LAVINMQ))}
    return [kind for kind in KINDS if has.get(kind, True)]


@contextmanager
def running(kind: type[Broker]) -> Iterator[Broker]:
    """Start a broker without data, and remove it at the end."""
    broker = kind()
    try:
        broker.start()
        try:
            yield broker
        finally:
            broker.close()
    finally:
        shutil.rmtree(broker.folder, ignore_errors=True)


@contextmanager
def alone(brokers: Sequence[Broker], busy: Broker) -> Iterator[None]:
    """Halt all brokers but one while the block runs, because Erlang's schedulers keep spinning for a while when idle."""
    halted = [pid for broker in brokers if broker is not busy for pid in process_tree(broker.pid)]
    try:
        _signal(halted, signal.SIGSTOP)
        yield
    finally:
        _signal(halted, signal.SIGCONT)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def process_tree(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents = {int(path.name): int(_stat(int(path.name))[1]) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def cpu_s(pid: int) -> float:
    """Return the processor time that a process and its descendants have used, in seconds."""
    ticks = sum(sum(map(int, _stat(each)[11:15])) for each in process_tree(pid))
    return ticks / os.sysconf("SC_CLK_TCK")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def _wait_for_port(port: int) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(f"no broker accepts connections on port {port} after {START_TIMEOUT_S:g} s") from error
            time.sleep(0.005)
        else:
            return


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's status after its name, which may contain spaces."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return ["Z"] + ["0"] * 20
