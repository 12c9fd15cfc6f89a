"""The queries of the hot path use an index, so that a long backlog does not slow them down."""

from __future__ import annotations

import pytest

import holtmq
from holtmq.store.sqlite import message_store


@pytest.mark.parametrize(
    ("query", "parameters", "index"),
    [
        (message_store.READ_FIRST, (1, 0), "ready"),
        (message_store.READ_FIRST, (1, 0), "timers"),
        (message_store.READY_IN_ORDER, (1, 10), "ready"),
        (message_store.READY_AFTER, (1, 0, 0, 10, 1, 0, 10, 10), "ready"),
        (message_store.FIRST_OF_KEYS, ("[1]", 1, 1, 10, 10), "ready_by_key"),
        (message_store.LONG_DONE, (1, 0), "settled"),
    ],
)
def test_a_query_of_the_hot_path_uses_its_index(query: str, parameters: tuple[object, ...], index: str) -> None:
    with holtmq.open(":memory:") as mq, mq.database.lock() as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]
    assert any(f"INDEX {index} " in step for step in plan), plan
    assert "SCAN deliveries" not in plan
