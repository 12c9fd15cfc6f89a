"""The asyncio flavour: the same queue, and an event loop that never waits for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import holtmq
from tests.deadline import PATIENCE_S


def test_the_whole_way_of_a_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            await mq.declare_exchange("orders", "topic")
            queue = await mq.declare_queue("laptops", max_attempts=3)
            await mq.bind("laptops", "orders", "orders.*.laptops")
            message_id = await mq.publish("hello", "orders.eu.laptops", exchange="orders")
            await queue.put_many([("more", "x"), ("late", "x")])
            message = await queue.pop("orders.#")
            assert message is not None
            assert (message.id, message.text) == (message_id, "hello")
            await queue.ack(message)
            assert [m.text for m in await queue.pop_many(5)] == ["more", "late"]
            assert await queue.size() == 0
            await mq.unbind("laptops", "orders", "orders.*.laptops")
            assert await mq.publish("nobody", "orders.eu.laptops", exchange="orders") is None

    asyncio.run(main())


def test_the_loop_goes_on_while_a_pop_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            queue = await mq.queue("q")
            waiting = asyncio.create_task(queue.pop("k", wait_s=PATIENCE_S))
            assert await queue.size() == 0  # answered while the pop waits
            assert not waiting.done()
            await queue.put("m", "k")
            message = await waiting
            assert message is not None
            assert message.text == "m"

    asyncio.run(main())


def test_messages_are_iterated_as_they_come(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            queue = await mq.queue("q")
            await queue.put_many([(f"m{n}", "k") for n in range(3)])
            seen = []
            async for message in queue.messages("#"):
                seen.append(message.text)
                await (queue.fail(message) if len(seen) == 2 else queue.ack(message))
                if len(seen) == 3:
                    break
            assert seen == ["m0", "m1", "m2"]
            assert await queue.size("failed") == 1

    asyncio.run(main())


def test_a_cancelled_pop_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with holtmq.aio.open(tmp_path / "shop.db", durability="off") as mq:
            queue = await mq.queue("q")
            waiting = asyncio.create_task(queue.pop(wait_s=PATIENCE_S))
            assert await queue.size() == 0  # the pop began before this call
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert waiting.cancelled()
            await queue.put("m")
            message = await queue.pop(wait_s=PATIENCE_S)
            assert message is not None
            assert message.text == "m"

    asyncio.run(main())
