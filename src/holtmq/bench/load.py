"""One run of load: producers and consumers on queues of their own, and the measured result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from holtmq.allocator import keep_freed_memory
from holtmq.bench.load_client import LoadClient, LoadConsumer, LoadError, LoadProducer
from holtmq.client.address import Address
from holtmq.wire import methods as wire

STALL_S = 20.0
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
    received_per_s: float
    refused: int
    latency_us: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_load(address: Address, load: Load, progress: Progress | None = None) -> Result:
    """Run a load against a broker and return the result."""
    import uvloop  # here, because other commands do not need it and Windows does not have it

    keep_freed_memory()
    return uvloop.run(_run(address, load, progress))


async def _run(address: Address, load: Load, progress: Progress | None) -> Result:
    exchange, keys, queues = f"holtmq.bench.{load.exchange_type}", [f"key.{n:06}" for n in range(load.keys)], []
    control = await LoadClient.connect(address)
    await _delete(control, exchange, load)
    await control.call(wire.ExchangeDeclare(0, exchange, load.exchange_type, durable=load.persistent), wire.ExchangeDeclareOk)
    for number in range(load.queues):
        name = f"holtmq.bench.{number}"
        await control.call(wire.QueueDeclare(0, name, durable=load.persistent), wire.QueueDeclareOk)
        for key in keys:
            await control.call(wire.QueueBind(0, name, exchange, key), wire.QueueBindOk)
        queues.append(name)
    consumers = []
    for number in range(load.consumers):
        client = await LoadClient.connect(address)
        consumer = LoadConsumer(
            client, load.size, is_auto_ack=load.auto_ack, ack_every=load.multi_ack_every, is_timed=load.rate > 0
        )
        await consumer.start(queues[number % len(queues)], load.qos)
        consumers.append(consumer)
    producers = []
    for _ in range(load.producers):
        client = await LoadClient.connect(address)
        producer = LoadProducer(client, exchange, keys, load.size, is_persistent=load.persistent, is_mandatory=False)
        if load.confirm:
            await producer.confirm()
        producers.append(producer)
    result = await _measure(load, producers, consumers, progress)
    for producer in producers:
        producer.close()
    for consumer in consumers:
        consumer.close()
    await _delete(control, exchange, load)
    control.close()
    return result


async def _measure(
    load: Load, producers: list[LoadProducer], consumers: list[LoadConsumer], progress: Progress | None
) -> Result:
    copies = load.queues if load.consumers else 0
    start = time.perf_counter()
    limit = -(-load.messages // load.producers) if load.messages else UNLIMITED
    tasks = [
        asyncio.create_task(
            producer.run(until=start + load.time_s, limit=limit, rate=load.rate / load.producers, ahead=load.confirm)
        )
        for producer in producers
    ]
    watch = asyncio.create_task(_watch(start, producers, consumers, progress))
    try:
        await asyncio.gather(*tasks)
        sent = sum(producer.sent for producer in producers)
        await _drain(consumers, sent * copies)
    finally:
        watch.cancel()
    seconds = time.perf_counter() - start
    received = sum(consumer.received for consumer in consumers)
    latencies = sorted(latency for consumer in consumers for latency in consumer.latencies_ns)
    return Result(
        sent=sent,
        received=received,
        seconds=seconds,
        sent_per_s=sent / seconds,
        received_per_s=received / seconds,
        refused=sum(producer.refused for producer in producers),
        latency_us={
            name: latencies[min(len(latencies) - 1, int(len(latencies) * share))] / 1000
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
            if latencies
        },
    )


async def _drain(consumers: list[LoadConsumer], expected: int) -> None:
    """Wait until consumers have received all messages."""
    seen, since = -1, time.perf_counter()
    while (received := sum(consumer.received for consumer in consumers)) < expected:
        if received != seen:
            seen, since = received, time.perf_counter()
        if time.perf_counter() - since > STALL_S:
            raise LoadError(f"expected {expected} messages, got {received} and no more for {STALL_S:g} s")
        await asyncio.sleep(0.005)


async def _watch(start: float, producers: list[LoadProducer], consumers: list[LoadConsumer], progress: Progress | None) -> None:
    while progress is not None:
        await asyncio.sleep(1)
        sent, received = (sum(p.sent for p in producers), sum(c.received for c in consumers))
        progress(Sample(time.perf_counter() - start, sent, received))


async def _delete(control: LoadClient, exchange: str, load: Load) -> None:
    await control.call(wire.ExchangeDelete(0, exchange), wire.ExchangeDeleteOk)
    for number in range(load.queues):
        await control.call(wire.QueueDelete(0, f"holtmq.bench.{number}"), wire.QueueDeleteOk)
