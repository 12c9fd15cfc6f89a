"""RabbitMQ as the reference peer: a throw-away node on loopback that its user starts and stops."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.peers.peer import RABBITMQ
from tests.ports import port_of, reserve_port

QUICK_SAMPLES = (
    "collect_statistics_interval = 1000",
    *(f"management.sample_retention_policies.{each}.minute = 1" for each in ("global", "basic", "detailed")),
)
"""RabbitMQ lists connections and channels after the next sample, which it takes every 5 s by default."""
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
CONSISTENT_HASH_PLUGIN = "rabbitmq_consistent_hash_exchange"


@dataclass(frozen=True, slots=True)
class RabbitMQ:
    """A running node: its ports and its control command."""

    amqp_port: int
    http_port: int
    """The port of the management plugin, if that plugin is enabled."""
    version: str
    sbin: Path
    environment: dict[str, str]
    pid: int
    """The process that is the parent of the node's own processes."""

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/%2F"

    def ctl(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.sbin / "rabbitmqctl", "-n", self.environment["RABBITMQ_NODENAME"], "-q", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def evaluate(self, *expressions: str) -> str:
        """Evaluate Erlang expressions in the node, and return the value of the last one.

        This takes some milliseconds. `ctl` starts an Erlang of its own, which takes a second.
        """
        done = subprocess.run(
            ["erl_call", "-n", self.environment["RABBITMQ_NODENAME"], "-c", self._cookie, "-e"],
            input=f"{', '.join(expressions)}.\n",
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )
        found = re.fullmatch(r"\{ok, (.*)\}", done.stdout, re.DOTALL)
        if found is None:
            raise RuntimeError(f"erl_call: {done.stderr.strip() or done.stdout.strip()}\n{expressions}")
        return found[1]

    def clear(self) -> None:
        """Remove all vhosts, users and parameters, and create the vhost and the permissions of the default user again."""
        users, parameters, guest = "rabbit_auth_backend_internal", "rabbit_runtime_parameters", binary("guest")
        self.evaluate(
            f"[ok = rabbit_vhost:delete(Name, {guest}) || Name <- rabbit_vhost:list_names()]",
            f"[ok = {users}:delete_user(Name, {guest}) || [{{user, Name}} | _] <- {users}:list_users(), Name =/= {guest}]",
            f"[{parameters}:clear_global(Name, {guest}) || [{{name, Name}} | _] <- {parameters}:list_global(), "
            "not lists:member(Name, [cluster_name, internal_cluster_id])]",
            f"ok = rabbit_vhost:add({binary('/')}, {guest})",
            f"ok = {users}:set_permissions({guest}, {binary('/')}, {', '.join([binary('.*')] * 3)}, {guest})",
        )

    @property
    def _cookie(self) -> str:
        return (Path(self.environment["HOME"]) / ".erlang.cookie").read_text()


def binary(text: str) -> str:
    """Return a text as an Erlang binary."""
    return f"<<{','.join(map(str, text.encode()))}>>"


@contextmanager
def running_rabbitmq(*plugins: str, settings: Sequence[str] = ()) -> Iterator[RabbitMQ]:
    """Start a node with these plugins and further lines of rabbitmq.conf, and stop it at the end.

    Raise MissingPeerError if RabbitMQ is not installed.
    """
    server = RABBITMQ.program()
    with tempfile.TemporaryDirectory(prefix="holtmq-rabbitmq-", ignore_cleanup_errors=True) as folder, ExitStack() as ports:
        epmd_port, dist_port, amqp_port, http_port = (port_of(ports.enter_context(reserve_port())) for _ in range(4))
        _configure(Path(folder), amqp_port, http_port, plugins, settings)
        environment = _environment(Path(folder), epmd_port, dist_port, amqp_port)
        # The node would start an epmd of its own that outlives it; this one is ours to stop.
        epmd = subprocess.Popen(["epmd", "-port", str(epmd_port), "-address", "127.0.0.1"], env=environment)
        node = subprocess.Popen(
            [server], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )
        try:
            assert node.stdout is not None
            version = _wait_until_started(node.stdout)
            yield RabbitMQ(amqp_port, http_port, version, server.parent, environment, node.pid)
        finally:
            _stop(node)
            _stop(epmd)


def _configure(folder: Path, amqp_port: int, http_port: int, plugins: tuple[str, ...], more: Sequence[str]) -> None:
    settings = [*more, f"listeners.tcp.1 = 127.0.0.1:{amqp_port}", "log.console = false", "log.file.level = warning"]
    if "rabbitmq_management" in plugins:
        settings += [f"management.tcp.port = {http_port}", "management.tcp.ip = 127.0.0.1"]
    (folder / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
    (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")


def _environment(folder: Path, epmd_port: int, dist_port: int, amqp_port: int) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"holtmq-peer-{amqp_port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(amqp_port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def _wait_until_started(output: IO[str]) -> str:
    version, seen = "unknown", []
    for line in output:
        seen.append(line)
        if "RabbitMQ " in line and version == "unknown":
            version = line.split("RabbitMQ ", 1)[1].split()[0]
        if "completed with" in line:
            return version
    raise RuntimeError("RabbitMQ did not start:\n" + "".join(seen[-30:]))


def _stop(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
