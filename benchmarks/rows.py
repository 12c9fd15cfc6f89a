"""The rows of the broker benchmark: what each does to a broker, and what is measured."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from benchmarks.brokers import Broker
from holtmq.bench import Load, Result, run_load
from holtmq.wire import methods as wire
from tests.amqp_client import Amqp

Values: TypeAlias = dict[str, float]
"""The measured values by name. A name that ends in "/s" is a rate, of which more is better; of all others less is."""
RECEIVED, SENT = "received/s", "published/s"
CPU, GENERATOR_CPU = "CPU µs per message", "load generator, CPU µs per message"
CONFIRM_P50, CONFIRM_P99 = "confirm p50 ms", "confirm p99 ms"
DELIVERY_P50, DELIVERY_P99 = "delivery p50 ms", "delivery p99 ms"
MEMORY, DISK, IDLE_CPU = "memory MiB", "disk MiB", "idle CPU %"
EMPTY_START, START = "empty start s", "start s"
COLLECTED: dict[str, Callable[[Result], float]] = {
    RECEIVED: lambda result: result.received_per_s,
    SENT: lambda result: result.sent_per_s,
    CONFIRM_P50: lambda result: result.confirm_us["p50"] / 1000,
    CONFIRM_P99: lambda result: result.confirm_us["p99"] / 1000,
    DELIVERY_P50: lambda result: result.latency_us["p50"] / 1000,
    DELIVERY_P99: lambda result: result.latency_us["p99"] / 1000,
}
MESSAGES = 1_000_000
TIME_S = 10.0
"""A load ends after so many messages or so much time, whichever comes first."""
SHORTEST_S = 0.5
LARGE_BYTES = 64 * 1024
FEW = 100
"""Up to this number, queues and keys are the same at every scale."""


class Row(ABC):
    """One line of the results. `scale` is 1, or less for a shorter run."""

    name: str
    needs_fresh_broker = False
    without: tuple[str, ...] = ()
    """Names of brokers that are left out."""

    @abstractmethod
    def measure(self, broker: Broker, scale: float) -> Values: ...


@dataclass(frozen=True)
class LoadRow(Row):
    """A load, and what is taken from its result. The CPU time for each message is always taken.

    That of the load generator is taken if messages are large: copying them takes it as long as the broker, on the same cores.
    """

    name: str
    load: Load
    values: tuple[str, ...] = (RECEIVED,)

    def measure(self, broker: Broker, scale: float) -> Values:
        before_s, own_before_s = broker.cpu_s(), time.process_time()
        result = run_load(broker.address, scaled(self.load, scale))
        number = max(result.sent, result.received)
        values = {name: COLLECTED[name](result) for name in self.values}
        values[CPU] = (broker.cpu_s() - before_s) * 1e6 / number
        if self.load.size >= LARGE_BYTES:
            values[GENERATOR_CPU] = (time.process_time() - own_before_s) * 1e6 / number
        return values


@dataclass(frozen=True)
class BacklogRow(Row):
    """What waiting messages cost: a start, memory and disk."""

    messages: int
    keys: int
    needs_fresh_broker = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.messages:,} persistent messages waiting, {self.keys:,} keys"

    @property
    def without(self) -> tuple[str, ...]:  # type: ignore[override]
        """RabbitMQ needs 3 KB of memory for each message, and stops its publishers when it has no more."""
        return ("RabbitMQ",) if self.messages > 2 * MESSAGES else ()

    def measure(self, broker: Broker, scale: float) -> Values:
        count = max(1, int(self.messages * scale))
        values = {EMPTY_START: _restart(broker)} if broker.can_restart else {}
        fill = Load(exchange_type="fanout", consumers=0, persistent=True, confirm=1000, is_kept=True)
        run_load(broker.address, replace(fill, keys=max(1, int(self.keys * scale)), messages=count, time_s=3600))
        if broker.can_restart:
            values[START] = _restart(broker)
        with Amqp(broker.port) as amqp:
            waiting = amqp.channel().declare("holtmq.bench.000000", durable=True).message_count
        assert waiting == count, f"expected {count:,} messages in {broker.name}, got {waiting:,}"
        return values | {MEMORY: broker.memory_mib(), DISK: broker.disk_mib()}


def _restart(broker: Broker) -> float:
    """Return the time from the start to the confirm of a first message."""
    broker.stop()
    start = time.perf_counter()
    broker.start()
    with Amqp(broker.port) as amqp:
        channel = amqp.channel()
        channel.confirm()
        channel.publish("amq.fanout", "k", b"first")
        channel.next()
    return time.perf_counter() - start


@dataclass(frozen=True)
class IdleRow(Row):
    """What connections and queues cost that nobody uses: memory and CPU."""

    name: str
    connections: int
    queues: int = 0
    needs_fresh_broker = True

    def measure(self, broker: Broker, scale: float) -> Values:
        before_mib = broker.memory_mib()
        with self._clients(broker, scale):
            settle_s = TIME_S / 2 * scale
            time.sleep(settle_s)
            before_s, start = broker.cpu_s(), time.perf_counter()
            time.sleep(settle_s)
            used = (broker.cpu_s() - before_s) / (time.perf_counter() - start)
            return {MEMORY: broker.memory_mib() - before_mib, IDLE_CPU: used * 100}

    @contextmanager
    def _clients(self, broker: Broker, scale: float) -> Iterator[None]:
        clients = [Amqp(broker.port) for _ in range(max(1, int(self.connections * scale)))]
        try:
            channels = [client.channel() for client in clients]
            for number in range(int(self.queues * scale)):
                channel = channels[number % len(channels)]
                channel.call(wire.QueueDeclare(0, f"idle.{number}", exclusive=True), wire.QueueDeclareOk)
                channel.call(wire.BasicConsume(0, f"idle.{number}", ""), wire.BasicConsumeOk)
            yield
        finally:
            for client in clients:
                client.drop()


def scaled(load: Load, scale: float) -> Load:
    return replace(
        load,
        messages=max(1, int((load.messages or MESSAGES) * scale)),
        time_s=max(SHORTEST_S, max(TIME_S, load.time_s) * scale),
        queues=load.queues if load.queues <= FEW else max(FEW, int(load.queues * scale)),
        keys=load.keys if load.keys <= FEW else max(FEW, int(load.keys * scale)),
        late_s=load.late_s if math.isinf(load.late_s) else load.late_s * scale,
        stall_every_s=load.stall_every_s * scale,
        stall_s=load.stall_s * scale,
    )


AUTO_ACK = Load(auto_ack=True)
ACKED = Load(qos=500)
CONFIRMED = Load(persistent=True, confirm=1000, qos=500)
FILL = replace(CONFIRMED, late_s=math.inf, time_s=3600)
TOPIC = replace(AUTO_ACK, exchange_type="topic")
FANOUT = replace(AUTO_ACK, exchange_type="fanout")
KIB = 1024
DISTINCT_IDS = 5000
"""More than any broker keeps decoded."""
TASK: Mapping[str, Any] = {
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "delivery_mode": 1,
    "reply_to": "0f5d1c1e-8a39-3b5c-9d20-5b6f4b9f4a10",
    "headers": {
        "lang": "py",
        "task": "shop.orders.send",
        "retries": 0,
        "eta": None,
        "argsrepr": "(17,)",
        "origin": "gen1@host",
    },
}
"""Properties as task queues set them."""


def ten_to_ten(load: Load) -> Load:
    return replace(load, producers=10, consumers=10)


def ten_queues(load: Load) -> Load:
    return replace(load, producers=10, consumers=10 if load.consumers else 0, queues=10, is_split=True)


def rows(backlog: int = MESSAGES) -> list[Row]:
    """Return all rows."""
    no_consumer = replace(CONFIRMED, consumers=0)
    return [
        LoadRow("auto-ack", AUTO_ACK),
        LoadRow("acked", ACKED),
        LoadRow("acked, no prefetch limit", Load()),
        *late_consumers(),
        LoadRow("persistent, confirmed, acked", CONFIRMED),
        LoadRow("persistent, confirmed, no consumer", no_consumer, (SENT,)),
        LoadRow("fill with 1,000,000, then drain", FILL, (SENT, RECEIVED)),
        LoadRow("ten queues: auto-ack", ten_queues(AUTO_ACK)),
        LoadRow("ten queues: acked", ten_queues(ACKED)),
        LoadRow("ten queues: acked, consumers 0.5 s late", ten_queues(replace(ACKED, late_s=0.5))),
        LoadRow("ten queues: persistent, confirmed, acked", ten_queues(CONFIRMED)),
        LoadRow("ten queues: persistent, confirmed, no consumer", ten_queues(no_consumer), (SENT,)),
        LoadRow("ten queues: fill with 1,000,000, then drain", ten_queues(FILL), (SENT, RECEIVED)),
        *sizes(),
        *routes(),
        *windows(),
        LoadRow("acked, 40,000 messages/s", replace(ACKED, rate=40_000), (DELIVERY_P50, DELIVERY_P99)),
        *features(),
        LoadRow("10,000 queues, ten consumers", replace(AUTO_ACK, queues=10_000, consumers=10, is_split=True)),
        IdleRow("10,000 queues with a consumer each, idle", connections=10, queues=10_000),
        IdleRow("1,000 connections, idle", connections=1000),
        BacklogRow(backlog, keys=backlog // 5),
    ]


def late_consumers() -> Iterator[Row]:
    for name, load in (("auto-ack", AUTO_ACK), ("acked", ACKED)):
        for late_s in (0.2, 0.5, 5):
            yield LoadRow(f"{name}, consumer {late_s:g} s late", replace(load, late_s=late_s))
        yield LoadRow(f"{name}, consumer stalls for 1 s every 0.5 s", replace(load, stall_every_s=0.5, stall_s=1))


def sizes() -> Iterator[Row]:
    for name, load in (("auto-ack", AUTO_ACK), ("acked", ACKED), ("persistent, confirmed, acked", CONFIRMED)):
        yield LoadRow(f"1 KiB: {name}", replace(load, size=KIB))
        yield LoadRow(f"64 KiB: {name}", replace(load, size=64 * KIB))
        yield LoadRow(f"64 KiB: {name}, 10 to 10", ten_to_ten(replace(load, size=64 * KIB, confirm=load.confirm // 10)))
        yield LoadRow(f"1 MiB: {name}", replace(load, size=KIB * KIB, confirm=load.confirm // 10))


def routes() -> Iterator[Row]:
    yield LoadRow("topic, 2,000 bindings, 2,000 keys", replace(TOPIC, keys=2000))
    yield LoadRow("topic, 2,000 bindings, every key unique", replace(TOPIC, keys=2000, has_unique_keys=True))
    yield LoadRow("topic, 1 binding, every key unique", replace(TOPIC, has_unique_keys=True))
    yield LoadRow("fanout, every key unique", replace(FANOUT, has_unique_keys=True))
    yield LoadRow("direct, 20,000 bindings and keys", replace(AUTO_ACK, keys=20_000))
    yield LoadRow("an id of its own for each message", replace(AUTO_ACK, properties=with_ids({})))
    yield LoadRow("headers and ids of their own, like tasks", replace(ACKED, properties=with_ids(TASK)))
    yield LoadRow("fanout to 100 queues", replace(FANOUT, queues=100, consumers=100, messages=MESSAGES // 10))


def with_ids(properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the properties of many messages, each with an id of its own, and with that id in its headers."""
    ids = [f"{number:036}" for number in range(DISTINCT_IDS)]
    with_headers = [{"headers": {**properties["headers"], "id": one}} if "headers" in properties else {} for one in ids]
    return [{**properties, "message_id": one, **headers} for one, headers in zip(ids, with_headers, strict=True)]


