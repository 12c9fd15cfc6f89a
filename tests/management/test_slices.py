"""The slicing loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from starlette.responses import StreamingResponse

from holtmq.management import json_stream, slices
from holtmq.management.json_stream import pieces_of, streamed
from holtmq.management.slices import beside_the_loop, collect, finish, in_slices
from holtmq.steps import Steps, complete


@pytest.fixture(autouse=True)
def _one_item_is_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", -1.0)


def test_other_tasks_run_between_two_slices() -> None:
    seen: list[object] = []

    async def work() -> None:
        assert await collect(in_steps()) == [0, 1, 2]

    def in_steps() -> Iterator[int]:
        for number in range(3):
            seen.append(number)
            yield number

    async def bystander() -> None:
        for _ in range(3):
            seen.append("bystander")
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(work(), bystander())

    asyncio.run(both())
    assert seen == [0, "bystander", 1, "bystander", 2, "bystander"]


def test_each_slice_begins_with_a_call() -> None:
    seen: list[str] = []

    async def work() -> list[list[int]]:
        return [found async for found in in_slices(range(2), lambda: seen.append("begin"))]

    assert asyncio.run(work()) == [[0], [1], []]  # the last slice finds the end
    assert seen == ["begin"] * 3


def test_slices_of_several_requests_take_turns() -> None:
    """However many requests are under way, a task that is ready waits for one slice at most."""
    running = slices_since = most = 0

    def work() -> Iterator[None]:
        nonlocal slices_since, most
        for _ in range(20):
            slices_since += 1
            most = max(most, slices_since)
            yield

    async def request() -> None:
        nonlocal running
        running += 1
        await collect(work())
        running -= 1

    async def bystander() -> None:
        nonlocal slices_since
        await asyncio.sleep(0)
        while running:
            slices_since = 0
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        await asyncio.gather(*(request() for _ in range(10)), bystander())

    asyncio.run(all_of_them())
    assert most == 1


def test_a_computation_in_steps_returns_its_result_or_raises_its_error() -> None:
    def double(number: int) -> Steps[int]:
        yield
        if number < 0:
            raise ValueError("expected a number of at least 0")
        return 2 * number

    assert asyncio.run(finish(double(21))) == 42
    assert asyncio.run(beside_the_loop(sum, [40, 2])) == 42
    with pytest.raises(ValueError, match="at least 0"):
        asyncio.run(finish(double(-1)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "é",
        [],
        {},
        [1],
        [1, [2], {"a": [3]}],
        {"a": 1, "b": [], "c": [1, 2], "d": {"e": [1]}},
        {"a": {"b": 1}},
    ],
)
def test_json_in_pieces_is_the_same_text(value: Any) -> None:
    whole = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    assert b"".join(pieces_of(value)) == whole
    if isinstance(value, list):
        assert b"".join(pieces_of(iter(value))) == whole


def test_a_large_answer_is_streamed_and_a_small_one_has_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "HELD_BYTES", 10)

    async def answers() -> tuple[bytes, str | None]:
        large, small = await streamed(pieces_of(list(range(100)))), await streamed(pieces_of([1]))
        assert isinstance(large, StreamingResponse)
        content = b"".join([bytes(chunk) async for chunk in large.body_iterator if not isinstance(chunk, str)])
        return content, small.headers["content-length"]

    assert asyncio.run(answers()) == (orjson.dumps(list(range(100))), "3")


def test_an_error_before_the_first_byte_is_sent_becomes_an_error_response() -> None:
    def fail() -> Iterator[bytes]:
        yield b"["
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(streamed(fail()))


@pytest.mark.parametrize("padding", [" ", "\n \t"])
def test_a_large_document_is_read_entry_by_entry_with_the_same_result(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "HELD_BYTES", 0)
    document = {"a": [1, {"b": [2]}, "x,]}", []], "none": [], "é": "☃", "n": None, "o": {"p": [1]}, "last": [0.5]}
    text = json.dumps(document, indent=padding, ensure_ascii=False).encode()
    steps = json_stream.parse(text)
    assert complete(steps) == document
    assert sum(1 for _ in json_stream.parse(text)) == 5


@pytest.mark.parametrize(
    "text",
    [
        "{", '{"a"', '{"a":', '{"a":[', '{"a":[1', '{"a":[1,', '{"a":[1,]}', '{"a":[1]', '{"a":[1]}x', '{"a":1 "b":2}', "{,}",
        '{"a":[1 2]}', '{"a":NaN}', '{"a":["\\ud800"]}', '{"a":1,}', "{1:2}", "{  ",
    ],
)  # fmt: skip
def test_an_invalid_large_document_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "HELD_BYTES", 0)
    with pytest.raises(ValueError, match=r"."):
        complete(json_stream.parse(text.encode()))
