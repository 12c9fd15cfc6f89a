"""The contents of a report as values, for JSON, the HTML page and the terminal."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from holtmq.spark.deprecated_names import OldToJson


@dataclass(frozen=True, slots=True)
class Volume:
    """The number of messages, and of bytes in their bodies, of something with a name."""

    name: str
    messages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class KeyVolume:
    """The volume of a routing key, and the queues that it reaches."""

    exchange: str | None
    routing_key: str | None
    messages: int
    bytes: int
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two bindings of an exchange that route the same messages to the same destination."""

    first: str
    second: str
    messages: int


@dataclass(frozen=True, slots=True)
class Series:
    """Volumes over time: the number of messages in each span, in total and for the largest queues."""

    span_s: int
    starts: tuple[int, ...]
    """Seconds since 1970."""
    messages: tuple[int, ...]
    queues: dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Report(OldToJson):
    """A traffic report. All of it is on the driver."""

    title: str
    vhost: str
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
    """Bindings that matched at least one message, busiest first."""
    idle_bindings: tuple[str, ...]
    overlaps: tuple[Overlap, ...]
    idle_queues: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary of values that JSON can represent."""
        fields = asdict(self)
        for name in ("created_at", "first", "last"):
            moment = fields[name]
            fields[name] = moment.isoformat() if moment is not None else None
        return fields

    def to_html(self) -> str:
        """Return the report as a self-contained HTML page. Needs jinja2."""
        from holtmq.spark.reports.page import render

        return render(self)

    def write_html(self, path: str | Path) -> None:
        """Write the report to a file as a self-contained HTML page. Needs jinja2."""
        Path(path).write_text(self.to_html(), encoding="utf-8")
