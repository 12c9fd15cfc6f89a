"""Positions in a stream queue, as options name them: earliest, latest, an offset, a time, or a time span before now."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias

from holtmq.errors import InvalidValueError

Position: TypeAlias = Literal["earliest", "latest"] | int | datetime | timedelta
SPAN = re.compile(r"([0-9]+)([Dhms])")
UNITS = {"D": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": timedelta(seconds=1)}
LONGEST_SPAN = timedelta(days=36_500)
LARGEST_OFFSET = 2**63 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The earliest time that AMQP can represent. No message is older."""
EXPECTED = (
    "expected earliest, latest, an offset such as 1200, a time such as 2026-10-01T12:00:00Z, a time span such as 24h, "
    "or a JSON object with one of these for each queue"
)


class Positions:
    """Where to start, or to end, in each stream."""

    def __init__(self, everywhere: Position, by_queue: Mapping[str, Position] | None = None) -> None:
        self._everywhere = everywhere
        self._by_queue = by_queue or {}

    @classmethod
    def parse(cls, text: str, *, default: Position) -> Positions:
        """Read the value of an option. `default` is the position in queues that a JSON object does not name."""
        if not text.lstrip().startswith("{"):
            return cls(_parse(text))
        try:
            values = json.loads(text)
        except ValueError as error:
            raise InvalidValueError(f"got {text!r}, which is not valid JSON: {EXPECTED}") from error
        return cls(default, {queue: _parse(str(value)) for queue, value in values.items()})

    def of(self, queue: str) -> Position:
        """Return the position in a stream."""
        return self._by_queue.get(queue, self._everywhere)


def _parse(text: str) -> Position:
    text = text.strip()
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return _bounded(text, LARGEST_OFFSET, f"expected an offset of at most {LARGEST_OFFSET}")
    if span := SPAN.fullmatch(text):
        unit = UNITS[span[2]]
        most = LONGEST_SPAN // unit
        return unit * _bounded(span[1], most, f"expected a time span of at most {most}{span[2]}, or earliest")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidValueError(f"got {text!r}: {EXPECTED}") from error
    return max(EPOCH, moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment)


def since(span: timedelta, now: datetime) -> datetime:
    """Return the time that is this long ago."""
    return max(EPOCH, now - span)


def _bounded(digits: str, most: int, expected: str) -> int:
    """Return a number. Raise InvalidValueError if it is too large. Python refuses to read thousands of digits."""
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(most)) or int(digits) > most:
        raise InvalidValueError(f"got {digits}: {expected}")
    return int(digits)
