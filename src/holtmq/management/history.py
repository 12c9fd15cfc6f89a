"""Counters over time: the basis of rates and charts."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any


class History:
    """A bounded time series of several counters.

    While the values stay the same, only the time of the last row is updated. Thousands of idle queues cost almost nothing.
    """

    __slots__ = ("_limit", "_rows", "_width")

    def __init__(self, width: int, limit: int) -> None:
        self._width = width + 1
        self._limit = limit
        self._rows = array("q")
        """Rows of a time in milliseconds and the values at that time."""

    def __len__(self) -> int:
        return len(self._rows) // self._width

    def add(self, at_ms: int, values: Sequence[int]) -> None:
        """Append a sample. Drop the oldest row when the series is full."""
        rows, width = self._rows, self._width
        new = array("q", values)
        if len(rows) >= 2 * width and rows[-width + 1 :] == new == rows[1 - 2 * width : -width]:
            rows[-width] = at_ms
            return
        rows.append(at_ms)
        rows.extend(new)
        if len(rows) > self._limit * width:
            del rows[:width]

    def last(self) -> Sequence[int]:
        """Return the most recent values."""
        return self._rows[1 - self._width :]

    def rate(self, column: int) -> float:
        """Return the growth per second between the last two rows."""
        rates = self.rates()
        return rates[column] if rates else 0.0

    def rates(self) -> Sequence[float]:
        """Return the rates of all columns, or an empty sequence if nothing has changed."""
        rows, width = self._rows, self._width
        if len(rows) < 2 * width:
            return ()
        old, new = rows[1 - 2 * width : -width], rows[1 - width :]
        elapsed_ms = rows[-width] - rows[-2 * width]
        if old == new or not elapsed_ms:
            return ()
        return [round((after - before) * 1000 / elapsed_ms, 1) for before, after in zip(old, new, strict=True)]

    def at(self, times_ms: Sequence[int], column: int) -> list[int | None]:
        """Return the value of a column at each time, taken from the last row up to it. Times must be in descending order."""
        rows, width = self._rows, self._width
        start, found = len(rows) - width, list[int | None]()
        for time_ms in times_ms:
            while start >= 0 and rows[start] > time_ms:
                start -= width
            found.append(rows[start + column + 1] if start >= 0 else None)
        return found

    def samples(self, column: int, now_ms: int, age_s: int, step_s: int) -> dict[str, Any]:
        """Return RabbitMQ's chart data: one sample per `step_s` seconds, newest first, with rate and averages."""
        last = now_ms - now_ms % (step_s * 1000)
        times = [last - back * step_s * 1000 for back in range(age_s // step_s + 1)]
        values = zip(times, self.at(times, column), strict=True)
        samples = [{"sample": value, "timestamp": at_ms} for at_ms, value in values if value is not None]
        growth, elapsed_s = 0, 0.0
        if len(samples) > 1:
            growth = samples[0]["sample"] - samples[-1]["sample"]
            elapsed_s = (samples[0]["timestamp"] - samples[-1]["timestamp"]) / 1000
        return {
            "rate": self.rate(column),
            "samples": samples,
            "avg_rate": round(growth / elapsed_s, 3) if elapsed_s else 0.0,
            "avg": round(sum(sample["sample"] for sample in samples) / max(1, len(samples)), 3),
        }
