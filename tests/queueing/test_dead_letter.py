"""Dead letters, beyond what the broker's tests see: which messages share one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holtmq.queueing.dead_letter import DeadLetter, dead_letter
from holtmq.queueing.rules import QueueRules
from holtmq.topology import Queue
from holtmq.wire.content import Properties, encode_properties

RULES = QueueRules.of(Queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graveyard"}), None)


def letter(now_ms: int, **properties: Any) -> DeadLetter:
    raw = encode_properties(properties)
    found = dead_letter(Properties(raw), "x", "k", queue="q", rules=RULES, exchanges=(), reason="expired", now_ms=now_ms)
    assert found is not None
    return found


def headers(found: DeadLetter) -> Any:
    return Properties(found.raw_properties).headers


def test_letter_names_the_second_of_its_death() -> None:
    times = [headers(letter(now_ms))["x-death"][0]["time"] for now_ms in (1000, 1999, 2000)]
    assert times == [datetime.fromtimestamp(second, UTC) for second in (1, 1, 2)]


@pytest.mark.parametrize("size", [10, 10_000])
def test_letter_keeps_the_properties_of_its_message(size: int) -> None:
    found = [letter(1000, message_id=name, headers={"large": "x" * size}) for name in ("a", "b", "a")]
    assert [Properties(each.raw_properties).to_dict()["message_id"] for each in found] == ["a", "b", "a"]
    assert all(headers(each)["large"] == "x" * size for each in found)
    assert found[0].raw_properties == found[2].raw_properties