def windows() -> Iterator[Row]:
    for window in (1, 100, 300, 1000):
        load = replace(CONFIRMED, confirm=window)
        yield LoadRow(f"persistent, at most {window:,} unconfirmed", load, (RECEIVED, CONFIRM_P50, CONFIRM_P99))
    alone = replace(CONFIRMED, confirm=1, consumers=0)
    yield LoadRow("persistent, at most 1 unconfirmed, no consumer", alone, (SENT, CONFIRM_P50, CONFIRM_P99))


def features() -> Iterator[Row]:
    """Yield what leaves the plain path of a message."""
    priorities = [{"priority": number} for number in range(10)]
    limited = replace(Load(), consumers=0, confirm=1000, queue_arguments={"x-max-length": 1000})
    yield LoadRow("TTL of 60 s for each message", replace(ACKED, properties=[{"expiration": "60000"}]))
    yield LoadRow("10 priorities", replace(ACKED, queue_arguments={"x-max-priority": 10}, properties=priorities))
    yield LoadRow("max-length 1,000, no consumer", limited, (SENT,))
    yield LoadRow("headers exchange, 100 bindings", replace(AUTO_ACK, exchange_type="headers", keys=100))
    yield LoadRow("every message dead-lettered", replace(AUTO_ACK, is_dead_lettered=True))
    yield LoadRow("every fourth delivery requeued", replace(ACKED, requeue_every=4))
