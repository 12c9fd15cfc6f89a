"""How long an operation makes other clients wait: python -m benchmarks.stalls [--queues 40000] [--data URL] [--only WORD …]

A broker has one vhost with 40,000 queues and 80,000 bindings. While each operation runs, a probe in a process of its own
fetches from an empty queue over and over, a millisecond apart. The longest round trip of the probe is what an operation cost
everybody else. It includes what other processes on the machine take from the broker; the longest turn, which is the processor
time of the event loop's thread between two of its ticks (benchmarks/ticking.py), does not. Prints a table for
benchmarks/README.md; its first row is the probe without any operation.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.management import fetch
from benchmarks.ticking import Longest
from holtmq.client.address import Address
from holtmq.client.blocking_connection import CHANNEL, BlockingConnection
from holtmq.client.publisher import Outgoing, Publisher
from holtmq.errors import HoltmqError
from holtmq.table import EMPTY_TABLE, FieldValue
from holtmq.wire import methods as wire
from holtmq.wire.content import encode_properties, make_content
from holtmq.wire.frames import method_frame
from holtmq.wire.methods import Method

PROBED = "probed"
QUEUE = "queue-{:05}"
PAUSE_S = 0.001
SETTLED_S = 0.05
"""Time for the broker to tick once more."""
IDLE_S = 10.0
MANY = 10_000
"""Messages of the operations on messages."""
BIG_BYTES = 500 * 1024 * 1024
BIG_BODY = 64 * 1024
MEMORY_BYTES = 2 * 1024**3
"""Memory limit of the broker. Half of it is for the topology."""
OWN = 3_000
"""Queues of the clients whose queues are deleted with the connection."""
CONNECTIONS = 800
"""Connections of the user who is deleted."""
EXPIRING = 100_000
EXPIRY_MS = 30_000
DEAD_LETTERING: Mapping[str, FieldValue] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE.format(1)}
PERSISTENT = encode_properties({"delivery_mode": 2})
TRANSIENT = encode_properties({})
V = "%2F"


class Probe:
    """A client in a process of its own that measures round trips between `start` and `stop`."""

    def __init__(self, address: str, turn: Longest) -> None:
        self.turn = turn
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_probe, args=(address, other), daemon=True)
        self._process.start()
        self._pipe.recv()

    def start(self) -> None:
        self._pipe.send(True)
        self._pipe.recv()

    def stop(self) -> list[float]:
        """Return the round trips since `start`, in seconds."""
        self._pipe.send(False)
        found: list[float] = self._pipe.recv()
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _probe(address: str, pipe: Connection) -> None:
    gc.disable()
    with BlockingConnection(Address.parse(address)) as connection:
        connection.call(wire.QueueDeclare(0, PROBED, auto_delete=True), wire.QueueDeclareOk)
        pipe.send(None)
        while True:
            pipe.recv()
            trips: list[float] = []
            _trip(connection, trips)
            pipe.send(None)
            while not pipe.poll():
                _trip(connection, trips)
                time.sleep(PAUSE_S)
            pipe.recv()
            pipe.send(trips)


def _trip(connection: BlockingConnection, trips: list[float]) -> None:
    started = time.perf_counter()
    connection.call(wire.BasicGet(0, PROBED, no_ack=True), wire.BasicGetEmpty)
    trips.append(time.perf_counter() - started)


@dataclass(frozen=True)
class Site:
    """The broker under test and its topology."""

    base: str
    """URL of the HTTP API."""
    address: str
    count: int
    """Number of queues; there are twice as many bindings."""

    def http(self, method: str, path: str, body: object = None) -> Any:
        content = fetch(self.base, path, method, body)
        return json.loads(content) if content[:1] in (b"{", b"[") else content

    def connect(self) -> BlockingConnection:
        return BlockingConnection(Address.parse(self.address), name="stalls")

    def declare(self, queue: str, **options: Any) -> None:
        with self.connect() as connection:
            connection.call(wire.QueueDeclare(0, queue, **options), wire.QueueDeclareOk)

    def fill(self, queue: str, count: int = MANY, size: int = 100, properties: bytes = PERSISTENT) -> None:
        """Declare a durable queue and publish messages to it."""
        self.declare(queue, durable=True)
        self.publish(queue, count, size, properties)

    def publish(self, queue: str, count: int = MANY, size: int = 100, properties: bytes = PERSISTENT) -> None:
        publisher, body = Publisher(self.connect), bytes(size)
        publisher.publish(Outgoing("", queue, properties, body) for _ in range(count))
        publisher.flush()
        publisher.close()

    def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        return [{"name": name, "vhost": "/", "durable": True} for name in names]

    def bindings(self, exchange: str) -> list[dict[str, Any]]:
        return [
            {"source": exchange, "vhost": "/", "destination": QUEUE.format(number), "routing_key": f"key.{number}.eu"}
            for number in range(self.count)
        ]


Act = Callable[[], object]


@contextmanager
def measured(probe: Probe, name: str) -> Iterator[None]:
    """Print the longest round trip of the probe and the longest turn of the broker while the block runs."""
    probe.start()
    probe.turn.seconds = 0
    started = time.perf_counter()
    yield
    elapsed_s = time.perf_counter() - started
    trips = sorted(probe.stop())
    time.sleep(SETTLED_S)
    middle_ms, longest_ms, turn_ms = (seconds * 1000 for seconds in (trips[len(trips) // 2], trips[-1], probe.turn.seconds))
    print(f"| {name} | {elapsed_s:.2f} s | {middle_ms:.1f} ms | {longest_ms:.0f} ms | {turn_ms:.0f} ms |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, default=40_000)
    parser.add_argument("--only", nargs="*", default=[], help="words, of which the name of an operation must have one")
    parser.add_argument("--data", help="URL of a database to use instead of a file; its schema must be empty")
    parser.add_argument("--at-once", action="store_true", help="import queues and bindings in one request")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holtmq-bench-") as folder, ExitStack() as stack:
        turn = Path(folder) / "turn"
        amqp, base = stack.enter_context(ticking_broker(options.data or str(Path(folder) / "b.db"), turn))
        site = Site(base, f"{amqp.replace('//', '//guest:guest@')}/%2F", options.queues)
        probe = Probe(site.address, Longest(turn))
        stack.callback(probe.close)
        print("| operation | it took | median round trip | longest round trip | longest turn |")
        print("|---|---|---|---|---|")
        with measured(probe, "(none)"):
            time.sleep(IDLE_S)
        build(site, probe, is_at_once=options.at_once)
        for name, prepare in operations(site):
            if not options.only or any(word in name for word in options.only):
                act = prepare()
                with measured(probe, name):
                    act()


@contextmanager
def ticking_broker(data: str, turn: Path) -> Iterator[tuple[str, str]]:
    """Run a broker. Return its addresses for AMQP and HTTP."""
    settings = turn.with_name("b.toml")
    settings.write_text(f"memory_bytes = {MEMORY_BYTES}\n")
    options = ("--config", str(settings), "--data", data, "--amqp-port", "0", "--http-port", "0", "--log-level", "error")
    command = [sys.executable, "-m", "benchmarks.ticking", str(turn), "serve", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        words = [word.rstrip(",") for word in broker.stdout.readline().split()]
        try:
            amqp, http = (word for word in words if word.startswith(("amqp://", "http://")))
            yield amqp, http
        finally:
            broker.kill()


def build(site: Site, probe: Probe, *, is_at_once: bool) -> None:
    """Make the topology. The imports are operations as well."""
    names = [QUEUE.format(number) for number in range(site.count)]
    exchanges = [{"name": name, "vhost": "/", "type": kind} for name, kind in (("topics", "topic"), ("keys", "direct"))]
    if is_at_once:
        bindings = [*site.bindings("topics"), *site.bindings("keys")]
        with measured(probe, f"import {site.count:,} queues and {2 * site.count:,} bindings"):
            site.http("POST", "/api/definitions", {"queues": site.queues(names), "exchanges": exchanges, "bindings": bindings})
        return
    with measured(probe, f"import {site.count:,} queues"):
        site.http("POST", "/api/definitions", {"queues": site.queues(names), "exchanges": exchanges})
    for exchange in ("topics", "keys"):
        with measured(probe, f"import {site.count:,} bindings to {exchange}"):
            site.http("POST", "/api/definitions", {"bindings": site.bindings(exchange)})


def operations(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Yield the name of each operation and what prepares it; the latter returns the call to measure."""

    def http(method: str, path: str, body: object = None) -> tuple[str, Callable[[], Act]]:
        return f"`{method} {path}`", lambda: lambda: site.http(method, path, body)

    for path in READS:
        yield http("GET", path)
    question = {"routing_key": "key.77.us", "headers": {}}
    draft = {"source": "topics", "destination": QUEUE.format(1), "routing_key": "key.#"}
    yield http("POST", f"/api/exchanges/{V}/topics/explain", question)
    yield http("POST", f"/api/exchanges/{V}/keys/explain", question)
    yield http("POST", f"/api/exchanges/{V}/amq.default/explain", question)
    yield (
        "explain with a draft",
        lambda: lambda: site.http("POST", f"/api/exchanges/{V}/topics/explain", {**question, "drafts": [draft]}),
    )
    yield http("POST", "/api/definitions", {})
    policy = {"pattern": "^queue-", "definition": {"max-length": 100_000}, "apply-to": "queues"}
    yield http("PUT", f"/api/policies/{V}/limit", policy)
    yield http("DELETE", f"/api/policies/{V}/limit")
    yield http("PUT", f"/api/parameters/shovel/{V}/one", {"value": {}})
    yield http("DELETE", f"/api/parameters/shovel/{V}/one")
    yield http("PUT", "/api/users/other", {"password": "secret", "tags": "management"})
    yield http("PUT", f"/api/permissions/{V}/other", {"configure": ".*", "write": ".*", "read": ".*"})
    yield http("DELETE", f"/api/permissions/{V}/other")
    yield http("DELETE", "/api/users/other")
    yield from message_operations(site)
    yield from removals(site)
    yield from connection_operations(site)
    yield from expiries(site)
    yield from deletions(site)


