"""Counters over time."""

from __future__ import annotations

from holtmq.management.history import History


def test_a_rate_is_the_growth_between_the_last_two_samples() -> None:
    history = History(2, 10)
    assert history.rate(0) == 0
    history.add(0, (5, 100))
    assert history.rate(0) == 0
    history.add(2000, (25, 100))
    assert (history.rate(0), history.rate(1)) == (10, 0)
    history.add(4000, (25, 90))
    assert (history.rate(0), history.rate(1)) == (0, -5)


def test_unchanged_values_add_no_rows() -> None:
    history = History(1, 5)
    history.add(0, (1,))
    for at_ms in range(1000, 100_000, 1000):
        history.add(at_ms, (2,))
    assert len(history) == 3
    assert history.rate(0) == 0
    assert history.at([70_000, 1000, 500], 0) == [2, 2, 1]


def test_old_rows_are_dropped() -> None:
    history = History(1, 3)
    for number in range(10):
        history.add(number * 1000, (number,))
    assert len(history) == 3
    assert history.at([9000, 1000], 0) == [9, None]
    assert history.last()[0] == 9


def test_samples_have_rabbitmqs_form() -> None:
    history = History(1, 100)
    for second in range(0, 30, 5):
        history.add(second * 1000, (second * 10,))
    details = history.samples(0, 27_000, 10, 5)
    assert details["samples"] == [
        {"sample": 250, "timestamp": 25_000},
        {"sample": 200, "timestamp": 20_000},
        {"sample": 150, "timestamp": 15_000},
    ]
    assert (details["avg"], details["avg_rate"], details["rate"]) == (200, 10, 10)
