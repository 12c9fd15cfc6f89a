"""What a report says, as values: for JSON, for the page, for the terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Volume:
    """So many messages, and the bytes of their bodies, under a name."""

    name: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeyVolume:
    exchange: str | None
    routing_key: str | None
    messages: int
    bytes: int
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two bindings of one exchange that bring the same messages to the same destination."""

    first: str
    second: str
    messages: int


@dataclass(frozen=True, slots=True)
class Series:
    """Volumes over time: how many messages in each span, in all and for the largest queues."""

    span_s: int
    starts: tuple[int, ...]
    """Seconds since 1970."""
    messages: tuple[int, ...]
    queues: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    created_at: datetime
    messages: int
    bytes: int
    deliveries: int
    unroutable: int
    malformed: int
    first: datetime | None
    last: datetime | None
    distinct_keys: int
    series: Series | None
    exchanges: tuple[Volume, ...]
    prefixes: tuple[Volume, ...]
    queues: tuple[Volume, ...]
    keys: tuple[KeyVolume, ...]
    unroutable_keys: tuple[KeyVolume, ...]
    reasons: tuple[Volume, ...]
    """Why messages are malformed."""
    bindings: tuple[Volume, ...]
    """Those that matched something, busiest first."""
    idle_bindings: tuple[str, ...]
    overlaps: tuple[Overlap, ...]
    idle_queues: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        for name in ("created_at", "first", "last"):
            moment = fields[name]
            fields[name] = moment.isoformat() if moment is not None else None
        return fields

    def to_html(self) -> str:
        """A page of its own: nothing is loaded from anywhere."""
        from holtmq.spark.reports.page import render

        return render(self)

    def write_html(self, path: str | Path) -> None:
        Path(path).write_text(self.to_html(), encoding="utf-8")