READS = (
    "/api/definitions",
    f"/api/definitions/{V}",
    "/api/queues",
    "/api/queues?disable_stats=true",
    "/api/queues?page=1&page_size=100",
    "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "/api/queues?page=1&page_size=100&sort=memory",
    "/api/queues?page=1&page_size=100&name=77",
    f"/api/queues/{V}/queue-00001",
    f"/api/queues/{V}/queue-00001/bindings",
    "/api/bindings",
    "/api/bindings?page=1&page_size=1",
    "/api/bindings?page=1&page_size=100&sort=routing_key",
    f"/api/bindings/{V}/e/topics/q/queue-00001",
    "/api/exchanges",
    f"/api/exchanges/{V}/topics",
    f"/api/exchanges/{V}/topics/bindings/source",
    f"/api/exchanges/{V}/amq.default/bindings/source",
    "/api/vhosts",
    f"/api/vhosts/{V}",
    "/api/overview",
    "/api/nodes",
    "/api/connections",
    "/api/channels",
    "/api/consumers",
    "/api/users",
    "/api/permissions",
    "/api/policies",
    "/api/parameters",
    f"/api/topology/{V}",
    f"/api/aliveness-test/{V}",
    "/api/health/checks/alarms",
    "/api/reports",
    "/api/openapi.json",
    "/metrics",
    "/metrics/per-object",
)


