"""Every row of the broker benchmark runs, and finds what it says that it measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.broker import run
from benchmarks.brokers import Broker, HoltMQ, running
from benchmarks.results import Results
from benchmarks.rows import ACKED, CPU, RECEIVED, SENT, LoadRow, Row, rows, scaled
from holtmq.bench import Load, run_load
from tests.deadline import PATIENCE_S

TINY = 0.0002
SHARED = [row for row in rows() if not row.needs_fresh_broker]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running(HoltMQ) as started:
        yield started


@pytest.mark.parametrize("row", SHARED, ids=lambda row: row.name)
def test_row_measures_a_running_broker(broker: Broker, row: Row) -> None:
    values = row.measure(broker, TINY)
    assert len(values) > 1
    assert all(value > 0 for name, value in values.items() if name != CPU)


def test_rows_with_brokers_of_their_own_are_written_to_a_file(tmp_path: Path) -> None:
    fresh = [row for row in rows() if row.needs_fresh_broker]
    results = run(fresh, [HoltMQ], rounds=1, scale=TINY, out=tmp_path / "out.json")
    assert Results.read(tmp_path / "out.json") == results
    assert list(results.rows) == [row.name for row in fresh]


def test_names_of_rows_are_unique() -> None:
    names = [row.name for row in rows()]
    assert len(set(names)) == len(names)


def test_full_length_is_a_million_messages_or_ten_seconds() -> None:
    load = scaled(Load(), 1)
    assert (load.messages, load.time_s) == (1_000_000, 10)


def test_all_messages_are_received_when_consumers_are_late_stall_or_requeue(broker: Broker) -> None:
    for load in (
        replace(ACKED, late_s=0.05),
        replace(ACKED, late_s=math.inf, confirm=100),
        replace(ACKED, stall_every_s=0.02, stall_s=0.02),
        replace(ACKED, requeue_every=3),
        replace(ACKED, is_dead_lettered=True),
        replace(ACKED, queues=3, is_split=True, producers=2, consumers=2),
        replace(ACKED, size=300_000, messages=20),
    ):
        result = run_load(broker.address, replace(load, messages=load.messages or 5000, time_s=PATIENCE_S))
        assert result.received == result.sent == (load.messages or 5000)


def test_published_messages_count_when_they_are_confirmed(broker: Broker) -> None:
    values = LoadRow("x", Load(consumers=0, confirm=10), (SENT,)).measure(broker, TINY)
    assert values[SENT] > 0
    assert RECEIVED not in values
