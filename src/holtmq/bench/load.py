"""One run of load: producers and consumers on queues of their own, and the measured result."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holtmq.allocator import keep_freed_memory
from holtmq.bench.load_client import KEY_HEADER, LoadClient, LoadConsumer, LoadError, LoadProducer
from holtmq.client.address import Address
from holtmq.table import FieldValue
from holtmq.wire import methods as wire

PATIENCE_S = 60.0
UNLIMITED = 2**62
Progress = Callable[["Sample"], None]


@dataclass(frozen=True, slots=True)
class Load:
    """The parameters of a run. Names follow rabbitmq-perf-test where it has the option."""

    producers: int = 1
    consumers: int = 1
    size: int = 100
    queues: int = 1
    """Number of queues, each of which receives every message (fan-out). With 1, all consumers share the queue."""
    auto_ack: bool = False
    qos: int = 0
    multi_ack_every: int = 1
    confirm: int = 0
    """Maximum number of unconfirmed messages per producer; 0 switches confirms off."""
    persistent: bool = False
    rate: float = 0
    """Messages per second of all producers together; 0 is as fast as possible."""
    time_s: float = 5
    messages: int = 0
    """Maximum number of messages of all producers together; 0 means unlimited."""
    exchange_type: str = "direct"
    keys: int = 1
    """Number of routing keys, each bound to the queue."""
    has_unique_keys: bool = False
    """Whether each message has a routing key of its own. The bindings of a topic exchange then end in a wildcard."""
    is_split: bool = False
    """Whether each queue has a routing key of its own, instead of receiving every message."""
    queue_arguments: Mapping[str, FieldValue] = field(default_factory=dict)
    properties: Sequence[Mapping[str, Any]] = ({},)
    """Properties of the messages, which take turns."""
    is_dead_lettered: bool = False
    """Whether messages expire at once and reach the consumers' queues as dead letters."""
    requeue_every: int = 0
    """Requeue one in this many deliveries; 0 requeues none."""
    late_s: float = 0
    """Time after which the consumers start, in seconds; infinity waits until all messages are published."""
    stall_every_s: float = 0
    """Time after which the consumers stop reading for `stall_s`, again and again; 0 means never."""
    stall_s: float = 1
    is_kept: bool = False
    """Whether queues and messages stay after the run."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The progress of a run."""

    seconds: float
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class Result:
    """The measured rates and latencies of a run."""

    sent: int
    received: int
    seconds: float
    sent_per_s: float
    """Messages published per second. With confirms, a message counts when it is confirmed."""
    received_per_s: float
    """Messages received per second in which the consumers read: neither a late start nor stalls count."""
    refused: int
    latency_us: dict[str, float]
    confirm_us: dict[str, float]
    """Time from a publish to its confirm."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_load(address: Address, load: Load, progress: Progress | None = None) -> Result:
    """Run a load against a broker and return the result."""
    import uvloop  # here, because other commands do not need it and Windows does not have it

    keep_freed_memory()
    return uvloop.run(_run(address, load, progress))


async def _run(address: Address, load: Load, progress: Progress | None) -> Result:
    control = await LoadClient.connect(address)
    topology = LoadTopology(control, load)
    await topology.delete()
    await topology.declare()
    consumers = []
    for number in range(load.consumers):
        client = await LoadClient.connect(address)
        consumer = LoadConsumer(
            client,
            load.size,
            is_auto_ack=load.auto_ack,
            ack_every=load.multi_ack_every,
            requeue_every=load.requeue_every,
            is_timed=load.rate > 0,
        )
        await consumer.prepare(topology.queues_of(number), load.qos)
        consumers.append(consumer)
    producers = []
    for number in range(load.producers):
        client = await LoadClient.connect(address)
        properties = [{"delivery_mode": 2 if load.persistent else 1, **some} for some in load.properties]
        producer = LoadProducer(
            client,
            topology.exchange,
            topology.keys_of(number),
            properties,
            load.size,
            has_unique_keys=load.has_unique_keys,
            has_key_header=load.exchange_type == "headers",
        )
        if load.confirm:
            await producer.confirm()
        producers.append(producer)
    result = await _measure(load, producers, consumers, progress)
    for producer in producers:
        producer.close()
    for consumer in consumers:
        consumer.close()
    if not load.is_kept:
        await topology.delete()
    control.close()
    return result


class LoadTopology:
    """The exchange, queues and bindings of a load."""

    def __init__(self, control: LoadClient, load: Load) -> None:
        self._control = control
        self._load = load
        self.exchange = f"holtmq.bench.{load.exchange_type}"
        self._keys = [f"key.{number:06}" for number in range(load.queues if load.is_split else load.keys)]
        self._queues = [f"holtmq.bench.{number:06}" for number in range(load.queues)]
        self._expiring = [f"{name}.expiring" for name in self._queues] if load.is_dead_lettered else []

    def keys_of(self, producer: int) -> list[str]:
        return self._keys[producer :: self._load.producers] if self._load.is_split else self._keys

    def queues_of(self, consumer: int) -> list[str]:
        """Return the queues of a consumer: its share of them, or one that it shares with others."""
        return self._queues[consumer :: self._load.consumers] or [self._queues[consumer % len(self._queues)]]

    async def declare(self) -> None:
        load, call = self._load, self._control.call
        await call(wire.ExchangeDeclare(0, self.exchange, load.exchange_type, durable=load.persistent), wire.ExchangeDeclareOk)
        for name in self._queues:
            await self._declare_queue(name, load.queue_arguments)
        for name, target in zip(self._expiring, self._queues, strict=False):
            expiry: dict[str, FieldValue] = {
                "x-message-ttl": 0,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": target,
            }
            await self._declare_queue(name, expiry)
        for number, name in enumerate(self._expiring or self._queues):
            for key in self._bound(number):
                await self._bind(name, key)

    async def delete(self) -> None:
        await self._control.call(wire.ExchangeDelete(0, self.exchange), wire.ExchangeDeleteOk)
        for name in (*self._expiring, *self._queues):
            await self._control.call(wire.QueueDelete(0, name), wire.QueueDeleteOk)

    def _bound(self, queue: int) -> list[str]:
        """Return the keys that are bound to a queue. A fanout exchange does not look at keys."""
        if self._load.is_split:
            return [self._keys[queue]]
        return self._keys[:1] if self._load.exchange_type == "fanout" else self._keys

    async def _declare_queue(self, name: str, arguments: Mapping[str, FieldValue]) -> None:
        method = wire.QueueDeclare(0, name, durable=self._load.persistent, arguments=dict(arguments))
        await self._control.call(method, wire.QueueDeclareOk)

    async def _bind(self, queue: str, key: str) -> None:
        arguments = {KEY_HEADER: key, "x-match": "all"} if self._load.exchange_type == "headers" else {}
        pattern = f"{key}.*" if self._load.has_unique_keys else key
        await self._control.call(wire.QueueBind(0, queue, self.exchange, pattern, arguments=arguments), wire.QueueBindOk)


async def _measure(
    load: Load, producers: list[LoadProducer], consumers: list[LoadConsumer], progress: Progress | None
) -> Result:
    start = time.perf_counter()
    limit = -(-load.messages // load.producers) if load.messages else UNLIMITED
    tasks = [
        asyncio.create_task(
            producer.run(until=start + load.time_s, limit=limit, rate=load.rate / load.producers, ahead=load.confirm)
        )
        for producer in producers
    ]
    publishing = asyncio.gather(*tasks)
    others = [asyncio.create_task(_watch(start, producers, consumers, progress))]
    if math.isfinite(load.late_s):
        others.append(asyncio.create_task(_consume(load, consumers)))
    try:
        await publishing
        published_s = time.perf_counter() - start
        if math.isinf(load.late_s):
            others.append(asyncio.create_task(_consume(load, consumers)))
        sent = sum(producer.sent for producer in producers)
        copies = 0 if not load.consumers else 1 if load.is_split else load.queues
        await _drain(consumers, sent * copies)
    finally:
        for task in others:
            task.cancel()
    reading_s = max((consumer.reading_s for consumer in consumers), default=0.0)
    received = sum(consumer.received for consumer in consumers)
    return Result(
        sent=sent,
        received=received,
        seconds=time.perf_counter() - start,
        sent_per_s=sent / published_s,
        received_per_s=received / reading_s if reading_s else 0.0,
        refused=sum(producer.refused for producer in producers),
        latency_us=_percentiles_us([latency for consumer in consumers for latency in consumer.latencies_ns]),
        confirm_us=_percentiles_us([latency for producer in producers for latency in producer.latencies_ns]),
    )


async def _consume(load: Load, consumers: list[LoadConsumer]) -> None:
    """Start the consumers when they are due, and let them stall."""
    if math.isfinite(load.late_s):
        await asyncio.sleep(load.late_s)
    for consumer in consumers:
        consumer.start()
    while load.stall_every_s:
        await asyncio.sleep(load.stall_every_s)
        for consumer in consumers:
            consumer.pause()
        await asyncio.sleep(load.stall_s)
        for consumer in consumers:
            consumer.resume()


async def _drain(consumers: list[LoadConsumer], expected: int) -> None:
    """Wait until consumers have received all messages."""
    seen, since = -1, time.perf_counter()
    while (received := sum(consumer.received for consumer in consumers)) < expected:
        if received != seen:
            seen, since = received, time.perf_counter()
        if time.perf_counter() - since > PATIENCE_S:
            raise LoadError(f"expected {expected} messages, got {received} and no more for {PATIENCE_S:g} s")
        await asyncio.sleep(0.005)


async def _watch(start: float, producers: list[LoadProducer], consumers: list[LoadConsumer], progress: Progress | None) -> None:
    while progress is not None:
        await asyncio.sleep(1)
        sent, received = (sum(p.sent for p in producers), sum(c.received for c in consumers))
        progress(Sample(time.perf_counter() - start, sent, received))


def _percentiles_us(latencies_ns: list[int]) -> dict[str, float]:
    latencies_ns.sort()
    return {
        name: latencies_ns[min(len(latencies_ns) - 1, int(len(latencies_ns) * share))] / 1000
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
        if latencies_ns
    }