def message_operations(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Operations on the messages of a queue."""
    fetching = {"count": MANY, "encoding": "auto"}

    def get(mode: str) -> Callable[[], Act]:
        def prepare() -> Act:
            site.fill("got")
            return lambda: site.http("POST", f"/api/queues/{V}/got/get", {**fetching, "ackmode": mode})

        return prepare

    yield f"HTTP get of {MANY:,} messages, requeued", get("ack_requeue_true")
    yield f"HTTP get of {MANY:,} messages, removed", get("ack_requeue_false")

    def move() -> Act:
        site.fill("from")
        site.declare("to", durable=True)
        return lambda: site.http("POST", f"/api/queues/{V}/from/move", {"destination": "to"})

    yield f"HTTP move of {MANY:,} messages", move

    def big(call: Callable[[BlockingConnection], object]) -> Callable[[], Act]:
        def prepare() -> Act:
            site.fill("big", BIG_BYTES // BIG_BODY, BIG_BODY)
            return lambda: with_connection(site, call)

        return prepare

    def vacuum() -> Act:
        site.fill("big", BIG_BYTES // BIG_BODY, BIG_BODY)
        site.fill("behind")  # at the end of the file, so that its pages are moved
        with_connection(site, lambda each: each.call(wire.QueuePurge(0, "big"), wire.QueuePurgeOk))

        def run() -> None:
            while not site.http("POST", "/api/vacuum", {})["is_done"]:
                pass

        return run

    yield "`POST /api/vacuum`, 500 MiB", vacuum
    yield "`queue.purge`, 500 MiB", big(lambda each: each.call(wire.QueuePurge(0, "big"), wire.QueuePurgeOk))
    yield "`queue.delete`, 500 MiB", big(lambda each: each.call(wire.QueueDelete(0, "big"), wire.QueueDeleteOk))


def removals(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Removing many small messages, and streams."""

    def small(
        call: Callable[[BlockingConnection], object], count: int = 200_000, properties: bytes = PERSISTENT
    ) -> Callable[[], Act]:
        def prepare() -> Act:
            site.fill("small", count, properties=properties)
            return lambda: with_connection(site, call)

        return prepare

    def purge(each: BlockingConnection) -> object:
        return each.call(wire.QueuePurge(0, "small"), wire.QueuePurgeOk)

    def delete(each: BlockingConnection) -> object:
        return each.call(wire.QueueDelete(0, "small"), wire.QueueDeleteOk)

    yield "`queue.purge`, 200,000 messages", small(purge)
    yield "`queue.delete`, 200,000 messages", small(delete)
    yield "`queue.purge`, 500,000 transient messages", small(purge, 500_000, TRANSIENT)
    yield "`queue.delete`, 500,000 transient messages", small(delete, 500_000, TRANSIENT)

    def stream(call: Callable[[BlockingConnection], object]) -> Callable[[], Act]:
        def prepare() -> Act:
            site.declare("stream", durable=True, arguments={"x-queue-type": "stream"})
            site.publish("stream", 500_000)
            return lambda: with_connection(site, call)

        return prepare

    yield "read a stream of 500,000 messages", stream(_read_stream)
    yield (
        "`queue.delete`, a stream of 500,000 messages",
        stream(lambda each: each.call(wire.QueueDelete(0, "stream"), wire.QueueDeleteOk)),
    )


def _read_stream(connection: BlockingConnection) -> None:
    """Read a stream from its first offset to its end, and acknowledge in hundreds."""
    connection.call(wire.BasicQos(0, 1000), wire.BasicQosOk)
    arguments: dict[str, FieldValue] = {"x-stream-offset": "first"}
    connection.call(wire.BasicConsume(0, "stream", "reader", arguments=arguments), wire.BasicConsumeOk)
    received = 0
    while received < 500_000:
        connection.receive(1.0)
        deliveries, connection.deliveries = connection.deliveries, []
        if deliveries:
            received += len(deliveries)
            connection.send(CHANNEL, wire.BasicAck(deliveries[-1].tag, multiple=True))


def connection_operations(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Operations of one client on what it holds."""
    for kind, properties in (("persistent", PERSISTENT), ("transient", TRANSIENT)):
        for name, act in (
            (f"close with {MANY:,} unacknowledged messages", lambda _: None),
            (f"`basic.nack` of {MANY:,}", _nack),
            (f"`basic.recover` of {MANY:,}", _recover),
            (f"`basic.ack` of {MANY:,}", lambda each: each.send(CHANNEL, wire.BasicAck(0, multiple=True))),
        ):
            yield f"{name}, {kind}", partial(_prepare_holding, site, properties, act)
    yield f"`channel.close` with {MANY:,} unacknowledged messages", partial(_prepare_holding, site, PERSISTENT, _close_channel)
    yield f"`basic.nack` of {MANY:,}, dead-lettered", partial(_prepare_holding, site, PERSISTENT, _dead_letter, DEAD_LETTERING)
    yield f"`tx.commit` of {MANY:,} messages", partial(_prepare_commit, site)
    yield f"`tx.rollback` of {MANY:,} messages", partial(_prepare_commit, site, wire.TxRollback(), wire.TxRollbackOk)
    yield f"close with {MANY:,} consumers", partial(_prepare_consumers, site)
    yield f"`DELETE /api/users/other` with {CONNECTIONS:,} connections", partial(_prepare_connections, site)
    yield f"close with {OWN:,} exclusive queues", partial(_prepare_own_queues, site, exclusive=True)
    yield f"close with {OWN:,} auto-delete queues", partial(_prepare_own_queues, site, auto_delete=True)
    yield (
        f"close with {OWN:,} durable auto-delete queues",
        partial(_prepare_own_queues, site, auto_delete=True, durable=True),
    )


def _prepare_holding(
    site: Site,
    properties: bytes,
    act: Callable[[BlockingConnection], object],
    arguments: Mapping[str, FieldValue] = EMPTY_TABLE,
) -> Act:
    """Return an operation of a client with unacknowledged messages, which then closes."""
    site.declare("held", durable=True, arguments=arguments)
    site.publish("held", MANY, 100, properties)
    connection = site.connect()
    connection.call(wire.BasicConsume(0, "held", "c"), wire.BasicConsumeOk)
    while len(connection.deliveries) < MANY:
        connection.receive(10)

    def run() -> None:
        act(connection)
        connection.close()
        with_connection(site, lambda each: each.call(wire.QueueDelete(0, "held"), wire.QueueDeleteOk))

    return run


def _nack(connection: BlockingConnection) -> None:
    connection.call(wire.BasicCancel("c"), wire.BasicCancelOk)
    connection.send(CHANNEL, wire.BasicNack(0, multiple=True, requeue=True))


def _recover(connection: BlockingConnection) -> None:
    connection.call(wire.BasicCancel("c"), wire.BasicCancelOk)
    connection.call(wire.BasicRecover(requeue=True), wire.BasicRecoverOk)


def _close_channel(connection: BlockingConnection) -> None:
    connection.call(wire.ChannelClose(200, "", 0, 0), wire.ChannelCloseOk)


def _dead_letter(connection: BlockingConnection) -> None:
    connection.send(CHANNEL, wire.BasicNack(0, multiple=True, requeue=False))


def _prepare_commit(site: Site, end: Method = wire.TxCommit(), reply: type[Method] = wire.TxCommitOk) -> Act:  # noqa: B008
    site.declare("committed", durable=True)
    connection = site.connect()
    connection.call(wire.TxSelect(), wire.TxSelectOk)
    publish = method_frame(CHANNEL, wire.BasicPublish(0, "", "committed")) + make_content(PERSISTENT, bytes(100), CHANNEL)
    for _ in range(100):
        connection.write(publish * (MANY // 100))

    def run() -> None:
        connection.call(end, reply)
        connection.close()

    return run


def _prepare_own_queues(site: Site, **options: Any) -> Act:
    """Return the end of a connection with queues that are deleted with it."""
    connection = site.connect()
    for number in range(OWN):
        name = f"own-{number}"
        connection.send(CHANNEL, wire.QueueDeclare(0, name, no_wait=True, **options))
        connection.send(CHANNEL, wire.QueueBind(0, name, "topics", f"own.{number}", no_wait=True))
        if options.get("auto_delete"):
            connection.send(CHANNEL, wire.BasicConsume(0, name, name, no_wait=True))
    connection.call(wire.BasicGet(0, PROBED), wire.BasicGetEmpty)
    return connection.close


def _prepare_consumers(site: Site) -> Act:
    site.declare("consumed")
    connection = site.connect()
    for number in range(MANY):
        connection.send(CHANNEL, wire.BasicConsume(0, "consumed", str(number), no_wait=True))
    connection.call(wire.BasicGet(0, PROBED), wire.BasicGetEmpty)
    return connection.close


def _prepare_connections(site: Site) -> Act:
    """Return the deletion of a user who is logged in many times."""
    site.http("PUT", "/api/users/other", {"password": "secret", "tags": ""})
    site.http("PUT", f"/api/permissions/{V}/other", {"configure": ".*", "write": ".*", "read": ".*"})
    address = Address.parse(site.address.replace("guest:guest@", "other:secret@"))
    connections = [BlockingConnection(address) for _ in range(CONNECTIONS)]

    def run() -> None:
        site.http("DELETE", "/api/users/other")
        for connection in connections:
            with suppress(HoltmqError, OSError):
                connection.receive(10)

    return run


def expiries(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Things that happen by themselves, all at the same moment."""

    def count() -> int:
        number: int = site.http("GET", "/api/overview")["object_totals"]["queues"]
        return number

    def queues() -> Act:
        before = count()
        with site.connect() as connection:
            for number in range(site.count):
                connection.send(CHANNEL, wire.QueueDeclare(0, f"idle-{number}", no_wait=True))
            connection.call(wire.BasicGet(0, PROBED), wire.BasicGetEmpty)

        def run() -> None:
            policy = {"pattern": "^idle-", "definition": {"expires": 1}, "apply-to": "queues"}
            site.http("PUT", f"/api/policies/{V}/idle", policy)
            _wait_for(lambda: count() <= before)
            site.http("DELETE", f"/api/policies/{V}/idle")

        return run

    yield f"{site.count:,} queues expire", queues

    def messages(number: int) -> Callable[[], Act]:
        def prepare() -> Act:
            names = [f"short-{queue}" for queue in range(number)]
            for name in names:
                site.declare(name, durable=True)
                site.publish(name, EXPIRING // number, 100, encode_properties({"expiration": str(EXPIRY_MS)}))
            return lambda: with_connection(site, lambda each: _wait_for(lambda: not any(_count(each, name) for name in names)))

        return prepare

    yield f"{EXPIRING:,} messages expire in one queue", messages(1)
    yield f"{EXPIRING:,} messages expire in 100 queues", messages(100)


def _count(connection: BlockingConnection, queue: str) -> int:
    return connection.call(wire.QueueDeclare(0, queue, passive=True), wire.QueueDeclareOk).message_count


def _wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.2)


def deletions(site: Site) -> Iterator[tuple[str, Callable[[], Act]]]:
    """Operations that take the topology apart again."""
    yield (
        f"`exchange.delete` with {site.count:,} bindings",
        lambda: lambda: with_connection(site, lambda each: each.call(wire.ExchangeDelete(0, "topics"), wire.ExchangeDeleteOk)),
    )

    def bound_once() -> Act:
        bindings = [
            {"source": "amq.topic", "vhost": "/", "destination": QUEUE.format(0), "routing_key": f"key.{number}"}
            for number in range(site.count)
        ]
        site.http("POST", "/api/definitions", {"bindings": bindings})
        return lambda: with_connection(site, lambda each: each.call(wire.QueueDelete(0, QUEUE.format(0)), wire.QueueDeleteOk))

    yield f"`queue.delete` with {site.count:,} bindings", bound_once

    def fan_out() -> Act:
        site.http("PUT", f"/api/exchanges/{V}/all", {"type": "fanout"})
        site.http("POST", "/api/definitions", {"bindings": site.bindings("all")[1:]})
        publisher = Publisher(site.connect)

        def run() -> None:
            publisher.publish([Outgoing("all", "", PERSISTENT, bytes(100))])
            publisher.flush()
            publisher.close()

        return run

    yield f"`basic.publish` to {site.count:,} queues", fan_out
    yield "`DELETE /api/exchanges/%2F/keys`", lambda: lambda: site.http("DELETE", f"/api/exchanges/{V}/keys")

    def other_vhost() -> Act:
        site.http("PUT", "/api/vhosts/other", {})
        queues = [{**queue, "vhost": "other"} for queue in site.queues(f"other-{number}" for number in range(site.count))]
        bindings = [{"source": "amq.topic", "vhost": "other", "destination": queue["name"]} for queue in queues]
        site.http("POST", "/api/definitions", {"queues": queues, "bindings": bindings})
        return lambda: site.http("DELETE", "/api/vhosts/other")

    yield f"`DELETE /api/vhosts/other` with {site.count:,} queues and bindings", other_vhost


def with_connection(site: Site, call: Callable[[BlockingConnection], object]) -> None:
    with site.connect() as connection:
        call(connection)


if __name__ == "__main__":
    main()
