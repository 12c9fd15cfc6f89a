"""The upper bound: a process that forwards bytes from one socket to another, without AMQP: python -m benchmarks.relay"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import NamedTuple, cast

import uvloop

from benchmarks.brokers import cpu_s
from holtmq.allocator import keep_freed_memory

BUFFER_BYTES = 1024 * 1024
CONSUMER = b"C"
SIZES = {"64 KiB": 64 * 1024, "1 MiB": 1024 * 1024}
ROUNDS, SECONDS = 3, 4.0


def main() -> None:
    print("| size | messages/s | relay, CPU µs per message | load generator |\n|---|---|---|---|")
    for name, size in SIZES.items():
        for relayed in sorted(relay(size, SECONDS) for _ in range(ROUNDS)):
            print(f"| {name} | {relayed.per_s:,.0f} | {relayed.cpu_us:,.1f} | {relayed.generator_us:,.1f} |", flush=True)


class Relayed(NamedTuple):
    """What was forwarded, and the processor time for each message."""

    per_s: float
    cpu_us: float
    generator_us: float


class Relay(asyncio.Protocol):
    """Forwards everything that the producer sends to the consumer. The first client is the consumer."""

    consumer: Relay | None = None
    producer: Relay | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def data_received(self, data: bytes) -> None:
        if Relay.consumer is None:
            assert data == CONSUMER
            Relay.consumer = self
            return
        Relay.producer = self
        if not Relay.consumer.transport.is_closing():
            Relay.consumer.transport.write(data)

    def pause_writing(self) -> None:
        if Relay.producer is not None:
            Relay.producer.transport.pause_reading()

    def resume_writing(self) -> None:
        if Relay.producer is not None:
            Relay.producer.transport.resume_reading()


class Sender(asyncio.Protocol):
    def __init__(self) -> None:
        self.can_write = asyncio.Event()
        self.can_write.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()


class Counter(asyncio.Protocol):
    received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(CONSUMER)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)


def relay(size: int, seconds: float) -> Relayed:
    """Forward messages of a given size for some time."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_relay, args=(there,), daemon=True)
    process.start()
    try:
        keep_freed_memory()
        port, own_before_s = here.recv(), time.process_time()
        assert process.pid is not None
        before_s = cpu_s(process.pid)
        number = uvloop.run(_load(port, size, seconds)) / size * seconds
        used_us, own_us = (cpu_s(process.pid) - before_s) * 1e6, (time.process_time() - own_before_s) * 1e6
        return Relayed(number / seconds, used_us / number, own_us / number)
    finally:
        process.terminate()
        process.join()


def _relay(pipe: Connection) -> None:
    keep_freed_memory()
    uvloop.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    server = await asyncio.get_running_loop().create_server(Relay, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _load(port: int, size: int, seconds: float) -> float:
    loop = asyncio.get_running_loop()
    _, counter = await loop.create_connection(Counter, "127.0.0.1", port)
    await asyncio.sleep(0.2)
    transport, sender = await loop.create_connection(Sender, "127.0.0.1", port)
    piece, start = bytes(max(size, 32 * 1024)), time.perf_counter()
    while time.perf_counter() - start < seconds:
        await sender.can_write.wait()
        transport.write(piece)
        await asyncio.sleep(0)
    return counter.received / seconds


if __name__ == "__main__":
    main()
